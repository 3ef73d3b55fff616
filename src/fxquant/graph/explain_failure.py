"""An error of torch in a converted graph, told as one of the call: which input is unlike the example's, and how.

Wrong channels, axes or dtypes are found by kernels, far from the call, in words that differ by engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fxquant.errors import UnlikeInputError

if TYPE_CHECKING:
    from fxquant.graph.region import Region

# what torch and its kernels raise; others, such as a hook's own, are the user's
_OF_TORCH = (RuntimeError, IndexError, ValueError, ZeroDivisionError)


def as_input_error(
    region: Region, error: Exception, args: tuple[object, ...], kwargs: dict[str, object]
) -> UnlikeInputError | None:
    """Return the error of a call whose inputs are unlike the example's; None if they are like them."""
    if type(error) not in _OF_TORCH:
        return None
    found = [text for text in _unlike(region, args, kwargs) if text]
    if not found:
        return None
    reason = next(iter(str(error).splitlines()), "").rstrip(". ")
    return UnlikeInputError(
        f"{'; '.join(found)}. The model fails on that: {reason}. Pass inputs with the axes, channels and dtypes of the "
        "example, or, where the float model takes these, capture it again with them."
    )


def _unlike(region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
    found = []
    inputs = [node for node in region.graph.nodes if node.op == "placeholder"]
    for place, node in enumerate(inputs):
        value = args[place] if place < len(args) else kwargs.get(str(node.target))
        info = node.meta.get("tensor")  # of the example, see nodes.tensor_info, which stands on regions
        if not hasattr(info, "shape") or not isinstance(value, torch.Tensor):
            continue
        now, then = (value.dtype, tuple(value.shape)), (info.dtype, tuple(info.shape))
        if now[0] != then[0] or now[1][1:] != then[1][1:] or len(now[1]) != len(then[1]):
            name = f"input {place} ({str(node.target)!r})"
            found.append(f"{name} is {_show(*now)}, and was {_show(*then)} in the example")
    return found


def _show(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
