"""Whether a converted model keeps to what a target takes: its graph is read, and held against the target's own table.

What is read is the QDQ graph itself: the grids at the operands, outputs, weights and biases of every op that is to run
in int8 (int8_sites.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fxquant.config.limits import Grids, Position
from fxquant.config.spec import Spec
from fxquant.config.target import Target, bias_form
from fxquant.errors import StageError
from fxquant.export.encodings import Encoding
from fxquant.export.reference import reference_of
from fxquant.graph.check_model import refuse_other
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.numerics.affine import choose_qparams
from fxquant.numerics.positions.measure import measured, terms
from fxquant.ops.table import OPS, Op, Role, activation_nodes
from fxquant.passes.pool_window import pool_window
from fxquant.passes.read_op import mean_axes, module_of
from fxquant.tables.int8_sites import Site, groups_of, is_quantize, sites
from fxquant.tables.out_of_form import not_in_form
from fxquant.targets import by_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """Something that a target forbids: which rule of it (a field of Target), at which node, and what it found."""

    region: str
    node: str
    kind: str
    rule: str
    found: str

    def __str__(self) -> str:
        where = f"{self.region}.{self.node}" if self.region else self.node
        return f"{where} ({self.kind}): {self.rule}: {self.found}"


def check_target(model: nn.Module, target: Target | str) -> tuple[Violation, ...]:
    """Return what in a converted model the target forbids; empty if there is nothing.

    Example:
        >>> fq.check_target(fq.quantize(model, loader, target="tflite", engine="reference"), "tflite")
        ()
    """
    refuse_other(model, "check_target")
    if any(stage_of(region) is not Stage.CONVERTED for _, region in regions(model)) or not any(regions(model)):
        raise StageError("check_target needs a model from convert_fx or quantize. Convert it first.")
    hardware = by_name(target)
    found = []
    for path, region in regions(reference_of(model, "check_target")):
        for site in sites(region):
            found += [
                Violation(region=path, node=site.node.name, kind=site.op.kind, rule=rule, found=text)
                for rule, text in _problems(site, hardware)
            ]
    return tuple(found)


def _problems(site: Site, target: Target) -> Iterator[tuple[str, str]]:
    kind, kernel = site.op.kind, target.kernel(site.op.kind)
    if kind not in target.kinds:
        yield "kinds", "it has no int8 kernel"
    if kind in target.split:
        yield "split", "it is to be written as smaller ops"
    if kernel.one_group and site.groups != 1:
        yield "kernels", f"{site.groups} groups, at most 1"
    for tensor in (*activation_nodes(site.node, site.op), site.node):
        info = tensor_info(tensor)
        for rule, shapes in (("shapes", target.shapes), ("kernels", kernel.shapes)):
            if info is not None and (why := shapes.refuse(info.shape)):
                yield rule, why
    taken, given = _activation_grids(site, target)
    for each in site.inputs:
        yield from _grid_problems(each, (("activations", taken), ("kernels", kernel.input)))
    yield from _grid_problems(site.output, (("activations", given), ("kernels", kernel.output)))
    yield from _grid_problems(site.weight, (("weights", target.weights), ("kernels", kernel.weight)))
    if site.has_bias and target.biases and _bias_form(site.bias) not in target.biases:
        yield "biases", f"a bias of {_bias_form(site.bias)}, not {' or '.join(target.biases)}"
    if why := not_in_form(site.region, site.node, site.op, site.tail, target):
        yield "rewrites", why
    if kernel.axes and mean_axes(site.node) != kernel.axes:
        yield "kernels", f"over axes {mean_axes(site.node)}, not {kernel.axes}"
    window = None if kernel.window is None else pool_window(site.node, site.op, module_of(site.region, site.node))
    if kernel.window is not None and window is not None and window[0] * window[1] > kernel.window:
        yield "kernels", f"a window of {window[0] * window[1]} values, at most {kernel.window}"
    yield from _group_problems(site, target)
    yield from _known_grids(site, target)
    for position in target.positions:
        yield from _position_problems(site, position)


def _activation_grids(site: Site, target: Target) -> tuple[Grids, Grids]:
    """Return what an op may take and give: scales by channel into depthwise convolutions, where the target has them."""

    def allowed(takers: list[tuple[Op, int]]) -> Grids:
        free = bool(takers) and all(op.kind in target.channel_scales and groups > 1 for op, groups in takers)
        return dataclasses.replace(target.activations, granularity=()) if free else target.activations

    rounded = [user for user in site.last.users if is_quantize(user)]
    takers = [taker for each in rounded for pair in each.users for taker in pair.users]
    ops = [(op, groups_of(taker, op)) for taker in takers if (op := OPS.of_node(taker, site.region)) is not None]
    return allowed([(site.op, site.groups)]), allowed(ops)


def _grid_problems(grid: Encoding | None, allowed: tuple[tuple[str, Grids], ...]) -> Iterator[tuple[str, str]]:
    for rule, grids in allowed if grid is not None else ():
        assert grid is not None
        if why := grids.refuse(_spec(grid, grids)):
            yield rule, why


def _spec(grid: Encoding, grids: Grids) -> Spec:
    """Return the spec that a grid is of. A float scale may happen to be a power of two."""
    low, high = int(str(grid["quant_min"])), int(str(grid["quant_max"]))
    axis, group = grid["axis"], grid["group_size"]
    whole = grid["position"] is not None
    return Spec(
        bits=int(str(grid["bits"])),
        signed=bool(grid["signed"]),
        symmetric=bool(grid["symmetric"]),
        granularity="per_group" if group is not None else "per_tensor" if axis is None else "per_channel",
        group_size=None if group is None else int(str(group)),
        scale="pow2" if whole and grids.scale == "pow2" else "float",
        rounding=str(grid["rounding"]),  # type: ignore[arg-type]
        limits=(low, high),
    )


def _bias_form(bias: Encoding | None) -> str:
    if bias is None:
        return bias_form(None)
    return f"int{bias['bits']}"


def _group_problems(site: Site, target: Target) -> Iterator[tuple[str, str]]:
    if not site.is_anchor:
        return
    for op in site.tail:
        if op.adds and site.op.kind not in target.residual:
            yield "residual", "a residual is added inside of its kernel"
        elif not op.adds and op.kind not in target.tails.get(site.op.kind, ()):
            yield "tails", f"{op.kind} is inside of its kernel"
    if target.integer_outputs and not any(is_quantize(user) for user in site.last.users):
        yield "integer_outputs", "its kernel writes float"


def _known_grids(site: Site, target: Target) -> Iterator[tuple[str, str]]:
    kind, inputs = site.op.kind, [grid for grid in site.inputs if grid is not None]
    if kind in target.signed and any(not (grid["symmetric"] and grid["signed"]) for grid in inputs):
        yield "signed", "an input is unsigned or has a zero point"
    alone = site.is_anchor and all(op.multiplies for op in site.tail)  # by a number
    shares = site.op.role is Role.SHARE or kind in target.share
    if alone and shares and site.output is not None and len(inputs) == len(site.inputs):
        grids = {(str(grid["scale"]), str(grid["zero_point"])) for grid in (*inputs, site.output)}
        if len(grids) > 1:
            yield "share", f"inputs and output are on {len(grids)} grids"
    if kind in target.ranges and alone and site.output is not None:
        spec = _spec(site.output, Grids()).with_(symmetric=target.activation.symmetric)
        low, high = (torch.tensor(end) for end in target.ranges[kind])
        scale, zero = choose_qparams(low, high, spec)
        if not _same(scale, site.output["scale"]) or not _same(zero, site.output["zero_point"]):
            yield "ranges", f"scale {site.output['scale']}, zero point {site.output['zero_point']}"


def _same(wanted: Tensor, found: object) -> bool:
    return bool(torch.isclose(wanted.double(), torch.as_tensor(found, dtype=torch.float64)).all())


def _position_problems(site: Site, position: Position) -> Iterator[tuple[str, str]]:
    if site.op.kind not in position.kinds or not site.is_anchor:
        return
    if position.before and (not site.tail or site.tail[-1].kind not in position.before):
        return
    if position.after and not position.after & site.makers:
        return
    asked = terms(position.measure)
    found = [_places(grid) for grid in site.inputs]
    inputs = [place for place in found if place is not None]
    o, w, b = _places(site.output), _places(site.weight), _places(site.bias)
    if ("i" in asked and (not inputs or len(inputs) < len(found))) or any(
        letter in asked and value is None for letter, value in (("o", o), ("w", w), ("b", b))
    ):
        return  # a float tensor has no position
    value = np.asarray(measured(position.measure, inputs, *(0 if each is None else each for each in (o, w, b))))
    low, high = position.bounds
    if value.min() < low or value.max() > high:
        ends = f"{value.min()}" if value.min() == value.max() else f"{value.min()} to {value.max()}"
        yield "positions", f"{position}: {ends}"


def _places(grid: Encoding | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    if grid is None:
        return None
    scale = np.asarray(grid["scale"], dtype=np.float64)
    places = -np.log2(scale)
    return None if not math.isfinite(float(places.sum())) else places
