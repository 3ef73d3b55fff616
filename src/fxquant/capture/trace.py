"""Symbolic capture: run `forward` on proxies and write down what it calls.

Comes in: a clone of the user's tree (ours to change) and its slots. Goes out: a graph in which stock torch.nn modules
and the user's leaves are `call_module` nodes, and everything else is what the code between them called.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict

from fxquant.capture.inputs import Slot, add_placeholders, as_call
from fxquant.capture.origin import locate, reason, set_origins
from fxquant.core.graph import Region
from fxquant.errors import CaptureError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class _Proxy(fx.Proxy):
    """Records `x += y` and `x[i] = y`, which fx.Proxy turns into `x = x + y` and an error."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _record_in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return method


class _StateProxy(_Proxy):
    """A parameter or buffer: its sizes are plain numbers, so that code may branch on them."""

    def __init__(self, node: fx.Node, tracer: fx.Tracer, tensor: torch.Tensor) -> None:
        super().__init__(node, tracer)
        self.tensor = tensor

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def size(self, dim: int | None = None) -> Any:
        return self.tensor.size() if dim is None else self.tensor.size(dim)

    def dim(self) -> int:
        return self.tensor.dim()

    def numel(self) -> int:
        return self.tensor.numel()


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"):
    setattr(_Proxy, f"__{_name}__", _record_in_place(_name))


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(
        self, slots: tuple[Slot, ...], leaf_names: Collection[str], leaf_classes: Collection[type], via_call: bool
    ) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.slots = slots
        self.leaf_names = frozenset(leaf_names)
        self.leaf_classes = tuple(leaf_classes)
        # hooks on the root, or a forward put on the instance, run only if the module is really called
        self.traced_func_name = "__call__" if via_call else "forward"

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, (Region, *self.leaf_classes)) or module_qualified_name in self.leaf_names:
            return True
        if getattr(m, "padding_mode", "zeros") != "zeros":
            return False  # a pad of its own, then a conv: as torch.export sees it
        return type(m).__module__.startswith("torch.nn") and not isinstance(m, _CONTAINERS)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Buffers are proxies too: else `self.steps.add_(1)` would run on the user's own buffer while tracing."""
        if not isinstance(attr_val, torch.Tensor):
            return attr_val
        if not self.names:
            self.names = {id(t): name for name, t in (*self.root.named_parameters(), *self.root.named_buffers())}
        name = self.names.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            node = self.create_node("get_attr", name, (), {})
            parameter_proxy_cache[name] = _StateProxy(node, self, attr_val)
        return parameter_proxy_cache[name]

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        values = add_placeholders(self.create_proxy, self.slots)
        args, kwargs = as_call(self.slots, values)

        def call() -> Any:
            return root_fn(self.root, *args, **kwargs)

        return call, []

    def create_arg(self, a: Any) -> Any:
        # fx would make a plain dict of what is more than that: OrderedDict, the outputs of transformers
        if isinstance(a, dict) and type(a) not in (dict, immutable_dict):
            if dataclasses.is_dataclass(a):
                fields = {f.name: getattr(a, f.name) for f in dataclasses.fields(a)}
                kwargs = {name: self.create_arg(value) for name, value in fields.items() if value is not None}
                return self.create_node("call_function", type(a), (), kwargs)
            return self.create_node("call_function", type(a), (super().create_arg(dict(a)),), {})
        return super().create_arg(a)


def trace(
    tree: nn.Module, slots: tuple[Slot, ...], leaf_names: Collection[str], leaf_classes: Collection[type]
) -> fx.Graph:
    """Trace the tree symbolically; raise a `CaptureError` that names the user's line if that cannot be done."""
    _check_leaf_names(tree, leaf_names)
    via_call = "forward" in tree.__dict__ or any(getattr(tree, hooks) for hooks in _HOOKS)
    tracer = _Tracer(slots, leaf_names, leaf_classes, via_call)
    try:
        graph = tracer.trace(tree)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(_explain(error, tree)) from error
    set_origins(graph, tree)
    _own_constants(tree, graph)
    return graph


def _check_leaf_names(tree: nn.Module, leaf_names: Collection[str]) -> None:
    paths = [path for path, _ in tree.named_modules()]
    for name in leaf_names:
        if name not in paths:
            close = difflib.get_close_matches(name, paths, 1)
            hint = f" Closest: {close[0]!r}." if close else ""
            raise CaptureError(f"non-traceable module {name!r} is not in the model.{hint}")


def _explain(error: Exception, tree: nn.Module) -> str:
    where, path = locate(error, tree)
    leaf = f"mark module {path!r} as non-traceable (it stays in float), " if path else ""
    return (
        f"symbolic trace: {reason(error)} At {where or 'an unknown place'}. "
        f"What to do: {leaf}use method='export', or rewrite that line so that it does not depend on a tensor's values "
        "(torch.where for a branch)."
    )


def _own_constants(tree: nn.Module, graph: fx.Graph) -> None:
    """Tensors made inside `forward` are plain attributes after tracing; buffers move and save with the model."""
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            value = tree.__dict__.pop(str(node.target), None)
            if isinstance(value, torch.Tensor):
                tree.register_buffer(str(node.target), value.detach())
