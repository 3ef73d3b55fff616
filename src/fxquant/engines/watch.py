"""What a region was when something was made of it: a kept run, or a graph for another runtime."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fxquant.core import compat
from fxquant.core.graph import Region
from fxquant.engines.onednn_kernels import Kernel
from fxquant.numerics.counted import Counted


@dataclass(kw_only=True, slots=True)
class Watch:
    """Its weights and grids, its other tensors, the modes of its modules, and that no one listens in."""

    weights: list[tuple[Counted, int]]  # with their generation
    owners: list[tuple[dict[str, Any], str, Tensor]]  # where other tensors stand in the model
    versions: list[tuple[Tensor, int]]  # of tensors whose values were copied
    called: list[nn.Module]  # modules whose hooks would be run
    modes: list[tuple[nn.Module, bool]]  # those that do another thing in train mode, and whether they are in it
    changes: int = -1
    hooks: int | None = None

    def holds(self) -> bool:
        """Whether all is as it was. Few objects are touched: between two runs, none of them is in the caches."""
        if self.changes != Counted.changes:
            if any(weight.generation != generation for weight, generation in self.weights):
                return False
            self.changes = Counted.changes
        for table, name, tensor in self.owners:
            if table.get(name) is not tensor:
                return False
        for tensor, version in self.versions:
            if tensor._version != version:
                return False
        for module, training in self.modes:
            if module.training is not training:
                return False
        hooks = compat.hooks_made()
        if hooks is None or hooks != self.hooks:
            if any(module._forward_hooks or module._forward_pre_hooks for module in self.called):
                return False
            self.hooks = hooks
        return True

    def digest(self) -> int:
        """A checksum of all values, to tell in a copy whether it still has them."""
        kept = [tensor for _, _, tensor in self.owners]
        kept += [tensor for weight, _ in self.weights for tensor in (*weight.parameters(), *weight.buffers())]
        found = 0
        for tensor in kept:
            found = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, found)
        return found


def watch(region: Region, held: Iterable[Tensor] | None = None) -> Watch:
    """Watch a region. `held` are the tensors that are used as they are then; without it, all values were copied."""
    wanted = None if held is None else {id(tensor) for tensor in held}
    # quantized weights and grids count their changes
    others = [module for module in region.modules() if not isinstance(module, Counted)]
    tables = [table for module in others for table in (module._parameters, module._buffers)]
    owners = [
        (table, name, tensor)
        for table in tables
        for name, tensor in table.items()
        if tensor is not None and (wanted is None or id(tensor) in wanted)
    ]
    copied = [tensor for _, _, tensor in owners if held is None and not tensor.is_inference()]
    called = called_modules(region)
    return Watch(
        weights=[(part, part.generation) for part in region.modules() if isinstance(part, Counted)],
        owners=owners,
        versions=[(tensor, tensor._version) for tensor in copied],
        called=called,
        modes=[(module, module.training) for module in called if not _is_steady(module)],
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


def has_hooks(region: Region) -> bool:
    """Whether a call of the region would run a hook."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in called_modules(region))
