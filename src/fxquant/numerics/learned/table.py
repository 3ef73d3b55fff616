"""The ways to learn a range, by the name that `Spec.learn` has for them, and how a quantizer owns one.

"ste" is none of them: it trains through the rounding, and the range comes from an observer or from the weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fxquant.config.spec import Learn, Spec
from fxquant.numerics.affine import choose_qparams
from fxquant.numerics.learned.base import Learned, Own
from fxquant.numerics.learned.lsq import Lsq, LsqPlus
from fxquant.numerics.learned.pact import Pact
from fxquant.numerics.learned.tqt import Tqt

LEARNED: Mapping[Learn, Learned] = {"lsq": Lsq(), "lsq+": LsqPlus(), "tqt": Tqt(), "pact": Pact()}
# the names of all that is trained
RANGES = frozenset(name for method in LEARNED.values() for name in method.parameters(()))


def learned_of(spec: Spec) -> Learned | None:
    """Tell how the range of a spec is learned; None if it is not."""
    return None if spec.learn is None else LEARNED.get(spec.learn)


def own_of(module: nn.Module) -> Own:
    """Return the parameters and buffers of a quantizer."""
    tensors = (*module._parameters.items(), *module._buffers.items())
    return {name: tensor for name, tensor in tensors if tensor is not None}


def add_parameters(module: nn.Module, method: Learned, shape: tuple[int, ...]) -> None:
    """Give a quantizer what a method trains, not started, in the place of a scale and zero point that are not."""
    for name in ("scale", "zero_point"):
        module._buffers.pop(name, None)
    for name, tensor in method.parameters(shape).items():
        module.register_parameter(name, nn.Parameter(tensor))
    for name, tensor in method.buffers(shape).items():
        module.register_buffer(name, tensor)


@torch.no_grad()
def start(module: nn.Module, method: Learned, spec: Spec, low: Tensor, high: Tensor) -> None:
    """Set the first values from a range."""
    method.start(own_of(module), *choose_qparams(low, high, spec), spec)
