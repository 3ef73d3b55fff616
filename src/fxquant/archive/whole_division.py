"""Divisions of integers towards zero in a file: they are read, and stored, as words that are defined for all integers.

Torch ends the process where it divides the lowest integer by -1 and rounds towards zero. Rounded down, that is the
lowest integer again, and a division by zero is an error:

    x / y towards zero  =  floor(x / y) + 1   where the quotient is below zero and not whole, else floor(x / y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from fxquant.archive.language import function_name
from fxquant.capture import guards
from fxquant.graph.encode import Ref
from fxquant.graph.nodes import TensorInfo

Number = int | float | bool

_WORDS = ("div", "divide")
_OPS = ("Tensor_mode", "Scalar_mode")


def divide(input: Tensor, other: Tensor | Number, *, rounding_mode: str = "trunc") -> Tensor:
    """Return what `torch.div` does."""
    if rounding_mode != "trunc" or not _is_whole(torch.result_type(input, other)):
        return torch.div(input, other, rounding_mode=rounding_mode)
    down = torch.div(input, other, rounding_mode="floor")
    left = torch.remainder(input, other) != 0
    return down + (left & (down < 0)).to(down.dtype)


@has_side_effect
def divide_(input: Tensor, other: Tensor | Number, *, rounding_mode: str = "trunc") -> Tensor:
    """Write to `input` what `Tensor.div_` does."""
    dtype = torch.result_type(input, other)
    if rounding_mode != "trunc" or not _is_whole(dtype) or not torch.can_cast(dtype, input.dtype):
        return input.div_(other, rounding_mode=rounding_mode)
    return input.copy_(divide(input, other).to(input.dtype))


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


Call = tuple[object, object, Sequence[object]]


def whole_word(op: object, target: object, args: Sequence[object], kwargs: Mapping[str, object], info: object) -> Call:
    """Return (op, target, arguments) of the word that stands for one in a file.

    `info` is what the file records of the result.
    """
    call, mode = (op, target, args), kwargs.get("rounding_mode")
    if mode != "trunc" and not isinstance(mode, Ref):  # a Ref may be an argument that is a text
        return call
    if mode == "trunc" and isinstance(info, TensorInfo) and not _is_whole(info.dtype):
        return call
    if not isinstance(target, str) or "self" in kwargs:
        return call
    if op == "call_method":
        word = target
    elif target == function_name(guards.apply_in_place) and len(args) == 3:
        word, args = str(args[1]), (args[0], args[2])
    elif op != "call_function":
        return call
    elif target.startswith("torch.ops.aten.") and target.rpartition(".")[2] in _OPS:
        word = target.split(".")[3]
    else:
        word = target.removeprefix("torch.")
    if word.removesuffix("_") not in _WORDS:
        return call
    own = divide_ if word.endswith("_") else divide
    return "call_function", f"{__name__}.{own.__name__}", args
