"""Smooth what layer norms give to linears, as strongly as these lose least by on inputs that calibration kept.

    loss(a) = sum over linears of |Q(s x) Q(W / s)^T - x W^T|^2 / |x W^T|^2        s_c = w_c^(1 - a) / x_c^a

The factors go into the norm. Where others take its output as well, as along a residual, they are a product of its own
before the linears, in float as the norm is. No smoothing at all is one of the tries.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from fxquant.algorithms.scale_group import put
from fxquant.config.spec import Spec
from fxquant.graph.context import Context
from fxquant.graph.interpret import PlainInterpreter
from fxquant.graph.nodes import reads_size
from fxquant.graph.notes import remark
from fxquant.graph.paths import free_path
from fxquant.graph.region import Region, preparation_of
from fxquant.graph.tensor_users import count_users, is_sole_user
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.sample import Sample
from fxquant.numerics.observers.watcher import Watcher
from fxquant.numerics.ranges import tensor_range
from fxquant.numerics.statistics import Statistics
from fxquant.numerics.weights.weight_range import weight_qparams
from fxquant.ops.table import activation_nodes
from fxquant.passes.candidates import choice_of
from fxquant.passes.look_again import kept_inputs, look_again

STRENGTHS = (0.3, 0.5, 0.7, 0.85)
_ROWS = 512  # of a norm's output that are tried on
_LEAST = 1e-2  # of the largest: what a smaller range counts as
_WORTH = 0.8  # of the loss, which smoothing has to leave at most


def has_norms(region: Region) -> bool:
    """Tell whether there is a layer norm that could be smoothed."""
    return any(_is_norm(region, node) for node in region.graph.nodes)


@torch.no_grad()
def smooth_norms(region: Region, context: Context, linears: Sequence[fx.Node]) -> None:
    """Smooth the inputs of these linears that come from layer norms, where that pays."""
    groups = _groups(region, context, linears)
    seen = _outputs(region, set(groups))
    changed: set[str] = set()
    for norm, takers in groups.items():
        factors, left = _best(region, seen[norm], takers) if norm in seen else (None, 1.0)
        if factors is None:
            continue
        for node in takers:
            weight = region.get_submodule(str(node.target)).weight
            assert isinstance(weight, Tensor)
            put(region.get_submodule(str(node.target)), "weight", weight.detach() / factors.to(weight))
            span = f"{float(factors.min()):.2g} to {float(factors.max()):.2g}"
            remark(node, f"input smoothed by {span}: {left:.0%} of the loss at its output is left")
        changed.add(_scale(region, norm, takers, factors))
    look_again(region, changed)


def _is_norm(region: Region, node: fx.Node) -> bool:
    if node.op != "call_module":
        return False
    module = region.get_submodule(str(node.target))
    return type(module) is nn.LayerNorm and len(module.normalized_shape) == 1


def _groups(region: Region, context: Context, linears: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Layer norms with the linears that take what they make, all of them called once, and with tensors of their own."""
    calls = Counter(str(node.target) for node in region.graph.nodes if node.op == "call_module")
    users = count_users(region)
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in linears:
        op = context.ops.of_node(node, region)
        source = activation_nodes(node, op)[0] if op is not None else node
        if not _is_norm(region, source) or source.meta.get("mutated") or _specs(node)[0].granularity != "per_tensor":
            continue
        modules = [region.get_submodule(str(each.target)) for each in (node, source)]
        if calls[str(node.target)] == 1 and all(is_sole_user(module, users) for module in modules):
            found.setdefault(source, []).append(node)
    return found


