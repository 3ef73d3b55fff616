"""Symbolic capture: run `forward` on proxies and write down what it calls.

Comes in: a clone of the user's tree (ours to change) and its slots. Goes out: a graph in which stock torch.nn modules
and the user's leaves are `call_module` nodes, and everything else is what the code between them called.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict
from torch.fx.node import Argument, Target

from fxquant.capture.guards import unpack
from fxquant.capture.inputs import add_placeholders, as_call
from fxquant.capture.reasons import Cause
from fxquant.capture.request import Request
from fxquant.capture.source_lines import locate, reason, reason_of, set_origins, users_line
from fxquant.capture.symbolic.concrete import (
    DataDependent,
    Refused,
    Values,
    fix_value,
    seeing_proxies,
    value_of,
)
from fxquant.capture.symbolic.given import Given, hand_on, parts_of
from fxquant.capture.symbolic.inline import inline, is_graph
from fxquant.capture.symbolic.look_inside import look_inside, takes_weights
from fxquant.capture.symbolic.proxies import Proxy, StateProxy
from fxquant.capture.symbolic.random_constants import DrawnWatch
from fxquant.capture.symbolic.wrap import intercepting, is_wrapped
from fxquant.capture.untouched.other_random import has_drawn, random_state
from fxquant.errors import CaptureError, Reason
from fxquant.graph import torch_compat
from fxquant.graph.region import Region

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_IN_PLACE = frozenset(
    (
        *("setitem", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"),
        *("__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__"),
    )
)


class _Tracer(fx.Tracer):
    def __init__(
        self,
        request: Request,
        via_call: bool,
        values: Values | None,
        lazy: bool,
        tried_again: bool,
        looks: bool,
    ) -> None:
        super().__init__()
        self.looks = looks  # for the module that draws random numbers outside of torch
        self.tried_again = tried_again  # if this trace fails
        self.lazy = lazy  # whether containers among the inputs are opened as far as code looks into them
        self.containers: set[int] = set()  # ids of those that were opened as a whole
        self.handed_on = False  # one of them was given to a call
        self.values = values
        self.thread = threading.get_ident()  # torch.fx asks us about the modules of all threads
        self.drawn = DrawnWatch(lambda: values is not None and values.running)
        self.drew: str | None = None  # the innermost one that did
        self.names: dict[int, str] = {}
        self.slots = request.slots
        self.leaf_names = frozenset(request.leaf_names)
        self.leaf_classes = tuple(request.leaf_classes)
        # hooks on the root, or a forward put on the instance, run only if the module is really called
        self.traced_func_name = "__call__" if via_call else "forward"

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if not node.stack_trace:  # that of a graph which is taken over
            node.meta["where"] = users_line()
        return node

    def create_proxy(
        self, kind: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any, **more: Any
    ) -> fx.Proxy:
        if self.lazy:
            args, kwargs = hand_on(args), hand_on(kwargs)
        if not isinstance(target, str) and kind == "call_function" and takes_weights(target, args, kwargs):
            try:
                return look_inside(self, lambda: target(*args, **kwargs))
            except Exception:
                if self.tried_again:  # with sizes, which is how it may be looked into
                    raise
        if _writes_to_constant(target, args, kwargs):
            raise self.refuse(Cause.CONSTANT)
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        if self.values is not None:
            example, data = self.values.evaluate(kind, target, args, kwargs)
            proxy.__dict__.update(example=example, data=data)
        return proxy

    def refuse(self, cause: Cause) -> Refused:
        refused = Refused(cause.because())
        self.__dict__.setdefault("refused", []).append(refused)  # the user's code may catch it
        return refused

    def let_go(self) -> None:
        """Forget the tree. torch leaves cycles with the tracer in them, so both would stay until they are collected."""
        self.__dict__.get("refused", []).clear()  # their tracebacks lead here
        for name in ("root", "submodule_paths", "tensor_attrs", "values", "names"):
            self.__dict__.pop(name, None)

    def _looks_away(self) -> bool:
        """Tell whether what runs is no part of the trace: another thread's model, or code that is tried on values."""
        running = self.values is not None and self.values.running
        return running or threading.get_ident() != self.thread

    def call_module(
        self, m: nn.Module, forward: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if self._looks_away():
            return forward(*args, **kwargs)
        if is_graph(m):
            path = self.path_of_module(m)

            def forward(*given: object, **named: object) -> object:
                return inline(self, m, path, given, named)

        if not self.looks:
            return super().call_module(m, forward, args, kwargs)
        before = random_state()
        found = super().call_module(m, forward, args, kwargs)
        if self.drew is None and has_drawn(before):
            self.drew = self.path_of_module(m)
        return found

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(fix_value(obj, "bool", bool, Cause.CONTROL_FLOW.because()))

    def iter(self, obj: fx.Proxy) -> Iterator[object]:
        items: Any = obj
        return iter([items[i] for i in range(fix_value(obj, "len", len, Cause.ITERATED.because()))])

    def keys(self, obj: fx.Proxy) -> Any:
        if isinstance(value_of(obj), dict):
            return fix_value(obj, "keys", list, Reason("the keys of a traced variable are not known"))
        return super().keys(obj)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, (Region, *self.leaf_classes)) or module_qualified_name in self.leaf_names or is_wrapped(m):
            return True
        if torch_compat.is_scripted(m):
            return True
        if "forward" in m.__dict__:
            return False  # it does not do what its class does
        if getattr(m, "padding_mode", "zeros") != "zeros":
            return False  # a pad of its own, then a conv: as torch.export sees it
        return type(m).__module__.startswith("torch.nn") and not isinstance(m, _CONTAINERS)

    def getattr(self, attr: str, attr_val: object, parameter_proxy_cache: dict[str, fx.Proxy]) -> object:
        """Buffers are proxies too: else `self.steps.add_(1)` would run on the user's own buffer while tracing."""
        if not isinstance(attr_val, torch.Tensor) or self._looks_away():
            return attr_val
        if not self.names:
            self.names = {id(t): name for name, t in (*self.root.named_parameters(), *self.root.named_buffers())}
        name = self.names.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            node = self.create_node("get_attr", name, (), {})
            parameter_proxy_cache[name] = StateProxy(node, self, attr_val)
        return parameter_proxy_cache[name]

    def create_args_for_root(
        self, root_fn: Callable[..., object], is_module: bool, concrete_args: object = None
    ) -> tuple[object, list[object]]:
        values = add_placeholders(self.create_proxy, self.slots, lazy=self.lazy)
        if not self.lazy:
            self.containers = {id(part) for value in values.values() for part in parts_of(value)}
        args, kwargs = as_call(self.slots, values)

        def call() -> object:
            if is_wrapped(self.root):
                return self.create_proxy("call_function", run_forward, (self.root, *args), kwargs)
            if is_graph(self.root) and self.traced_func_name == "forward":
                return inline(self, self.root, "", args, kwargs)
            return root_fn(self.root, *args, **kwargs)

        return call, []

    def call_wrapped(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> fx.Proxy:
        return self.create_proxy("call_function", function, args, kwargs)

    def create_arg(self, a: object) -> Argument:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Given):
            return self.create_arg(a.whole())
        if self.drawn.holds(a):
            raise self.refuse(Cause.DRAWN)
        self.handed_on |= id(a) in self.containers
        if a is self.root:
            return self.create_node("get_attr", "_self", (), {})  # see Region._self
        # fx would make a plain dict of what is more than that: OrderedDict, the outputs of transformers
        if isinstance(a, dict) and type(a) not in (dict, immutable_dict):
            if dataclasses.is_dataclass(a):
                fields = {f.name: getattr(a, f.name) for f in dataclasses.fields(a)}
                kwargs = {name: self.create_arg(value) for name, value in fields.items() if value is not None}
                return self.create_node("call_function", type(a), (), kwargs)
            return self.create_node("call_function", type(a), (super().create_arg(dict(a)),), {})
        try:
            return super().create_arg(a)
        except NotImplementedError as error:
            if isinstance(a, (tuple, list, dict, slice)):  # what is in it has been named
                raise
            raise _Unholdable(Cause.OBJECT.because(cls=f"{type(a).__module__}.{type(a).__qualname__}")) from error


