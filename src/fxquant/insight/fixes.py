"""What would make a quantized model better, tried on it: each with the signal-to-noise ratio of the outputs then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from fxquant.graph.nodes import full_path
from fxquant.graph.notes import decision_of
from fxquant.graph.region import regions
from fxquant.insight.comparison import Comparison
from fxquant.insight.relax import Change, Kernel, float_outputs, kernels, operands, output_sqnr, with_followers
from fxquant.insight.sides import Sides
from fxquant.ops.table import OPS

LEAST = 0.1  # dB, from which a kernel is one of some that are put in float together
WORTH = 0.5  # dB, from which a gain is worth a line
Ask = Callable[[Change], float]
_ENOUGH = 3  # kernels that are put in float together


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelGain:
    """One kernel alone in float: the outputs' SQNR with it, and how much more that is. `path` names its first op."""

    kernel: Kernel
    path: str
    kind: str
    sqnr: float
    gain: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """Something to do, as a sentence and as code, with the outputs' SQNR that it was measured to give."""

    title: str
    code: str
    sqnr: float
    gain: float
    change: Change


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """All that was tried: the outputs' SQNR as they are, kernels alone in float, what is worth doing; best first.

    `exact_weights` and `exact_activations` are the SQNR if only the others are rounded.
    """

    sqnr: float
    exact_weights: float
    exact_activations: float
    kernels: tuple[KernelGain, ...]
    fixes: tuple[Fix, ...]


def try_fixes(sides: Sides, found: Comparison, data: Sequence[object], *, most: int) -> Tried:
    """Try up to `most` kernels alone in float, the most promising first, then the best together and wider ranges."""
    nodes = kernels(sides)
    wanted = float_outputs(sides, data)

    def ask(change: Change) -> float:
        return output_sqnr(sides, data, change, wanted)

    base = ask(Change())
    gains = []
    for kernel in _promising(found, nodes)[:most]:
        value = ask(Change(floating=with_followers(sides, frozenset({kernel}))))
        path, kind = _name(sides, kernel, nodes[kernel])
        gains.append(KernelGain(kernel=kernel, path=path, kind=kind, sqnr=value, gain=value - base))
    gains.sort(key=lambda each: -each.gain)
    fixes = [*_in_float(sides, gains, ask, base), *_wider(found, ask, base)]
    fixes.sort(key=lambda fix: -fix.gain)
    alone = _weight_only(ask, base)
    return Tried(
        sqnr=base,
        exact_weights=ask(Change(exact="weights")),
        exact_activations=alone.sqnr,
        kernels=tuple(gains),
        fixes=tuple(fix for fix in (*fixes, alone) if fix.gain >= WORTH),
    )


def _promising(found: Comparison, nodes: dict[Kernel, list[fx.Node]]) -> list[Kernel]:
    """Kernels by the error that enters in them, and in what they read."""
    enters = {(row.region, row.node): row.enters for row in found}

    def weight(kernel: Kernel) -> float:
        names = {node.name for node in nodes[kernel]}
        for node in nodes[kernel]:
            names |= {source.name for source in operands(node)}
        return sum(enters.get((kernel[0], name), 0.0) for name in names)

    return sorted(nodes, key=lambda kernel: -weight(kernel))


def _name(sides: Sides, kernel: Kernel, nodes: list[fx.Node]) -> tuple[str, str]:
    region = dict(regions(sides.reference))[kernel[0]]
    decision = decision_of(nodes[0])
    assert decision is not None
    path = full_path(region, nodes[0])
    return path or nodes[0].name, decision.kind


def _in_float(sides: Sides, gains: list[KernelGain], ask: Ask, base: float) -> Iterable[Fix]:
    """Yield the best kernels with weights, one and some together: those have paths that `ignore` takes."""
    named = [each for each in gains if each.gain >= LEAST and _has_weight(each.kind)]
    if named:
        best = named[0]
        change = Change(floating=with_followers(sides, frozenset({best.kernel})))
        yield Fix(
            title=f"Leave {best.path} in float",
            code=f"fq.quantize(model, loader, ignore=[{best.path!r}])",
            sqnr=best.sqnr,
            gain=best.gain,
            change=change,
        )
    if len(named) > 1:
        some = named[:_ENOUGH]
        change = Change(floating=with_followers(sides, frozenset(each.kernel for each in some)))
        value = ask(change)
        paths = [each.path for each in some]
        yield Fix(
            title=f"Leave {', '.join(paths[:-1])} and {paths[-1]} in float",
            code=f"fq.quantize(model, loader, ignore={paths!r})",
            sqnr=value,
            gain=value - base,
            change=change,
        )


def _weight_only(ask: Ask, base: float) -> Fix:
    """What gains most, and costs most: it comes last. With weights as they are; weight-only may give them more bits."""
    change = Change(exact="activations")
    value = ask(change)
    return Fix(
        title="Round weights alone: the file stays as small, and the speed is that of float",
        code='fq.quantize(model, loader, mode="weight_only")',
        sqnr=value,
        gain=value - base,
        change=change,
    )


def _has_weight(kind: str) -> bool:
    op = OPS.by_kind.get(kind)
    return op is not None and op.has_weight


def _wider(found: Comparison, ask: Ask, base: float) -> Iterable[Fix]:
    """Ranges that reach all that this data has, where it leaves them."""
    narrow = [row for row in found.narrow() if row.calibrated is not None]
    if not narrow:
        return
    change = Change(ranges={(row.region, row.node): (row.low, row.high) for row in narrow})
    value = ask(change)
    names = ", ".join(row.path or row.node for row in narrow[:3])
    yield Fix(
        title=f"Calibrate with more data like this: {len(narrow)} ranges are too narrow ({names})",
        code="fq.quantize(model, more_data)",
        sqnr=value,
        gain=value - base,
        change=change,
    )
