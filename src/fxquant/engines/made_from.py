"""What a region was when something was made from it: machine code, or a graph for another runtime."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fxquant.engines.onednn.kernel_modules import Kernel, Kernels
from fxquant.engines.onednn.weight_only_linear import WeightOnlyLinear
from fxquant.graph.region import Region
from fxquant.graph.standing import Standing, stand_there
from fxquant.numerics.grid import Grid
from fxquant.numerics.sampled import Bytes, read, sampled
from fxquant.numerics.weights.quantized_weight import QuantizedWeight

_version = operator.attrgetter("_version")


@dataclass(kw_only=True, slots=True)
class MadeFrom:
    """The tensors of a region, and the modes of its modules: which ones stand there, and the values of some."""

    tables: list[dict[str, Any]]  # where the tensors stand in the model, and what parametrizations are made of
    names: list[str]
    objects: list[object]
    tensors: list[Tensor]
    counted: list[Tensor]  # one for all that share a version counter
    versions: list[int]
    placed: list[Tensor]  # those with memory of their own: sparse ones have none
    pointers: list[int]  # to it, which `tensor.data = ...` makes another
    samples: list[Bytes]  # of what is in it, for writes that are not counted
    read: bytes
    modes: list[tuple[nn.Module, bool]]  # those that do another thing in train mode, and whether they are in it
    blind: bool  # some do not count what is written to them

    def holds(self) -> bool:
        """Tell whether all is as it was. A few passes in C: between two runs, none of the objects is in the caches."""
        if self.blind or not stand_there(self.tables, self.names, self.objects):
            return False
        if list(map(_version, self.counted)) != self.versions:
            return False
        if list(map(Tensor.data_ptr, self.placed)) != self.pointers:
            return False
        if read(self.samples) != self.read:
            return False
        return all(module.training is training for module, training in self.modes)

    def standing(self) -> Standing | None:
        """Return the same as plain facts; None if there are some that nothing counts."""
        if self.blind:
            return None
        modes = tuple((module.__dict__, "training", training) for module, training in self.modes)
        return Standing(
            places=(*zip(self.tables, self.names, self.objects, strict=True), *modes),
            pointers=tuple(zip(self.placed, self.pointers, strict=True)),
            versions=tuple(zip(self.counted, self.versions, strict=True)),
            memory=tuple((piece, piece.tobytes()) for sample in self.samples for piece in sample),
        )

    def digest(self) -> int:
        """Return a checksum of all values, to tell in a copy whether it still has them."""
        found = 0
        for tensor in self.tensors:
            values = tensor.detach().to_dense().cpu().contiguous().view(-1)
            found = zlib.crc32(values.view(torch.uint8).numpy().data, found)
        return found


def plain_attributes(module: nn.Module) -> list[str]:
    """Return the names of a module's tensors that are neither parameters nor buffers: a graph may read them."""
    return [name for name, value in module.__dict__.items() if isinstance(value, Tensor)]


def made_from(region: Region) -> MadeFrom:
    """Note what a region is now, as something is made from it: copies of its tensors, or code."""
    places = []
    for module in region.modules():
        if isinstance(module, Grid) and module.scale.dim() == 0:  # passes/fill_grids.py looks at it
            continue
        for table in (module._parameters, module._buffers):
            places += [(table, name, tensor) for name, tensor in table.items() if tensor is not None]
        places += [(module.__dict__, name, module.__dict__[name]) for name in plain_attributes(module)]
    tensors = [tensor for _, _, tensor in places]
    parts = list(_parametrizations(region))
    modes = [(module, module.training) for module in called_modules(region) if not _is_steady(module)]
    blind = any(tensor.is_inference() for tensor in tensors)
    bases = (tensor if tensor._base is None else tensor._base for tensor in tensors)
    counted = list({id(tensor): tensor for tensor in bases}.values())
    placed = [tensor for tensor in tensors if tensor.layout is torch.strided]
    samples = [] if blind else [sample for sample in map(sampled, placed) if sample is not None]
    return MadeFrom(
        tables=[table for table, _, _ in (*places, *parts)],
        names=[name for _, name, _ in (*places, *parts)],
        objects=[*tensors, *(part for _, _, part in parts)],
        tensors=tensors,
        counted=counted,
        versions=[] if blind else list(map(_version, counted)),
        placed=placed,
        pointers=list(map(Tensor.data_ptr, placed)),
        samples=samples,
        read=read(samples),
        modes=modes,
        blind=blind,
    )


def _parametrizations(region: Region) -> Iterator[tuple[dict[str, Any], str, object]]:
    """Tell where parametrizations stand: when one is taken out, its tensors go on standing in what it was."""
    for module in region.modules():
        if "parametrizations" in module._modules:  # TorchScript has no get
            lists = module._modules["parametrizations"]
            assert lists is not None
            yield module._modules, "parametrizations", lists
            for part in lists.modules():
                yield from ((part._modules, name, child) for name, child in part._modules.items())


def _is_steady(module: nn.Module) -> bool:
    """Tell whether a module does the same in train mode.

    Those of torch do, but for norms that count and for dropout; and so do ours that only have tensors or multiply.
    """
    if type(module) in (QuantizedWeight, Grid, Kernels, WeightOnlyLinear):
        return True
    if isinstance(module, (_NormBase, _DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)):
        return False
    return type(module).__module__.startswith("torch.nn.modules.")


def called_modules(region: Region) -> list[nn.Module]:
    """Return the region and the modules that its graph calls, without kernels, which run no hooks."""
    found: list[nn.Module] = [region]
    for node in region.graph.nodes:
        if node.op == "call_module":
            module = region.get_submodule(str(node.target))
            inside = called_modules(module) if isinstance(module, Region) else module.modules()
            found += [part for part in inside if not isinstance(part, Kernel)]
    return found
