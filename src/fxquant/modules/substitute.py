"""Put quantizable forms in place of stock modules, where a rule asks for quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from fxquant.capture.piecewise.wrapped_bodies import replace_module
from fxquant.modules.attention import MultiheadAttention
from fxquant.modules.cells import GRUCell, LSTMCell, RNNCell
from fxquant.modules.recurrent import GRU, LSTM, RNN
from fxquant.modules.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

FORMS: Mapping[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.LSTM: LSTM.from_float,
    nn.GRU: GRU.from_float,
    nn.RNN: RNN.from_float,
    nn.LSTMCell: LSTMCell.from_float,
    nn.GRUCell: GRUCell.from_float,
    nn.RNNCell: RNNCell.from_float,
    nn.MultiheadAttention: MultiheadAttention.from_float,
    nn.TransformerEncoderLayer: TransformerEncoderLayer.from_float,
    nn.TransformerDecoderLayer: TransformerDecoderLayer.from_float,
    nn.TransformerEncoder: TransformerEncoder.from_float,
    nn.TransformerDecoder: TransformerDecoder.from_float,
    nn.Transformer: Transformer.from_float,
}


_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


def substitute(tree: nn.Module, modules: Iterable[nn.Module]) -> tuple[nn.Module, dict[nn.Module, nn.Module]]:
    """Put the quantizable forms of these modules into the tree (a clone: it is changed).

    Returns the tree, which is another one if its root is among them, and what stands for what.
    """
    forms: dict[nn.Module, nn.Module] = {}
    for module in modules:
        new = forms[module] = FORMS[type(module)](module)
        for hooks in _HOOKS:
            new.__dict__[hooks] = module.__dict__[hooks]
        replace_module(tree, module, new)
    return forms.get(tree, tree), forms
