"""Capture by torch.export: its ATen graph, put back over the user's own module tree and signature.

Comes in: a clone of the user's tree and the example's slots. Goes out: a graph whose parameters and buffers are
`get_attr` nodes at their paths, with the user's parameters as placeholders and the user's containers around the
outputs. All sizes are dynamic that export can keep so; what it took for granted becomes a check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import operator
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import Argument, Target, map_arg
from torch.utils import _pytree as pytree

from fxquant.capture.batch import batch_size, double_batch
from fxquant.capture.exported.sizes import conditions
from fxquant.capture.guards import check_sizes, pack
from fxquant.capture.inputs import PLAIN, Slot, add_placeholders, as_call, signature_of
from fxquant.capture.reasons import Cause
from fxquant.capture.recording import Recording
from fxquant.capture.request import Request
from fxquant.capture.run_untraced import apart
from fxquant.capture.source_lines import locate, reason, reason_of, set_origins
from fxquant.errors import CaptureError
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.paths import free_path, get_attr

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


Free = tuple[tuple[tuple[int, int], ...], ...]  # (tensor, dim), equal ones together


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A graph, the node that checks sizes, and which sizes (tensor, dim) are free, equal ones together."""

    graph: fx.Graph
    sizes: fx.Node | None
    free: Free


def export(request: Request, tree: nn.Module) -> Exported:
    """Export the tree; raise a `CaptureError` that names the user's line if that cannot be done."""
    slots = request.slots
    values = {slot.name: slot.value for slot in slots}
    _check_outputs(request.recording)
    attempts = [(values, True), (values, False)]
    if batch_size(values) == 1:  # export fixes sizes of 1
        attempts = [(double_batch(values), True), *attempts]
    errors: list[Exception] = []
    for example, dynamic in attempts:
        try:
            with request.recording.untouched(tree):
                program = _run_export(tree, slots, example, dynamic)
            return _Builder(tree, program, slots).build()
        except CaptureError:
            raise
        except Exception as error:
            errors.append(error)
    raise _explain(errors[-1], tree) from errors[-1]


def _check_outputs(recording: Recording) -> None:
    """Refuse a model that returns what export cannot: export itself says so only after all of its work."""
    try:
        leaves = pytree.tree_leaves(recording.evaluated_outputs())
    except Exception:
        return  # there is a message for that later
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            why = Cause.OBJECT.because(cls=f"{type(leaf).__module__}.{type(leaf).__qualname__}")
            raise CaptureError(f"torch.export: {why.text}, and the model returns one. Use method='piecewise'.", why=why)


def _run_export(tree: nn.Module, slots: tuple[Slot, ...], values: dict[str, object], dynamic: bool) -> ExportedProgram:
    args, kwargs = apart(as_call(slots, values))
    shapes = None
    if dynamic:
        named = dict(signature_of(tree).bind(*args, **kwargs).arguments)
        shapes = pytree.tree_map(_free_dims, named)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        return torch.export.export(tree, args, kwargs, dynamic_shapes=shapes, strict=False)


