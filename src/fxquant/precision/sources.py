"""The rounded tensors of a calibrated model: what noise each makes at the outputs, and which ops read it.

prepared model  ->  decided, all scales fixed, rounding taken out  ->  one pass with gradients (attribute.py)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.config.qconfig import DYNAMIC
from fxquant.config.spec import Spec
from fxquant.engines.engine import Engine
from fxquant.flows.decide import decide
from fxquant.graph.amendments import Amendments, Place
from fxquant.graph.nodes import TensorInfo, full_path
from fxquant.graph.notes import Note, decision_of, note_of
from fxquant.graph.region import Region, origin_of, preparation_of, regions
from fxquant.numerics import statistics
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.ranges import tensor_range
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.ops.table import OPS, Role
from fxquant.precision.attribute import NOW, Noise, Rounds, attribute
from fxquant.quantize_fx import freeze
from fxquant.tuning.space import product_of

AT_RUN_TIME, WIDE = "dynamic", "int16"  # names of grids, as NOW; the others are changes of a spec
RANGES: dict[str, dict[str, Any]] = {
    "minmax": {"observer": "minmax"},
    "histogram": {"observer": "histogram"},
    "percentile 99.9": {"observer": "percentile", "percentile": 99.9},
    "percentile 99.99": {"observer": "percentile", "percentile": 99.99},
    "percentile 99.999": {"observer": "percentile", "percentile": 99.999},
    "entropy": {"observer": "entropy"},
}
MATTERS = 0.01  # of all noise: what makes less is left alone
LOOKED_AT = 24  # sources of which other grids are tried
SAMPLES = 4  # that gradients are taken of: they hold what a pass computes
_PER_VALUE = 16.0  # multiply-adds that the rounding of a value, or a float op on it, is about worth


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """An op that reads a rounded tensor. `work` are its multiply-adds in one call, `values` the numbers that it makes.

    `dynamic`: kernels find the range of its input at run time, since its channels lie last.
    """

    place: Place
    path: str
    kind: str
    status: str
    weighted: bool
    dynamic: bool
    work: float
    values: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A rounded tensor as a source of noise: that at the outputs by grid, as a share of their power.

    `place` is its quantizer. Of a weight, the readers are the ops that it belongs to; of a tensor that only float ops
    read, the op that makes it, since that rounds it.
    """

    name: str
    place: Place
    spec: Spec
    is_weight: bool
    readers: tuple[Reader, ...]
    noise: Mapping[str, float]
    calls: float


@torch.no_grad()
def find_sources(
    prepared: nn.Module,
    batches: Sequence[object],
    *,
    engine: Engine,
    amendments: Amendments,
    outputs: Sequence[str],
    wide: bool,
    chosen: bool = False,
) -> list[Source]:
    """Return the sources of a calibrated model as it would be converted, in the order of the model.

    Without `chosen`, weights whose integers an algorithm chooses are none: they make far less noise than the nearest,
    which it would be judged by.
    """
    decided = decide(prepared, engine=engine, amendments=amendments)
    left_out = False
    for _, region in regions(decided):
        left_out = left_out or (not chosen and any(each.chooses_weights for each in preparation_of(region).algorithms))
        preparation_of(region).algorithms = ()  # what they do to weights and biases would be measured as noise
    frozen = freeze(decided)
    found = {
        source.name: (module, source)
        for module, source in _sources(decided, frozen)
        if not (left_out and source.is_weight)
    }
    rounding = {name: (module, _as_it_is(module)) for name, (module, _) in found.items()}

    def measured(some: Sequence[object]) -> dict[str, Noise]:
        with left_as_it_was(frozen):
            return attribute(
                frozen,
                rounding,
                some,
                outputs,
                lambda noise: {name: _grids(*found[name], wide) for name in _worst(noise, found)},
            )

    try:
        noise = measured([smaller(batch) for batch in batches])
    except Exception:  # the size of a batch is part of the graph, or of the code around it
        noise = measured(batches)
    known = _is_known(noise)
    return [_measured(source, noise[name], known, len(batches)) for name, (_, source) in found.items()]


def _worst(noise: Mapping[str, Noise], found: Mapping[str, tuple[nn.Module, Source]]) -> list[str]:
    """Return the activations of which other grids are tried."""
    known = _is_known(noise)
    own = {name: _of(each, known)[NOW] for name, each in noise.items()}
    least = MATTERS * sum(own.values())
    worst = [name for name in own if own[name] > least and not found[name][1].is_weight]
    return sorted(worst, key=lambda name: -own[name])[:LOOKED_AT]


