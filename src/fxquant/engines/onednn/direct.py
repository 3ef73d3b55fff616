"""Kernels called with nothing in between: what each looks at before it runs is looked at once for a region.

A kernel looks whether its weight is still the one that it packed, whether it takes a tensor of this size, whether
something traces: a tenth of MobileNetV2's time. `DirectCalls` stands for a region in the code of its graph, with
functions in the place of kernels. A function knows which sizes its kernel took, and calls torch's op with arguments
that are ready; all else it leaves to the kernel. The owner looks at the weights before each call of the region.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from fxquant.engines.onednn.kernel_modules import ConvKernel, Kernel, LinearKernel
from fxquant.graph import torch_compat
from fxquant.graph.region import Region, kernel_path_of

_MOST = 64  # sizes for which a kernel has arguments
_SUMMED = (torch.uint8, torch.int8, torch.float32)


class DirectCalls:
    """Reads as a region, but for its kernels. It has no names of its own that a model may have."""

    def __init__(self, region: Region) -> None:
        path = kernel_path_of(region)
        calls = {name: _direct(each) for name, each in region.get_submodule(path).named_children()} if path else {}
        self.__dict__.update({"_fxquant_region": region, path: SimpleNamespace(**calls)})

    def __getattr__(self, name: str) -> object:
        return getattr(self._fxquant_region, name)


def _direct(kernel: object) -> object:
    if not isinstance(kernel, (ConvKernel, LinearKernel)) or kernel.x_grid is None:
        return kernel  # its grid comes with the call, or it does more than call an op
    return _of_one(kernel) if kernel.accumulate is None else _of_two(kernel, copies=kernel.accumulate.copy)


def _of_one(kernel: ConvKernel | LinearKernel) -> Callable[[Tensor], Tensor]:
    op = torch.ops.onednn.qconv_pointwise if isinstance(kernel, ConvKernel) else torch.ops.onednn.qlinear_pointwise
    run = torch_compat.bare(op.default)
    known: dict[torch.Size, tuple[object, ...]] = {}

    def call(x: Tensor) -> Tensor:
        arguments = known.get(x.shape)
        if arguments is not None and x.is_cpu:
            return run(x, *arguments)  # type: ignore[no-any-return]
        made = kernel(x)
        if (parts := _arguments(kernel, x)) is not None and len(known) < _MOST:
            known[x.shape] = parts[0] + parts[1]
        return made

    return call


def _of_two(kernel: ConvKernel | LinearKernel, *, copies: bool) -> Callable[[Tensor, Tensor], Tensor]:
    is_conv = isinstance(kernel, ConvKernel)
    run = torch_compat.bare(
        (torch.ops.onednn.qconv2d_pointwise if is_conv else torch.ops.onednn.qlinear_pointwise).binary
    )
    layout = torch.channels_last if is_conv else torch.contiguous_format
    known: dict[tuple[torch.Size, torch.Size, torch.dtype], tuple[tuple[object, ...], tuple[object, ...]]] = {}

    def call(x: Tensor, other: Tensor) -> Tensor:
        key = (x.shape, other.shape, other.dtype)
        parts = known.get(key)
        if parts is not None and x.is_cpu and other.is_contiguous(memory_format=layout):
            head, rest = parts
            second = other.clone(memory_format=layout) if copies else other
            return run(x, *head, second, *rest)  # type: ignore[no-any-return]
        made = kernel(x, other)
        parts = _arguments(kernel, x)
        if parts is not None and made.shape == other.shape and other.dtype in _SUMMED and len(known) < _MOST:
            known[key] = parts
        return made

    return call


def _arguments(kernel: Kernel, x: Tensor) -> tuple[tuple[object, ...], tuple[object, ...]] | None:
    """Return what a kernel gave its op besides tensors in the call before, if it passes such a tensor on as it is."""
    if kernel.packed is None or kernel.packed[0] or not x.numel() or x.dim() < kernel.rank:
        return None
    return kernel.packed[1:]
