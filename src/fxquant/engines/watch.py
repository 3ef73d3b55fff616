"""What a region was when something was made of it: a kept run, or a graph for another runtime."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fxquant.core.graph import Region
from fxquant.engines.onednn_kernels import Kernel
from fxquant.numerics.counted import Counted

_version = operator.attrgetter("_version")


@dataclass(kw_only=True, slots=True)
class Watch:
    """The tensors of a region, and the modes of its modules: which ones stand there, and the values of some."""

    tables: list[dict[str, Any]]  # where the tensors stand in the model
    names: list[str]
    numbers: list[int]  # their ids
    tensors: list[Tensor]  # alive, so that the ids stay theirs
    copied: list[Tensor]  # those whose values were copied
    versions: list[int]
    pointers: list[int]  # to their memory
    modes: list[tuple[nn.Module, bool]]  # those that do another thing in train mode, and whether they are in it
    blind: bool  # some do not count what is written to them

    def holds(self) -> bool:
        """Whether all is as it was. A few passes in C: between two runs, none of the objects is in the caches."""
        try:
            if list(map(id, map(getitem, self.tables, self.names))) != self.numbers:
                return False
        except KeyError:
            return False
        if self.blind or list(map(_version, self.copied)) != self.versions:
            return False
        if list(map(Tensor.data_ptr, self.copied)) != self.pointers:
            return False
        return all(module.training is training for module, training in self.modes)

    def digest(self) -> int:
        """A checksum of all values, to tell in a copy whether it still has them."""
        found = 0
        for tensor in self.tensors:
            found = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, found)
        return found


def watch(region: Region, held: Iterable[Tensor] | None = None) -> Watch:
    """Watch a region. `held` are the tensors that are used as they are then; without it, all values were copied."""
    wanted = None if held is None else {id(tensor) for tensor in held}
    places, copied = [], []
    for module in region.modules():
        is_weight = isinstance(module, Counted)  # kernels and graphs hold copies
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None and (is_weight or wanted is None or id(tensor) in wanted):
                    places.append((table, name, tensor))
                    copied += [tensor] if is_weight or wanted is None else []
    modes = [(module, module.training) for module in called_modules(region) if not _is_steady(module)]
    blind = any(tensor.is_inference() for tensor in copied)
    return Watch(
        tables=[table for table, _, _ in places],
        names=[name for _, name, _ in places],
        numbers=[id(tensor) for _, _, tensor in places],
        tensors=[tensor for _, _, tensor in places],
        copied=copied,
        versions=[] if blind else list(map(_version, copied)),
        pointers=list(map(Tensor.data_ptr, copied)),
        modes=modes,
        blind=blind,
    )


def _is_steady(module: nn.Module) -> bool:
    """Whether a module does the same in train mode: those of torch do, but for norms that count and for dropout."""
    if isinstance(module, (_NormBase, _DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)):
        return False
    return type(module).__module__.startswith("torch.nn.modules.")


def called_modules(region: Region) -> list[nn.Module]:
    """The region and the modules that its graph calls, without kernels, which run no hooks."""
    found: list[nn.Module] = [region]
    for node in region.graph.nodes:
        if node.op == "call_module":
            module = region.get_submodule(str(node.target))
            inside = called_modules(module) if isinstance(module, Region) else module.modules()
            found += [part for part in inside if not isinstance(part, Kernel)]
    return found