def _outputs(region: Region, norms: set[fx.Node]) -> dict[fx.Node, Tensor]:
    """Some rows of what each norm made, over the calls that calibration kept."""
    calls, found = kept_inputs(region) if norms else [], dict[fx.Node, list[Tensor]]()
    for values in calls:
        runner = _Keeping(region, norms, max(1, _ROWS // len(calls)))
        runner.run(*values, enable_io_processing=False)
        for node, rows in runner.kept.items():
            found.setdefault(node, []).append(rows)
    return {node: torch.cat(rows) for node, rows in found.items()}


class _Keeping(PlainInterpreter):
    """Keeps rows of some tensors, spread over all of them."""

    def __init__(self, region: Region, nodes: set[fx.Node], rows: int) -> None:
        super().__init__(region)
        self.nodes, self.rows, self.kept = nodes, rows, dict[fx.Node, Tensor]()

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if n in self.nodes and isinstance(value, Tensor):
            flat = value.detach().float().flatten(0, -2)
            self.kept[n] = flat[:: max(1, len(flat) // self.rows)][: self.rows].clone()
        return value


def _best(region: Region, x: Tensor, takers: Sequence[fx.Node]) -> tuple[Tensor | None, float]:
    """Return the factors that leave least of the loss, and how much; None if no smoothing is as good."""
    weights = [region.get_submodule(str(node.target)).weight for node in takers]
    values = [weight.detach().float() for weight in weights if isinstance(weight, Tensor)]
    specs = [_specs(node) for node in takers]
    wanted = [x @ weight.t() for weight in values]
    columns = torch.stack([weight.abs().amax(0) for weight in values]).amax(0)
    tops = [each.clamp_min(_LEAST * float(each.max()) or 1.0) for each in (x.abs().amax(0), columns)]

    def loss(factors: Tensor) -> float:
        total = 0.0
        for weight, (activation, spec), true in zip(values, specs, wanted, strict=True):
            scaled, columns = x * factors, weight / factors
            rounded = fake_quantize(scaled, *choose_qparams(*tensor_range(scaled, activation), activation), activation)
            made = rounded @ fake_quantize(columns, *weight_qparams(columns, spec, "weight"), spec).t()
            total += float((made - true).square().sum() / true.square().sum().clamp_min(1e-30))
        return total

    before = loss(torch.ones_like(tops[0]))
    tried = [tops[1] ** (1 - strength) / tops[0] ** strength for strength in STRENGTHS]
    tried = [factors / factors[tops[0].argmax()] for factors in tried]  # the widest channel keeps its range
    left, best = min(((loss(factors), index) for index, factors in enumerate(tried)), default=(before, 0))
    return (tried[best], left / before) if left < _WORTH * before else (None, 1.0)


def _specs(node: fx.Node) -> tuple[Spec, Spec]:
    choice = choice_of(node)
    assert choice is not None and choice.qconfig is not None
    activation, weight = choice.qconfig.input_spec(0), choice.qconfig.weight
    assert activation is not None and isinstance(weight, Spec)
    return activation.stored(), weight.stored()


def _scale(region: Region, norm: fx.Node, takers: Sequence[fx.Node], factors: Tensor) -> str:
    """Scale what the takers of a norm get, and give the name of that tensor."""
    module = region.get_submodule(str(norm.target))
    calls = sum(node.target == norm.target for node in region.graph.nodes if node.op == "call_module")
    if calls == 1 and module.weight is not None and all(user in takers or reads_size(user) for user in norm.users):
        for name in ("weight", "bias"):
            value = module._parameters.get(name)
            if value is not None:
                put(module, name, value.detach() * factors.to(value))
        return norm.name
    path = free_path(region, f"{norm.name}_factors")
    region.register_buffer(path, factors)
    with region.graph.inserting_after(norm):
        given = region.graph.get_attr(path)
    with region.graph.inserting_after(given):
        made = region.graph.create_node(
            "call_function", operator.mul, (norm, given), name=f"{norm.name}_smoothed", type_expr=None
        )
    made.meta.update({key: norm.meta[key] for key in ("scope", "where", "tensor", "choice") if key in norm.meta})
    for node in takers:
        node.replace_input_with(norm, made)
    _watch_as(region, norm.name, made.name)
    return made.name


def _watch_as(region: Region, old: str, new: str) -> None:
    """Have a new tensor seen in every way in which another was."""
    preparation = preparation_of(region)
    kept = region.get_submodule(preparation.statistics_path)
    assert isinstance(kept, Statistics)
    watched = dict(preparation.watched or {})
    for name, module in list(kept.items()):
        if watched.get(name) == (old,) and not isinstance(module, Sample):
            other = new + name.removeprefix(old)
            assert isinstance(module, Watcher | FakeQuant)
            kept[other] = module.fresh() if isinstance(module, Watcher) else FakeQuant(module.spec, new)
            watched[other] = (new,)
    preparation.watched = watched
