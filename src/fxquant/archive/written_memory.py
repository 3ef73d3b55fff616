"""Words of a file that would show memory as it was found: they are read, and stored, as words that write all of it.

`empty` gives zeros, which is one of the things it may give, and rows of a grouped product that no group has are 0. What
a process left in its memory is none of a file's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_ATEN = "torch.ops.aten"
_ZEROS = {
    "torch.empty": "torch.zeros",
    "torch.empty_like": "torch.zeros_like",
    "new_empty": "new_zeros",
    f"{_ATEN}.empty.memory_format": f"{_ATEN}.zeros.default",
    f"{_ATEN}.empty_like.default": f"{_ATEN}.zeros_like.default",
    f"{_ATEN}.new_empty.default": f"{_ATEN}.new_zeros.default",
}
_FORMATLESS = ("torch.zeros", f"{_ATEN}.zeros.default")  # these take no memory format
_GROUPED = ("torch._grouped_mm", "torch.nn.functional.grouped_mm", f"{_ATEN}._grouped_mm.default")


def grouped_mm(
    x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Return torch's grouped product, of groups in order and inside of the tensors, and 0 where there is no group.

    Torch goes by the numbers that lie behind the first of `offs`, as if it were contiguous, and leaves what no group
    has as it was.
    """
    if offs is None:
        return torch._grouped_mm(x, y, offs, bias, out_dtype)
    size = x.shape[-1] if x.dim() == y.dim() else x.shape[0] if x.dim() == 2 else y.shape[-1]
    ends = offs.clamp(0, size).cummax(0).values.contiguous()
    made = torch._grouped_mm(x, y, ends, bias, out_dtype)
    if x.dim() == y.dim():
        return made  # the groups are of what is summed
    left = torch.arange(size, device=offs.device) >= ends[-1]
    return made.masked_fill(left[:, None] if x.dim() == 2 else left, 0)


def written_word(op: object, target: object, kwargs: Mapping[str, object]) -> tuple[object, Mapping[str, object]]:
    """Return the word that stands for one in a file, and its keywords."""
    if op == "call_function" and target in _GROUPED:
        return f"{__name__}.{grouped_mm.__name__}", kwargs
    if not isinstance(target, str) or op not in ("call_function", "call_method"):
        return target, kwargs
    word = _ZEROS.get(target, target)
    if word in _FORMATLESS and word != target:
        kwargs = {name: value for name, value in kwargs.items() if name != "memory_format"}
    return word, kwargs
