"""The numeric suite: a float and a quantized model side by side, batch by batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from fxquant.capture.run_untraced import Draws
from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.config.check_fields import check_arguments
from fxquant.errors import CalibrationError
from fxquant.flows.calibrate import peek, run_batch
from fxquant.flows.name_batch import naming_batch
from fxquant.graph.lowering import reference_graph
from fxquant.graph.notes import decision_of
from fxquant.graph.region import regions
from fxquant.insight.comparison import Comparison, LayerRow
from fxquant.insight.measure import Errors
from fxquant.insight.record import Measured, Record, recording
from fxquant.insight.sides import Sides, set_side_by_side
from fxquant.insight.twin import Pair
from fxquant.insight.weights import weight_rows
from fxquant.numerics.grid import Grid, why_off


def compare(
    float_model: nn.Module,
    quantized: nn.Module,
    data: Iterable[object],
    *,
    num_batches: int | None = None,
    concrete_args: Mapping[str, object] | None = None,
) -> Comparison:
    """Run both models on `data`, batches as for `calibrate`, and say tensor by tensor how far they are apart.

    `num_batches` of the data are run, all of it by default. `quantized` is calibrated, trained, frozen or converted, on
    any engine: it is its QDQ graph that is run. Rows go by the float model's module names. Both models stay as they
    are; memory does not grow with the number of batches. Where algorithms have scaled channels (equalization,
    smoothing), the float side is shown scaled alike.

        found = fq.compare(model, quantized, loader, num_batches=8)
        print(found)                       # where the error enters, how it grows, which ranges are too narrow
        found["layer1.0.conv1"].sqnr
        found.weight("conv1").fused, found.weight("conv1").quantized

    Example:
        >>> found = fq.compare(model, fq.quantize(model, loader), loader)
        >>> found.output_sqnr > 20
        True
    """
    check_arguments(compare, at_least=1, num_batches=num_batches, concrete_args=concrete_args)
    batch, data = peek(data)
    sides = set_side_by_side(float_model, quantized, batch, concrete_args or {}, "compare")
    return compare_sides(sides, itertools.islice(data, num_batches))


def compare_sides(sides: Sides, data: Iterable[object]) -> Comparison:
    """`compare` of models that are side by side already, on all of the data."""
    record, outputs, draws = Record(sides.pairs), Errors(), Draws(sides.original)
    count = 0
    with (
        torch.no_grad(),
        left_as_it_was(sides.original, sides.twin, sides.reference),  # the last shares tensors of the quantized model
        recording(sides.twin, sides.reference, record),
    ):
        for each in data:
            count += 1
            record.floats.clear()
            with naming_batch(count, each, sides.twin):
                with draws.at(count):
                    wanted = run_batch(sides.twin, each)
                if sides.original is not sides.twin:  # clips may tell the two apart
                    with draws.at(count):
                        wanted = run_batch(sides.original, each)
                with draws.at(count):
                    found = run_batch(sides.reference, each)
            add_outputs(outputs, wanted, found)
    if not count:
        raise CalibrationError("compare got no batches.")
    return Comparison(
        rows=tuple(_rows(record, sides.pairs)),
        weights=tuple(weight_rows(sides)),
        output_sqnr=outputs.sqnr if outputs.count else math.nan,
        batches=count,
        dead=tuple(_dead(sides.reference)),
    )


def add_outputs(errors: Errors, wanted: object, found: object) -> None:
    """Take in what both models return for a batch."""
    pairs = zip(_tensors(wanted), _tensors(found), strict=False)
    for one, other in pairs:
        if one.shape == other.shape:  # a detector may find another number of boxes
            errors.add(one, other)


def _tensors(value: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point())


def _rows(record: Record, pairs: Mapping[str, Mapping[fx.Node, Pair]]) -> Iterator[LayerRow]:
    nodes = {(path, node.name): (node, pair) for path, each in pairs.items() for node, pair in each.items()}
    measured = {at: found for at, found in record.measured.items() if found.errors.count}
    shares = {at: _ratio(found.own) for at, found in measured.items()}
    whole = sum(shares.values())
    for at, found in measured.items():
        yield _row(at[0], *nodes[at], found, shares[at] / whole if whole else 0.0)


def _ratio(errors: Errors) -> float:
    return errors.noise / errors.signal if errors.signal else 0.0


def _row(region: str, node: fx.Node, pair: Pair, found: Measured, enters: float) -> LayerRow:
    decision, rounding, ranges = decision_of(node), found.rounding, found.ranges
    return LayerRow(
        path=pair.path,
        node=node.name,
        region=region,
        kind=pair.kind,
        status=decision.status if decision is not None else "",
        where=str(node.meta.get("where", "")),
        sqnr=found.errors.sqnr,
        own_sqnr=found.own.sqnr if found.own.count else None,
        enters=enters,
        cosine=found.errors.cosine,
        max_error=found.errors.largest,
        clipped=rounding.clipped / rounding.count if rounding.count else None,
        collapsed=rounding.collapsed / rounding.count if rounding.count else None,
        low=ranges.low,
        high=ranges.high,
        calibrated=(rounding.low, rounding.high) if rounding.count else None,
        spread=ranges.spread,
        widened=ranges.widened,
        batches=ranges.batches,
    )


def _dead(reference: nn.Module) -> Iterator[tuple[str, str]]:
    """Quantizers without a grid, with the reason."""
    read = {
        f"{path}.{node.target}".lstrip(".").rpartition(".")[0]
        for path, region in regions(reference)
        for node in reference_graph(region).nodes
        if node.op == "get_attr"
    }
    for path, module in reference.named_modules():
        why = why_off(module.scale) if isinstance(module, Grid) else None
        if why is not None and path in read:
            yield path, why
