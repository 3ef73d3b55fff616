"""What a model keeps of its calls: the user's buffers and attributes, not what fxquant put beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fxquant.graph.notes import OBSERVED
from fxquant.graph.region import Region


def ours(model: nn.Module) -> Iterator[nn.Module]:
    """Return the modules that a model does not write to as its own, with all below them.

    Those are observers, quantizers, kernels, and the user's modules that observe.
    """
    pending, seen = [model], set[int]()
    while pending:
        module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if type(module).__module__.startswith("fxquant.") or OBSERVED in module.__dict__:
            yield from module.modules()
        else:
            pending += [child for child in module._modules.values() if child is not None]


@contextlib.contextmanager
def forgotten(region: Region) -> Iterator[None]:
    """Put back, at the end, what runs of the graph write to the user's buffers that it reads."""
    before = [(buffer, buffer.detach().clone()) for buffer in _read_buffers(region)]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _read_buffers(region: Region) -> list[Tensor]:
    read = []
    for target in dict.fromkeys(str(node.target) for node in region.graph.find_nodes(op="get_attr")):
        path, _, name = target.rpartition(".")
        holder = region.get_submodule(path)
        buffer = holder._buffers.get(name)
        if buffer is not None and buffer.layout is torch.strided and not buffer.is_meta:
            read.append((holder, buffer))
    left_out = {id(module) for module in ours(region)} if read else set()  # most graphs read none, and passes are many
    return [buffer for holder, buffer in read if id(holder) not in left_out]
