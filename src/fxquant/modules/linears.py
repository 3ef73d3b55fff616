"""Linear modules around tensors that exist already, which they share."""

from __future__ import annotations

from torch import Tensor, nn


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
