"""An error of torch in a converted graph, told as one of the call: which input is unlike the example's, and how.

Wrong channels, axes or dtypes are found by kernels, far from the call, in words that differ by engine; and so is a part
that was moved to another dtype by itself. What code of the user's raises, in a hook or in a module that is not looked
into, stays as it is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import fx

from fxquant.errors import FxQuantError, InputError, StageError, UnlikeInputError
from fxquant.graph.float_dtype import own_dtype

if TYPE_CHECKING:
    from fxquant.graph.region import Region
    from fxquant.graph.region_parts import Origin

_OF_TORCH = (RuntimeError, IndexError, ValueError, ZeroDivisionError)  # what torch and its kernels raise
_PACKAGES = ("torch", "fxquant", "onnxruntime", "openvino")  # whose code runs graphs and kernels


def explained(
    region: Region,
    error: Exception,
    outside: torch.dtype | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> FxQuantError | None:
    """Return the error of a call whose inputs are unlike the example's, or of a part that has another dtype.

    None if there is no such thing, or if code of the user's failed. `outside` is the float dtype that the region was
    moved to, if it was.
    """
    if type(error) not in _OF_TORCH or _of_user(error.__traceback__):
        return None
    found = _unlike(region, outside, args, kwargs)
    reason = next(iter(str(error).splitlines()), "").rstrip(". ")
    if not found:
        return _moved(region, reason)
    return UnlikeInputError(
        f"{'; '.join(found)}. The model fails on that: {reason}. Pass inputs with the axes, channels and dtypes of the "
        "example, or, where the float model takes these, capture it again with them."
    )


def _moved(region: Region, reason: str) -> StageError | None:
    """Return an error that names the parts of a region that have another float dtype than it, if there are some."""
    own, found = own_dtype(region.graph), []
    for path, module in region.named_modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.is_floating_point() and tensor.dtype != own:
                found.append(f"{path!r} is {str(tensor.dtype).removeprefix('torch.')}")
                break
    if not found:
        return None
    own_name = str(own).removeprefix("torch.")
    return StageError(
        f"the model computes in {own_name} inside, and {', '.join(found[:3])}: {reason}. A part of a converted model "
        f"is not moved by itself: move it back, with .to(torch.{own_name}), and move the whole model, which casts what "
        "comes in and goes out."
    )


def name_arguments(error: Exception, origin: Origin, kwargs: dict[str, object]) -> Exception:
    """Return the error of a call, or one that says more where only the float model takes an argument, by `**kwargs`."""
    unknown = [name for name in kwargs if name not in origin.input_names]
    taken = inspect.signature(origin.user_class.forward).parameters.values()
    if type(error) is not TypeError or not unknown or all(each.kind is not each.VAR_KEYWORD for each in taken):
        return error
    return TypeError(
        f"{error}: the model was captured without {unknown[0]!r}, and its graph takes {', '.join(origin.input_names)}. "
        f"Capture it again with example inputs that give {unknown[0]!r}, or leave it out."
    )


def left_out(region: Region, origin: Origin, args: tuple[object, ...], kwargs: dict[str, object]) -> InputError | None:
    """Return the error of a call of a part that gives None for an argument that was a tensor in the capture.

    Where a default may stand in for it, the graph looks by itself (capture/guards.py). A whole model has no code to run
    instead, and what failed in its graph says more.
    """
    if not origin.path:
        return None
    for node, value in _given(region, args, kwargs):
        if value is None and hasattr(node.meta.get("tensor"), "shape"):
            return InputError(
                f"argument {str(node.target)!r} was a tensor when the model was captured, now it is None. Pass a "
                "tensor, or capture the model again with example inputs that leave it out, or with sizes='any', for "
                "calls of both kinds; a part of the model then runs those of the other kind in float."
            )
    return None


def _given(region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[tuple[fx.Node, object]]:
    """Yield the placeholders of a region with the values that a call gives for them."""
    for place, node in enumerate(node for node in region.graph.nodes if node.op == "placeholder"):
        yield node, args[place] if place < len(args) else kwargs.get(str(node.target))


def _of_user(traceback: TracebackType | None) -> bool:
    """Whether an error went through code that is neither torch's, an engine's, nor made from a graph."""
    while traceback is not None:
        name = traceback.tb_frame.f_globals.get("__name__")  # code that is made from a graph has none
        root = str(name or "torch").partition(".")[0]
        if root not in _PACKAGES and root not in sys.stdlib_module_names:
            return True
        traceback = traceback.tb_next
    return False


def _unlike(
    region: Region, outside: torch.dtype | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[str]:
    found = []
    for place, (node, value) in enumerate(_given(region, args, kwargs)):
        info = node.meta.get("tensor")  # of the example, see nodes.tensor_info, which stands on regions
        if info is None or not hasattr(info, "shape") or not isinstance(value, torch.Tensor):
            continue
        wanted = outside if outside is not None and info.dtype.is_floating_point else info.dtype
        now, then = (value.dtype, tuple(value.shape)), (wanted, tuple(info.shape))
        if now[0] != then[0] or now[1][1:] != then[1][1:] or len(now[1]) != len(then[1]):
            found.append(
                f"input {place} ({str(node.target)!r}) is {_show(*now)}, and was {_show(*then)} in the example"
            )
    return found


def _show(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
