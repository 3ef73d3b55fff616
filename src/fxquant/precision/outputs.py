"""The floating outputs of a float model and of a quantized one, by name, and how far they are apart.

Outputs may lie in tuples, lists, dicts and dataclasses: `[0]`, `logits`, `boxes[1]`. A single tensor is `output`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.flows.calibrate import run_batch
from fxquant.graph.boundary import boundary_of
from fxquant.graph.grid import QParams
from fxquant.graph.region import Region, origin_of
from fxquant.graph.tree import is_several
from fxquant.insight.measure import Errors
from fxquant.precision.varying import Varying

ONLY = "output"  # the name of an output that is a tensor by itself
HIDDEN = 5.0  # dB: an error more than half as large as what differs between samples, which a constant hides
_MEMORY = 64 << 20  # bytes of a float model's outputs that are kept at most


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputRow:
    """One floating output. `broken` counts values that are finite in the float model and not in the quantized one.

    `varying`: SQNR and cosine are of what differs between samples, since the error is large beside that, and a constant
    that all samples have would hide it. `why` says why it was not compared; then the numbers mean nothing.
    """

    name: str
    sqnr: float
    cosine: float
    max_error: float
    broken: int = 0
    why: str = ""
    varying: bool = False


@dataclass(slots=True)
class Outputs:
    """Errors of each output over all batches."""

    errors: dict[str, Errors] = field(default_factory=dict)
    varying: dict[str, Varying] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, wanted: object, found: object) -> None:
        """Take in what the two models gave for a batch."""
        others = dict(named_tensors(found))
        for name, tensor in named_tensors(wanted):
            other = others.get(name)
            if other is None:
                self.left_out[name] = "the quantized model has no such output"
            elif other.shape != tensor.shape:  # a detector may find another number of boxes
                self.left_out[name] = f"shapes differ: {tuple(tensor.shape)} and {tuple(other.shape)}"
            else:
                other = other.to(tensor.device)
                self.errors.setdefault(name, Errors()).add(tensor, other)
                self.varying.setdefault(name, Varying()).add(tensor, other)
                lost = int((torch.isfinite(tensor) & ~torch.isfinite(other)).sum())
                self.broken[name] = self.broken.get(name, 0) + lost

    def rows(self) -> tuple[OutputRow, ...]:
        """Return a row for each output."""
        names = dict.fromkeys((*self.errors, *self.left_out))
        return tuple(self._row(name) for name in names)

    def _row(self, name: str) -> OutputRow:
        found, why = self.errors.get(name, Errors()), self.left_out.get(name, "")
        if not why and not found.signal and not self.broken.get(name):
            why = "it is zero in the float model"
        differs = self.varying.get(name, Varying())
        hidden = differs.sqnr < min(HIDDEN, found.sqnr)
        return OutputRow(
            name=name,
            sqnr=differs.sqnr if hidden else found.sqnr,
            cosine=differs.cosine if hidden else found.cosine,
            varying=hidden,
            max_error=found.largest,
            broken=self.broken.get(name, 0),
            why=why,
        )


class Known:
    """The floating outputs of a float model by batch, copies of them, as long as they are small."""

    def __init__(self) -> None:
        self._by_batch: dict[int, dict[str, Tensor]] = {}
        self._bytes = 0

    def get(self, batch: int) -> object | None:
        """Return the outputs by name, if they are known."""
        return self._by_batch.get(batch)

    def keep(self, batch: int, outputs: object) -> None:
        """Keep what a model gave for a batch, unless that takes too much memory."""
        if batch in self._by_batch:
            return
        tensors = dict(named_tensors(outputs))
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if self._bytes + size <= _MEMORY:
            self._by_batch[batch] = {name: tensor.clone() for name, tensor in tensors.items()}
            self._bytes += size


def named_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the floating tensors of what a model returns, with their names."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield name or ONLY, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)  # of a named tuple
        for index, item in enumerate(value):
            own = f"{name}.{fields[index]}".lstrip(".") if fields is not None else f"{name}[{index}]"
            yield from named_tensors(item, own)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from named_tensors(getattr(value, each.name), f"{name}.{each.name}".lstrip("."))


def run_quantized(model: nn.Module, batch: object) -> object:
    """Call a quantized model with a batch of floats, and give floats back, also where its boundary is of integers."""
    if not isinstance(model, Region):
        return run_batch(model, batch)
    boundary = boundary_of(model)
    if not (boundary.inputs or boundary.outputs):
        return run_batch(model, batch)
    names = origin_of(model).input_names
    grids = {index: grid for index, grid in boundary.inputs.items() if isinstance(grid, QParams)}
    if isinstance(batch, Mapping):
        by_name = {names[index]: grid for index, grid in grids.items() if index < len(names)}
        given: object = {k: by_name[k].quantize(v) if k in by_name else v for k, v in batch.items()}
    else:
        items: list[Any] = list(batch) if is_several(batch) else [batch]
        given = tuple(grids[i].quantize(v) if i in grids else v for i, v in enumerate(items))
    found = run_batch(model, given)
    ends = {index: grid for index, grid in boundary.outputs.items() if isinstance(grid, QParams)}
    if isinstance(found, Tensor):
        return ends[0].dequantize(found) if 0 in ends else found
    if isinstance(found, (tuple, list)):
        return [ends[i].dequantize(v) if i in ends else v for i, v in enumerate(found)]
    return found
