"""What a search can choose among: recipes for the whole model, and the ops that may be lifted, with what they cost.

A cost is a prediction from the graph, so that it is the same on every machine and in every run: for "latency" the
multiply-adds, weighted by how fast the status runs; for "size" the bytes of the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, fx, nn

from fxquant.graph.nodes import TensorInfo, full_path
from fxquant.graph.region import Region, regions
from fxquant.ops.table import OPS, Op, Role
from fxquant.tables.explanation import Explanation
from fxquant.tuning.plan import Plan

# time of one multiply-add, of float's; measured on linears and convolutions with VNNI
TIME = {"float": 1.0, "int8": 0.35, "dynamic": 0.55, "weight_only": 1.05, "float16": 1.05}
BITS = {"float": 32, "float16": 16}  # of a weight that is not quantized

Key = tuple[str, str]  # (path, kind)


class Runs(NamedTuple):
    """The status of an op, and the bits of one of its weights."""

    status: str
    bits: int


FLOAT = Runs("float", 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """An op that can be lifted by itself."""

    path: str
    kind: str
    macs: float
    weights: float

    @property
    def key(self) -> Key:
        return self.path, self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Recipes, best guess first, and units in the order of the graph."""

    recipes: tuple[Plan, ...]
    units: tuple[Unit, ...]

    def cost(self, runs: Mapping[Key, Runs]) -> tuple[float, float]:
        """(time, size) as shares of the float model's."""
        macs, weights = sum(u.macs for u in self.units), sum(u.weights for u in self.units)
        time = sum(u.macs * TIME[runs.get(u.key, FLOAT).status] for u in self.units)
        size = sum(u.weights * runs.get(u.key, FLOAT).bits / 32 for u in self.units)
        return time / macs if macs else 1.0, size / weights if weights else 1.0


def runs_of(account: Explanation) -> dict[Key, Runs]:
    """Return what each op runs in; the slowest, where a module is called several times."""
    found: dict[Key, Runs] = {}
    for row in account:
        key, spec = (row.path, row.kind), re.match(r"[su](\d+)", row.weight)  # such as "s8 sym per_channel0 minmax"
        bits = BITS.get(row.status, int(spec.group(1)) if spec else 32)
        if key not in found or TIME.get(row.status, 1.0) > TIME.get(found[key].status, 1.0):
            found[key] = Runs(row.status, bits)
    return found


def find_units(prepared: nn.Module, account: Explanation) -> tuple[Unit, ...]:
    """Return the products (convolutions, linears, matmuls) that are quantized now, each path and kind once."""
    wanted = {(row.path, row.kind) for row in account if row.status != "float"}
    found: dict[Key, Unit] = {}
    for unit in _products(prepared):
        if unit.key not in wanted:
            continue
        before = found.get(unit.key)
        macs = unit.macs + (before.macs if before is not None else 0.0)
        found[unit.key] = Unit(path=unit.path, kind=unit.kind, macs=macs, weights=unit.weights)
    return tuple(found.values())


def _products(prepared: nn.Module) -> Iterator[Unit]:
    for _, region in regions(prepared):
        for node in region.graph.nodes:
            op = OPS.of_node(node, region) if node.op.startswith("call_") else None
            if op is not None and op.role is Role.COMPUTE:
                yield product_of(region, node, op)


def product_of(region: Region, node: fx.Node, op: Op) -> Unit:
    """Return what a convolution, linear or matmul costs."""
    info = node.meta.get("tensor")
    numbers = float(math.prod(info.shape)) if isinstance(info, TensorInfo) else 0.0
    module = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    weight = getattr(module, "weight", None)
    path = full_path(region, node)
    if isinstance(weight, Tensor):
        each = weight.numel() / max(weight.shape[op.channel_axis], 1)
        macs = 0.0 if op.is_lookup else numbers * each
        return Unit(path=path, kind=op.kind, macs=macs, weights=float(weight.numel()))
    return Unit(path=path, kind=op.kind, macs=numbers * _inner(region, node), weights=0.0)


def _inner(region: Region, node: object) -> float:
    """Return the length of the sums of a product without weights."""
    operands = getattr(node, "all_input_nodes", [])
    info = operands[0].meta.get("tensor") if operands else None
    return float(info.shape[-1]) if isinstance(info, TensorInfo) and info.shape else 1.0
