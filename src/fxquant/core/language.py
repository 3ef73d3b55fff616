"""The words of the language that saved graphs are written in: the functions, methods and attributes they may name."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ACTIVATIONS = (  # functions that are the value of a setting
    *(F.relu, F.gelu, F.silu, F.elu, F.celu, F.selu, F.mish, F.leaky_relu, F.relu6, F.hardtanh, F.hardswish),
    *(F.hardsigmoid, F.softplus, F.logsigmoid, F.softsign, F.tanh, F.sigmoid),
    *(torch.relu, torch.tanh, torch.sigmoid, torch.selu, torch.celu),
)