def _free_dims(leaf: object) -> object:
    """Return all sizes, but only the batch of images and volumes: arithmetic on their sizes can take export minutes."""
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
        return None
    free = 1 if leaf.is_floating_point() and leaf.dim() >= 4 else leaf.dim()
    return tuple(Dim.AUTO if dim < free else Dim.STATIC for dim in range(leaf.dim()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a failed export prints its graph
            yield
    finally:
        logger.setLevel(level)


def _explain(error: Exception, tree: nn.Module) -> CaptureError:
    where, path = locate(error, tree)
    message = (
        f"torch.export: {reason(error)} At {where or 'an unknown place'}. What to do: rewrite that line so that it "
        "does not depend on a tensor's values (torch.where for a branch)"
        + (f", or mark module {path!r} as non-traceable and use method='symbolic'." if path else ".")
    )
    return CaptureError(message, why=reason_of(error), where=where, path=path)


class _UnknownContainer(Exception):
    pass


class _Builder:
    """Copies an exported graph into a plain one, node by node."""

    def __init__(self, tree: nn.Module, program: ExportedProgram, slots: tuple[Slot, ...]) -> None:
        self.tree, self.program, self.slots = tree, program, slots
        self.graph = fx.Graph()
        self.env: dict[fx.Node, Any] = {}
        # tied tensors go by their first name, as they do in a symbolic trace
        tensors = (*tree.named_parameters(), *tree.named_buffers())
        self.first_name = {id(tensor): name for name, tensor in tensors}

    def build(self) -> Exported:
        values = add_placeholders(self._create, self.slots)
        args, kwargs = as_call(self.slots, values)
        inputs = pytree.tree_leaves((args, kwargs))
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        specs = self.program.graph_signature.input_specs
        users = [node for node, spec in zip(placeholders, specs, strict=True) if spec.kind is InputKind.USER_INPUT]
        for node, value in zip(users, inputs, strict=True):
            self.env[node] = value
            if isinstance(value, fx.Node):
                value.meta["tensor"] = _info(node.meta.get("val"))
        sizes, free = self._check_sizes(users, inputs)
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind is not InputKind.USER_INPUT:
                self.env[node] = self._state(node, str(spec.target))
        outputs = self._copy(self.program.graph, self.program.graph_module)
        out_spec = self.program.call_spec.out_spec
        assert out_spec is not None
        self.graph.output(self._outputs(outputs, out_spec))
        set_origins(self.graph, self.tree)
        return Exported(graph=self.graph, sizes=sizes, free=free)

    def _create(self, op: str, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> fx.Node:
        return self.graph.create_node(op, target, args, kwargs)

    def _check_sizes(self, users: list[fx.Node], inputs: list[object]) -> tuple[fx.Node | None, Free]:
        pairs = [(node, value) for node, value in zip(users, inputs, strict=True) if isinstance(value, fx.Node)]
        if not pairs:
            return None, ()
        vals = [node.meta["val"] for node, _ in pairs]
        args, kwargs = as_call(self.slots, {slot.name: slot.value for slot in self.slots})
        arguments = dict(signature_of(self.tree).bind(*args, **kwargs).arguments)
        found = conditions(self.program, arguments, vals)
        free: dict[Any, list[tuple[int, int]]] = {}
        for i, val in enumerate(vals):
            for dim, size in enumerate(val.shape):
                if isinstance(size, torch.SymInt) and found is not None:
                    free.setdefault(size.node.expr, []).append((i, dim))
        if found is None:  # export assumed something that cannot be checked: hold it to the example's sizes
            found = [("==", ("size", i, d), _hint(n)) for i, val in enumerate(vals) for d, n in enumerate(val.shape)]
        names = tuple(str(value.target if value.op == "placeholder" else value.name) for _, value in pairs)
        tensors = tuple(value for _, value in pairs)
        check = self.graph.call_function(check_sizes, (tensors, names, tuple(found)))
        return check, tuple(tuple(places) for places in free.values())

    def _state(self, node: fx.Node, path: str) -> fx.Node:
        """Return a parameter, buffer or constant as a get_attr node."""
        try:
            path = self.first_name.get(id(get_attr(self.tree, path)), path)
        except AttributeError:
            constant = self.program.constants[path]
            path = free_path(self.tree, path.replace(".", "_"))
            if isinstance(constant, torch.Tensor):
                self.tree.register_buffer(path, constant.detach().clone())  # an expanded one cannot be loaded
            else:
                setattr(self.tree, path, constant)
        created = self.graph.get_attr(path)
        created.meta["tensor"] = _info(node.meta.get("val"))
        return created

    def _copy(self, graph: fx.Graph, owner: nn.Module) -> tuple[object, ...]:
        """Copy a graph whose placeholders are in `env`; returns its outputs."""
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                return tuple(map_arg(node.args[0], self.env.__getitem__))
            self.env[node] = self._copy_node(node, owner)
        return ()

    def _copy_node(self, node: fx.Node, owner: nn.Module) -> object:
        if node.op == "get_attr":
            return getattr(owner, str(node.target))  # a subgraph of one of the wrappers below
        if node.target in (_GRAD, _AUTOCAST):
            return self._inline(node)
        source = self.env.get(cast(fx.Node, node.args[0])) if node.target is operator.getitem else None
        if isinstance(source, tuple):
            return source[cast(int, node.args[1])]
        args, kwargs = map_arg((node.args, node.kwargs), self._copied)
        created = self.graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        created.meta.update(node.meta)
        created.meta["tensor"] = _info(node.meta.get("val"))
        return created

    def _copied(self, node: fx.Node) -> Any:
        value = self.env[node]
        if isinstance(value, nn.Module):
            raise CaptureError(
                f"torch.export: the model uses {node.name}, a subgraph (torch.cond, torch.while_loop, ...), which "
                "cannot be quantized. Mark the module that holds it as non-traceable and use method='symbolic'."
            )
        return value

    def _inline(self, node: fx.Node) -> tuple[object, ...]:
        """`with torch.no_grad()` and disabled autocast come as subgraphs; put their nodes where they are called."""
        at = 1 if node.target is _GRAD else 4
        if node.target is _AUTOCAST and node.args[2]:
            raise CaptureError("torch.export: the model uses torch.autocast. Take it out, or use method='piecewise'.")
        subgraph = self.env[cast(fx.Node, node.args[at])]
        names = [inner for inner in subgraph.graph.nodes if inner.op == "placeholder"]
        for inner, outer in zip(names, node.args[at + 1 :], strict=True):
            self.env[inner] = map_arg(outer, self.env.__getitem__)
        return self._copy(subgraph.graph, subgraph)

    def _outputs(self, outputs: tuple[Any, ...], spec: pytree.TreeSpec) -> Any:
        try:
            return self._rebuild(pytree.tree_unflatten(list(outputs), spec))
        except _UnknownContainer:
            return self.graph.call_function(pack, (list(outputs), pytree.treespec_dumps(spec)))

    def _rebuild(self, value: Any) -> Any:
        """Return the user's containers around output nodes, in terms that a graph can hold."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            kwargs = {name: self._rebuild(item) for name, item in fields.items() if item is not None}
            return self.graph.call_function(type(value), (), kwargs)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self.graph.call_function(type(value), tuple(self._rebuild(item) for item in value))
        if type(value) in (list, tuple):
            return type(value)(self._rebuild(item) for item in value)
        if type(value) in (dict, OrderedDict):
            items = {key: self._rebuild(item) for key, item in value.items()}
            return items if type(value) is dict else self.graph.call_function(OrderedDict, (items,))
        if value is None or isinstance(value, (fx.Node, bool, int, float, str)):
            return value
        raise _UnknownContainer


def _hint(size: int | torch.SymInt) -> int:
    """Return the size in the example; 0 where it depends on data, until the graph has run."""
    return int(size.node.hint or 0) if isinstance(size, torch.SymInt) else int(size)


def _info(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorInfo(dtype=value.dtype, shape=tuple(_hint(size) for size in value.shape))
    if isinstance(value, (list, tuple)):
        return tuple(_info(item) for item in value)
    return None