def _writes_to_constant(target: Target, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Tell whether what is traced goes into a tensor that is not: `t = torch.zeros(4); t[0] = x`.

    A graph would have one tensor for all calls, with what this trace wrote to it.
    """
    out = kwargs.get("out")
    if any(isinstance(each, torch.Tensor) for each in (out if isinstance(out, (tuple, list)) else (out,))):
        return True
    name = str(getattr(target, "__name__", target))
    in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
    return in_place and bool(args) and isinstance(args[0], torch.Tensor)


class _Unholdable(NotImplementedError):
    """A value that a graph cannot hold; the error that torch raises there, with a reason."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.text)
        self.why = why


def run_forward(module: nn.Module, *args: object, **kwargs: object) -> object:
    """Return the forward of a root whose class is wrapped, as one call."""
    return module.forward(*args, **kwargs)


def trace(request: Request, tree: nn.Module, *, concrete: bool, tried_again: bool) -> fx.Graph:
    """Trace the tree symbolically; raise a `CaptureError` that names the user's line if that cannot be done.

    With `concrete`, code that asks for a size or a dtype gets the example's, and the graph a check. `tried_again`: if
    this fails, there will be another attempt that knows more.
    """
    _check_leaf_names(tree, request.leaf_names)
    graph, whole = _trace(request, tree, concrete, tried_again, lazy=False)
    if whole:
        constants = {name: value for name, value in tree.__dict__.items() if name.startswith("_tensor_constant")}
        for name in constants:
            del tree.__dict__[name]
        try:
            graph, _ = _trace(request, tree, concrete, tried_again, lazy=True)
        except CaptureError:  # code that is particular about its containers
            tree.__dict__.update(constants)
    set_origins(graph, tree)
    _own_constants(tree, graph)
    return graph


def _trace(
    request: Request, tree: nn.Module, concrete: bool, tried_again: bool, *, lazy: bool, looks: bool = False
) -> tuple[fx.Graph, bool]:
    """Give the graph, and whether it takes more of the containers among its inputs than it reads.

    `looks`: find the module whose code draws random numbers that are not torch's, which takes long.
    """
    via_call = "forward" in tree.__dict__ or any(getattr(tree, hooks) for hooks in _HOOKS)
    values = Values(tree, request.slots) if concrete else None
    tracer = _Tracer(request, via_call, values, lazy, tried_again, looks)
    try:
        # what forward keeps in plain attributes would be proxies
        with request.recording.untouched(tree), intercepting(tree, tracer.call_wrapped), seeing_proxies(tree):
            before = random_state()
            with tracer.drawn:
                graph = tracer.trace(tree)
            drawn = has_drawn(before)
            if not drawn and tracer.__dict__.get("refused"):  # in a `try` of the user's code
                raise tracer.__dict__["refused"][0]
            if not drawn:
                _refuse_assigned(tree)
    except CaptureError:
        raise
    except Exception as error:
        raise _explain(error, tree) from error
    finally:
        tracer.let_go()
    if drawn:
        if not looks:
            _trace(request, tree, concrete, tried_again, lazy=lazy, looks=True)
        raise _drawn_outside(tracer.drew or "")
    unread = (n for n in graph.nodes if n.target is operator.getitem and n.args[0].target is unpack and not n.users)
    return graph, tracer.handed_on or any(unread)


def _drawn_outside(path: str) -> CaptureError:
    why = Cause.DRAWN_OUTSIDE.because()
    message = f"symbolic trace: {why.text}, which a trace would fix. What to do: {why.hint}."
    return CaptureError(message, why=why, path=path, data_dependent=True)


def _check_leaf_names(tree: nn.Module, leaf_names: Collection[str]) -> None:
    paths = [path for path, _ in tree.named_modules()]
    for name in leaf_names:
        if name not in paths:
            close = difflib.get_close_matches(name, paths, 1)
            hint = f" Closest: {close[0]!r}." if close else ""
            raise CaptureError(f"non-traceable module {name!r} is not in the model.{hint}")


def _refuse_assigned(tree: nn.Module) -> None:
    """`self.buffer = ...` in forward: the graph would compute the new value and drop it."""
    for path, module in tree.named_modules():
        for name, buffer in module._buffers.items():
            if isinstance(buffer, fx.Proxy):
                why = Reason(f"forward assigns buffer {name!r}")
                raise CaptureError(f"symbolic trace: {why.text}, which a trace cannot hold.", why=why, path=path)


def _explain(error: Exception, tree: nn.Module) -> CaptureError:
    where, path = locate(error, tree)
    leaf = f"mark module {path!r} as non-traceable (it stays in float), " if path else ""
    message = (
        f"symbolic trace: {reason(error)} At {where or 'an unknown place'}. "
        f"What to do: {leaf}use method='export', or rewrite that line so that it does not depend on a tensor's values "
        "(torch.where for a branch)."
    )
    data = isinstance(error, DataDependent)
    return CaptureError(message, why=reason_of(error), where=where, path=path, data_dependent=data)


def _own_constants(tree: nn.Module, graph: fx.Graph) -> None:
    """Tensors made inside `forward` are plain attributes after tracing; buffers move and save with the model."""
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            value = tree.__dict__.pop(str(node.target), None)
            if isinstance(value, torch.Tensor):
                tree.register_buffer(str(node.target), value.detach().clone())  # an expanded one cannot be loaded
