"""Everything that a report shows, measured and as plain values."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.capture.run_untraced import Draws, evaluating
from fxquant.engines.choose import apply_engine
from fxquant.engines.machine_load import busy_note
from fxquant.engines.table import available_engines
from fxquant.errors import FxQuantError
from fxquant.flows.calibrate import as_example, run_batch
from fxquant.graph.lowering import unlower
from fxquant.graph.notes import decision_of
from fxquant.graph.own import copy_model
from fxquant.graph.region import engine_of, regions
from fxquant.graph.tree import tree_of
from fxquant.html_report.graphs import Drawn, draw_float, draw_int8, partners, short_where
from fxquant.insight.comparison import Comparison, LayerRow
from fxquant.insight.fixes import Fix, Tried
from fxquant.insight.histograms import BINS, count_values, histograms
from fxquant.insight.relax import changed
from fxquant.insight.sides import Sides
from fxquant.insight.twin import Place
from fxquant.tables.benchmark import Benchmark, benchmark
from fxquant.tables.explain import explain
from fxquant.tables.profile import Profile, Row, profile
from fxquant.tuning.judge import read_score

Plain = dict[str, Any]


def gather_graphs(sides: Sides, found: Comparison, data: Sequence[object]) -> Plain:
    """Both graphs; for each box its decisions, its numbers, how its values are distributed and its line of code."""
    left, right = draw_float(sides), draw_int8(sides)
    places = {(path, node.name): pair.place for path, pairs in sides.pairs.items() for node, pair in pairs.items()}
    rows = {(row.region, row.node): row for row in found}
    ranges = {places[at]: (row.low, row.high) for at, row in rows.items() if at in places}
    counts = histograms(sides.twin, data, ranges)
    decisions = {
        (path, node.name): decision_of(node) for path, region in regions(sides.reference) for node in region.graph.nodes
    }
    for box in right.boxes.values():
        at = [(box["region"], name) for name in box["nodes"]]
        box["decisions"] = [
            {"kind": made.kind, "status": made.status, "reason": made.reason, "rule": made.rule}
            for made in map(decisions.get, at)
            if made is not None
        ]
        box["status"] = box["decisions"][0]["status"] if box["decisions"] else ""
        box["tensors"] = [_tensor(rows[each], places[each], counts) for each in at if each in rows]
    for box in left.boxes.values():
        box["tensors"] = []
    for box in (*left.boxes.values(), *right.boxes.values()):
        box["code"], box["where"] = _source_line(box["where"]), short_where(box["where"])
        box["label"] = " + ".join(box["kinds"])
    _join(sides, left, right)
    return {"float": left.to_plain(), "int8": right.to_plain()}


def _join(sides: Sides, left: Drawn, right: Drawn) -> None:
    """Let each box know its partners, and the float boxes what is known of the int8 ones."""
    for one, other in partners(sides, left, right):
        for box, partner in ((left.boxes[one], other), (right.boxes[other], one)):
            if partner not in box.setdefault("partners", []):
                box["partners"].append(partner)
        left.boxes[one]["status"] = right.boxes[other]["status"]


def _tensor(row: LayerRow, place: Place, counts: dict[Place, list[int]]) -> Plain:
    return {
        "node": row.node,
        "path": row.path or row.node,
        "kind": row.kind,
        "sqnr": row.sqnr,
        "own": row.own_sqnr,
        "enters": row.enters,
        "cosine": row.cosine,
        "max_error": row.max_error,
        "clipped": row.clipped,
        "collapsed": row.collapsed,
        "low": row.low,
        "high": row.high,
        "calibrated": row.calibrated,
        "spread": row.spread,
        "counts": counts.get(place),
    }


def _source_line(where: str) -> str:
    """Return the text of the line, if the file is here."""
    name, _, number = where.rpartition(":")
    return linecache.getline(name, int(number)).strip() if number.isdigit() else ""


def gather_weights(found: Comparison) -> list[Plain]:
    """Each weight: its error, and how its values are distributed after fusing."""
    made = []
    for row in found.weights:
        low, high = float(row.fused.min()), float(row.fused.max())
        counts = count_values(row.fused, low, high) if low < high else torch.zeros(BINS)
        largest = row.fused.detach().abs().flatten(1).amax(1) if row.fused.dim() > 1 else row.fused.detach().abs()
        made.append(
            {
                "path": row.path,
                "kind": row.kind,
                "spec": row.spec,
                "shape": list(row.fused.shape),
                "sqnr": row.sqnr,
                "max_error": row.max_error,
                "fused_gain": row.fused_gain,
                "low": low,
                "high": high,
                "counts": [int(count) for count in counts],
                "channels": [float(largest.min()), float(largest.max())],
            }
        )
    return made


def gather_fixes(sides: Sides, tried: Tried, evaluate: Callable[[nn.Module], object] | None, most: int) -> list[Plain]:
    """Return what is worth doing; with an evaluation, the score that the best of it gives."""
    return [
        {"title": fix.title, "code": fix.code, "sqnr": fix.sqnr, "gain": fix.gain}
        | ({} if evaluate is None or number >= most else {"score": _score_with(sides, fix, evaluate)})
        for number, fix in enumerate(tried.fixes)
    ]


@torch.no_grad()
def _score_with(sides: Sides, fix: Fix, evaluate: Callable[[nn.Module], object]) -> float:
    with changed(sides, fix.change) as model:
        return float(read_score(evaluate(model)).value)


@torch.no_grad()
def gather_score(float_model: nn.Module, quantized: nn.Module, evaluate: Callable[[nn.Module], object]) -> Plain:
    """Return what the user's own metric says of both."""
    with evaluating(float_model):
        before = read_score(evaluate(float_model)).value
    return {"float": float(before), "int8": float(read_score(evaluate(quantized)).value)}


