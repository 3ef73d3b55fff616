"""Weights before fusing, after fusing and the scaling of channels, and after quantizing, by the user's module names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from fxquant.graph.paths import find_module, join_path
from fxquant.graph.region import origin_of, regions
from fxquant.insight.measure import Errors
from fxquant.insight.sides import Sides
from fxquant.numerics.weights.quantized_weight import QuantizedWeight


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRow:
    """One weight. Errors are of the quantized one against the fused one; `before`, `fused`, `quantized` the tensors."""

    path: str
    kind: str
    spec: str
    sqnr: float
    cosine: float
    max_error: float
    before: Tensor
    fused: Tensor
    quantized: Tensor

    @property
    def fused_gain(self) -> float:
        """How many times the largest value grew by the fusing of a batch norm, and the scaling of channels."""
        largest = float(self.before.abs().max())
        return float(self.fused.abs().max()) / largest if largest else 1.0


def weight_rows(sides: Sides) -> Iterator[WeightRow]:
    """Yield a row for each quantized weight that the float model has at the same path."""
    quantized, original = sides.reference, sides.original
    shown = {join_path(at, flat): at for at, region in regions(quantized) if (flat := origin_of(region).flat)}
    for path, holder in quantized.named_modules():
        if not isinstance(holder, QuantizedWeight):
            continue
        values, before = holder.dequantized("weight"), float_tensor(original, path, "weight")
        source = float_source(sides, holder, path)
        if source is None or before is None:
            continue
        after = float_tensor(source, path, "weight")
        assert after is not None
        errors = _error(after, values)
        yield WeightRow(
            path=shown.get(path, path),
            kind=holder.kind,
            spec=str(holder.spec),
            sqnr=errors.sqnr,
            cosine=errors.cosine,
            max_error=errors.largest,
            before=before,
            fused=after,
            quantized=values,
        )


def float_source(sides: Sides, holder: QuantizedWeight, path: str) -> nn.Module | None:
    """Return the float model, fused or not, whose weight was quantized; None if it has none like that."""
    before, after = float_tensor(sides.twin, path), float_tensor(sides.fused, path)
    if before is None or after is None or before.shape != holder.dequantized("weight").shape:
        return None
    pairs = [pair for region in sides.pairs.values() for pair in region.values() if pair.path == path]
    return sides.fused if any(pair.folded for pair in pairs) else sides.twin  # a rule may keep a batch norm


def float_tensor(model: nn.Module, path: str, name: str = "weight") -> Tensor | None:
    """Return a weight or bias of the float model, if it has it."""
    found = getattr(find_module(model, path), name, None)
    return found.detach() if isinstance(found, Tensor) and found.is_floating_point() else None


def _error(wanted: Tensor, found: Tensor) -> Errors:
    errors = Errors()
    errors.add(wanted, found)
    return errors
