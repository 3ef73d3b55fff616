"""The float model as graphs that go beside those of a quantized one, and which tensors of the two are the same.

A node of the quantized graph goes by the name of its tensor in the float graph, or else by the path, the kind and the
place among nodes with the same two. Where a batch norm was folded, the op stands for the norm.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx, nn

from fxquant.capture_with_config import capture_with_config
from fxquant.config.rules import Rules
from fxquant.flows.calibrate import as_example
from fxquant.flows.pipelines import FUSE
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.context import Context
from fxquant.graph.nodes import full_path, only_user, scope_path
from fxquant.graph.region import Region, origin_of, regions, set_origin, user_class
from fxquant.graph.run_passes import run_passes
from fxquant.graph.tree import Tree, is_several, set_tree
from fxquant.ops.table import OPS
from fxquant.passes.candidates import same_op
from fxquant.targets.defaults import get_default_qconfig_mapping

Place = tuple[str, str]  # the path of a region, the name of a node of the float graph


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A node of a quantized graph, and where its tensor is in the float graphs. `folded`: a batch norm is in it."""

    place: Place
    path: str
    kind: str
    folded: bool = False


def capture_float(model: nn.Module, batch: object, tree: Tree, concrete: Mapping[str, object]) -> nn.Module:
    """Return the float model, in eval mode, as regions. `tree` says how the quantized one is called."""
    args, kwargs = as_example(batch, model)
    if is_several(batch) and tree.num_inputs:
        args = tuple(batch[: tree.num_inputs])
    fixed = {**dict(tree.concrete), **concrete}
    rules = Rules(get_default_qconfig_mapping(), functools.partial(same_op, OPS))
    kwargs = {name: value for name, value in (kwargs or {}).items() if name not in fixed}
    found, _ = capture_with_config(model, args, kwargs, Context(rules=rules), method="auto", concrete=fixed)
    if isinstance(found, Region):
        set_origin(found, replace(origin_of(found), num_inputs=len(args)))
    else:
        set_tree(found, replace(tree, method="piecewise", num_inputs=tree.num_inputs or len(args)))
    return found


def folded(twin: nn.Module) -> nn.Module:
    """Return a copy of the float regions with batch norms folded where that can be."""
    made = clone_tree(twin)
    run_passes(made, FUSE, Context())
    return made


def pair_up(quantized: nn.Module, twin: nn.Module) -> dict[str, dict[fx.Node, Pair]]:
    """Return the nodes of each region of the quantized model that have a partner in the float one."""
    floats = dict(regions(twin))
    names = {path: {node.name: node for node in region.graph.nodes} for path, region in floats.items()}
    places = {key: (path, node) for path, region in floats.items() for node, key in _keys(region).items()}
    found: dict[str, dict[fx.Node, Pair]] = {}
    for path, region in regions(quantized):
        own = {str(node.meta.get("float_name", node.name)) for node in region.graph.nodes}
        pairs = found.setdefault(path, {})
        for node, key in _keys(region).items():
            other = names.get(path, {}).get(str(node.meta.get("float_name", node.name)))
            where = path
            if other is None or full_path(floats[path], other) != key[0]:
                where, other = places.get(key, ("", None))
            if other is not None:
                last = _after_norm(other, floats[where], own)
                pairs[node] = Pair(place=(where, last.name), path=key[0], kind=key[1], folded=last is not other)
    return found


def _after_norm(node: fx.Node, region: Region, names: set[str]) -> fx.Node:
    """Return the batch norm after an op, if the quantized graph has none there."""
    op, user = OPS.of_node(node, region), only_user(node)
    if op is None or not op.folds_norm or user is None or user.name in names:
        return node
    after = OPS.of_node(user, region)
    return user if after is not None and after.folds else node


def _keys(region: Region) -> dict[fx.Node, tuple[str, str, int]]:
    """(path, kind, place among its like) of each node that computes something, and of the inputs."""
    count: Counter[tuple[str, str]] = Counter()
    found = {}
    for node in region.graph.nodes:
        kind = kind_of(region, node)
        if kind:
            at = (full_path(region, node), kind)
            found[node] = (*at, count[at])
            count[at] += 1
    return found


def kind_of(region: Region, node: fx.Node) -> str:
    """Return what an op is, by the table or by its own name; nothing for what only moves tensors in and out."""
    if node.op == "placeholder":
        return "input"
    op = OPS.of_node(node, region)
    if op is not None:
        return op.kind
    if node.op == "call_module":
        return user_class(region.get_submodule(scope_path(node))).__name__
    ours = getattr(node.target, "namespace", "") in ("quantized_decomposed", "fxquant")
    if ours or node.op not in ("call_function", "call_method"):
        return ""
    return str(getattr(node.target, "__name__", node.target))