@torch.no_grad()
def agreement(sides: Sides, quantized: nn.Module, data: Sequence[object]) -> Plain | None:
    """Tell how often the largest of some outputs is the same, where a model returns a row of them for each sample."""
    same = every = 0
    draws = Draws(sides.original)
    for index, batch in enumerate(data):
        with draws.at(index):
            wanted = run_batch(sides.original, batch)
        with draws.at(index):
            found = run_batch(quantized, batch)
        if not (_is_logits(wanted) and _is_logits(found) and wanted.shape == found.shape):
            return None
        same += int((wanted.argmax(1) == found.argmax(1)).sum())
        every += len(wanted)
    return {"same": same, "every": every} if every else None


def _is_logits(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 2 and value.shape[1] > 1


def gather_speed(
    float_model: nn.Module, quantized: nn.Module, batch: object, engines: Iterable[str] | None, seconds: float
) -> Plain:
    """Times on engines, and of each native kernel; what could not be timed says why."""
    args, kwargs = as_example(batch, float_model)
    num_inputs = tree_of(quantized).num_inputs
    args = tuple(args)[: num_inputs or None] if isinstance(args, (tuple, list)) else (args,)
    made: Plain = {"inputs": [_shape(value) for value in (*args, *(kwargs or {}).values())]}
    with evaluating(float_model):
        times = benchmark(
            quantized,
            args,
            example_kwargs=kwargs,
            float_model=float_model,
            engines=_at_hand(quantized) if engines is None else engines,
            seconds=seconds,
            show=False,
        )
    made["threads"], made["rows"] = times.threads, _times(times)
    made["busy"] = busy_note(times.others)
    told = [*times.remarks()[: -1 if made["busy"] else None], *filter(None, [times.advice()])]
    made["advice"] = " ".join(line[:1].upper() + line[1:] for line in told)
    try:
        kernels = _profile(quantized, args, kwargs or {})
    except FxQuantError as error:
        return {**made, "kernels": [], "no_kernels": str(error)}
    return {**made, "kernels": [_kernel(row) for row in kernels], "machine": kernels.machine}


def _at_hand(quantized: nn.Module) -> list[str]:
    """Return the engine of a model, and those that run it as it is, without an export."""
    own = {engine_of(region) for _, region in regions(quantized)}
    return [engine.name for engine in available_engines() if engine.name in own | {"onednn", "native"}]


def _shape(value: object) -> str:
    return "×".join(map(str, value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _times(times: Benchmark) -> list[Plain]:
    return [
        {"name": row.name, "ms": row.timing.median, "low": row.timing.low, "high": row.timing.high}
        | {"speedup": row.speedup, "size": row.size, "memory": row.memory}
        for row in times
    ]


def _profile(quantized: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> Profile:
    if not any(engine.name == "native" for engine in available_engines()):
        raise FxQuantError("The time of each kernel is known of the native engine: pip install 'fxquant[native]'.")
    model = copy_model(quantized)
    if {engine_of(region) for _, region in regions(model)} != {"native"}:
        for _, region in regions(model):
            unlower(region)
        model = apply_engine(model, "native")
    return profile(model, *args, example_kwargs=kwargs, rounds=20, show=False)


def _kernel(row: Row) -> Plain:
    return {"kernel": row.kernel, "count": row.count, "ms": row.milliseconds, "share": row.share, "peak": row.of_peak}


def gather_account(quantized: nn.Module) -> Plain:
    """Return what runs in int8, what stayed in float, and why."""
    account = explain(quantized)
    rows = [
        {"path": row.path or row.node, "kind": row.kind, "why": row.reason, "where": short_where(row.where)}
        for row in account
        if row.status == "float"
    ]
    left = [
        {"path": each.path or "<root>", "kind": each.module, "why": each.reason, "where": short_where(each.where)}
        | {"hint": each.hint}
        for each in account.left
    ]
    quantized_ops, every = account.weighted()
    rules: dict[str, int] = {}
    for row in account:
        spec = row.reason.partition("; ")[0]  # without what is said of this op alone
        key = f"{row.rule or 'none'}: {spec}" if row.status != "float" and row.is_weighted else ""
        if key:
            rules[key] = rules.get(key, 0) + 1
    return {
        "summary": account.summary(),
        "counts": account.counts(),
        "weighted": [quantized_ops, every],
        "float": left + rows,
        "rules": rules,
        "engines": sorted({engine_of(region) for _, region in regions(quantized)}),
        "remarks": [list(each) for each in account.remarks],
    }
