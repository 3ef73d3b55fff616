"""Graphs that a model already has, its own `fx.GraphModule`s and exported programs, traced node by node.

Running their generated code would lose what their nodes know: the modules around them and the lines of source. The
graph of an exported program holds for some sizes; these become a check. A batch size that the graph does not depend on
is no part of it (open_batch.py).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch
from torch import fx, nn
from torch.fx import _pytree as fx_pytree
from torch.fx.node import Argument, Target
from torch.utils import _pytree as pytree

from fxquant.capture.conditions import Condition
from fxquant.capture.guards import check_sizes
from fxquant.capture.symbolic.open_batch import holds_for_any_batch
from fxquant.graph import torch_compat
from fxquant.graph.paths import join_path

# wrappers of torch.export around part of a graph -> where their subgraph is among the arguments
_WRAPPERS: dict[object, int] = {
    torch.ops.higher_order.wrap_with_set_grad_enabled: 1,
    torch.ops.higher_order.wrap_with_autocast: 4,
}


def inline(
    tracer: fx.Tracer, module: fx.GraphModule, path: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Return what a graph module's graph computes, recorded by the tracer. `path` is where the module stands."""
    values = _flat_inputs(module, args, kwargs)
    if torch_compat.is_exported(module):
        _check_sizes(tracer, module, values)
    result = _Inline(tracer, module, path).run(*values, enable_io_processing=False)
    return module.graph.process_outputs(result)


def _flat_inputs(module: fx.GraphModule, args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
    info = getattr(module.graph._codegen, "pytree_info", None)
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    if info is None:
        return list(bound.arguments.values())
    names = list(bound.arguments)
    positional = info.in_spec.child(0).num_children  # the spec is that of (args, kwargs)
    given = [bound.arguments[name] for name in names]
    call = given[:positional], dict(zip(info.in_spec.child(1).context or (), given[positional:], strict=True))
    flat: list[Any] = fx_pytree.tree_flatten_spec(call, info.in_spec)
    return flat


def _check_sizes(tracer: fx.Tracer, module: fx.GraphModule, values: list[object]) -> None:
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    pairs = [(n, v) for n, v in zip(nodes, values, strict=True) if isinstance(v, fx.Proxy)]
    known = [(n.meta.get("val"), v) for n, v in pairs if isinstance(n.meta.get("val"), torch.Tensor)]
    any_batch = len(known) == len(values) and holds_for_any_batch(module)
    found: list[Condition] = []
    first: dict[Any, tuple[int, int]] = {}
    ranges = getattr(module, "range_constraints", None) or {}
    for i, (val, _) in enumerate(known):
        for dim, size in enumerate(val.shape):
            here = ("size", i, dim)
            if isinstance(size, int) and not dim and any_batch:
                if i:
                    found.append(("==", here, ("size", 0, 0)))
                continue
            if isinstance(size, int):
                found.append(("==", here, size))
                continue
            symbol = size.node.expr
            if symbol in first:
                found.append(("==", here, ("size", *first[symbol])))
                continue
            first[symbol] = (i, dim)
            bounds = ranges.get(symbol)
            for op, bound in ((">=", getattr(bounds, "lower", None)), ("<=", getattr(bounds, "upper", None))):
                if bound is not None and bound.is_Integer:
                    found.append((op, here, int(bound)))
    if found:
        tensors = tuple(value.node for _, value in known)
        names = tuple(value.node.name for _, value in known)
        tracer.create_node("call_function", check_sizes, (tensors, names, tuple(found)), {})


class _Inline(fx.Interpreter):
    def __init__(self, tracer: fx.Tracer, module: fx.GraphModule, path: str) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.tracer, self.path = tracer, path

    def run_node(self, n: fx.Node) -> object:
        if n.op == "call_module" and torch_compat.is_guards(self.fetch_attr(str(n.target))):
            return None
        with _within(self.tracer, self.path, n):
            return super().run_node(n)

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        at = _WRAPPERS.get(target)
        if at is not None and not (at == 4 and args[2]):
            graph: Any = args[at]
            return _Inline(self.tracer, graph, self.path).run(*args[at + 1 :], enable_io_processing=False)
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, fx.Proxy) for leaf in leaves):
            return self.tracer.create_proxy("call_function", target, args, kwargs)
        return super().call_function(target, args, kwargs)


@contextlib.contextmanager
def _within(tracer: fx.Tracer, path: str, node: fx.Node) -> Iterator[None]:
    """New nodes get the module stack of this one, below `path`."""
    stack: Any = getattr(tracer, "module_stack", None)
    entries = node.meta.get("nn_module_stack") or {}
    if stack is None or not entries:
        yield
        return
    added = []
    for key, (inner, cls) in entries.items():
        if inner and (name := f"{path}/{key}") not in stack:
            stack[name] = (join_path(path, inner.split("@")[0].removeprefix("L['self'].")), cls)
            added.append(name)
    try:
        yield
    finally:
        for name in added:
            stack.pop(name, None)


def is_graph(module: nn.Module) -> TypeGuard[fx.GraphModule]:
    """Tell whether a module is to be inlined: its forward is the code of its graph."""
    own: Callable[..., Any] | None = module.__dict__.get("forward")
    return isinstance(module, fx.GraphModule) and own is None