def _is_known(noise: Mapping[str, Noise]) -> bool:
    return sum(each.by_grid[NOW] for each in noise.values()) > 0


def _of(noise: Noise, known: bool) -> Mapping[str, float]:
    """At the outputs, where gradients tell; else at the tensor itself."""
    return noise.by_grid if known else noise.own


def _measured(source: Source, noise: Noise, known: bool, count: int) -> Source:
    return Source(
        name=source.name,
        place=source.place,
        spec=source.spec,
        is_weight=source.is_weight,
        readers=source.readers,
        noise=_of(noise, known),
        calls=noise.calls / max(count, 1),
    )


def smaller(batch: object) -> object:
    """Return the first samples of a batch, if all its tensors have one row for each; else the batch."""
    sizes = {int(leaf.shape[0]) if leaf.dim() else 0 for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)}
    if len(sizes) != 1 or max(sizes) <= SAMPLES:
        return batch
    return tree_map(lambda leaf: leaf[:SAMPLES] if isinstance(leaf, Tensor) else leaf, batch)


def _sources(decided: nn.Module, frozen: nn.Module) -> Iterator[tuple[nn.Module, Source]]:
    rounding = dict(regions(frozen))
    for path, region in regions(decided):
        other, at = rounding[path], origin_of(region).path
        readers = dict(_readers(region, at))
        container = preparation_of(region).quantizer_path
        quantizers = other.get_submodule(container).named_children() if container else ()
        for name, module in quantizers:
            own = tuple(reader for reader, note in readers.values() if name in note.inputs)
            own = own or tuple(reader for reader, note in readers.values() if name == note.output)  # float ops read it
            if isinstance(module, FakeQuant) and module.state == "frozen" and own:
                yield module, _source(f"{path}.{container}.{name}", (at, name), module.spec, own)
        for name, module in other.named_modules():
            if type(module) is QatBlock:
                own = tuple(readers[node.name][0] for node in region.graph.nodes if node.target == name)
                label = f"{path}.{name}".lstrip(".")
                if own:
                    yield module.weight_fq, _source(label, (at, name), module.weight_fq.spec, own, is_weight=True)


def _source(name: str, place: Place, spec: Spec, readers: tuple[Reader, ...], is_weight: bool = False) -> Source:
    return Source(name=name, place=place, spec=spec, is_weight=is_weight, readers=readers, noise={}, calls=0.0)


def _readers(region: Region, at: str) -> Iterator[tuple[str, tuple[Reader, Note]]]:
    """Yield the quantized ops of a decided region by node, with their notes."""
    for node in region.graph.nodes:
        note, op, decision = note_of(node), OPS.of_node(node, region), decision_of(node)
        if note is None or op is None or decision is None:
            continue
        info = node.meta.get("tensor")
        values = float(math.prod(info.shape)) if isinstance(info, TensorInfo) else 1.0
        work = product_of(region, node, op).macs if op.role is Role.COMPUTE else 0.0
        reader = Reader(
            place=(at, node.name),
            path=full_path(region, node),
            kind=op.kind,
            status=decision.status,
            weighted=note.weight is not None,
            dynamic=note.weight is not None and op.channels_at == -1,
            work=work + _PER_VALUE * values,
            values=values,
        )
        yield node.name, (reader, note)


def _grids(module: nn.Module, source: Source, wide: bool) -> dict[str, Rounds]:
    """Other ways to round the tensor of a source, by what might be changed."""
    assert isinstance(module, FakeQuant)
    found: dict[str, Rounds] = {}
    if source.spec.observer == "histogram" and module.observer is not None:
        changes = {**RANGES, **({WIDE: {"bits": 16, "observer": "minmax"}} if wide else {})}
        for name, change in changes.items():
            spec = source.spec.with_(**change)
            if spec == source.spec:  # as it is
                continue
            other = FakeQuant(spec, module.name)
            statistics.recall(other, [module.observer])
            other.freeze()
            found[name] = _fixed(other)
        if all(reader.dynamic for reader in source.readers):
            found[AT_RUN_TIME] = functools.partial(_round_dynamic, DYNAMIC)
    return found


def _as_it_is(module: nn.Module) -> Rounds:
    rounds: Rounds = functools.partial(type(module).forward, module)
    return rounds


def _fixed(quantizer: FakeQuant) -> Rounds:
    scale, zero_point, spec = quantizer.scale, quantizer.zero_point, quantizer.spec
    return lambda x: fake_quantize(x, scale, zero_point, spec)


def _round_dynamic(spec: Spec, x: Tensor) -> Tensor:
    return fake_quantize(x, *choose_qparams(*tensor_range(x, spec), spec), spec)
