"""What all quantizable forms of stock modules have in common: code around them takes them for what they stand for.

isinstance(self.rnn, nn.LSTM)          self.rnn.flatten_parameters()          self.attn.in_proj_weight.dtype

A checkpoint of the float model loads as well: a form says by which names it has the tensors of the stock module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from fxquant.graph import torch_compat
from fxquant.graph.adapt_state import adapt_stock
from fxquant.graph.worn_class import wear, worn


class Form(nn.Module):
    """The quantizable form of a stock module."""

    stands_for: ClassVar[type[nn.Module]]

    @property
    def __class__(self) -> type:
        """The stock class. TorchDynamo would run its forward then, so it sees the form."""
        return type(self) if torch_compat.dynamo_traces() else worn(self) or self.stands_for

    @__class__.setter
    def __class__(self, cls: type) -> None:
        wear(self, cls, self.stands_for)

    @staticmethod
    def own_state(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        """Return a tensor of the stock module's state by the names that it has here; nothing if by the same one."""
        return {}

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, *args: object) -> None:
        adapt_stock(type(self), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return _new, (type(self),), self.__dict__


def _new(cls: type[Form]) -> Form:
    return cls.__new__(cls)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return an `nn.Linear` that holds these very tensors.

    A slice of a parameter becomes one that shares its memory.
    """
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    linear.weight = _parameter(weight)
    if bias is not None:
        linear.bias = _parameter(bias)
    return linear


def _parameter(tensor: Tensor) -> nn.Parameter:
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
