"""Sizes, dtypes and other metadata while tracing: what the example had, with a check in the graph.

    if x.shape[1] == 3:    the branch that the example takes, and a node check_same(x.shape[1] == 3, "bool", True)
    for row in x:          as many rows as in the example, and a check of their number

Every op is run on the example's values as it is recorded, so a proxy knows its value. Code that asks for a plain number
or a decision gets it if it follows from metadata alone; the graph recomputes and compares it at run time, so all that
the code did not ask for stays free. What follows from the values in a tensor is refused: another input may differ.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Argument, Target, map_aggregate
from torch.fx.proxy import Attribute, TraceError
from torch.utils import _pytree as pytree

from fxquant.capture.guards import check_same
from fxquant.capture.inputs import Slot
from fxquant.capture.run_untraced import copy_inputs
from fxquant.capture.symbolic.late_import import importing_without
from fxquant.errors import Reason
from fxquant.graph.op_mode import Op, OpMode

UNKNOWN = object()

_METADATA = frozenset(
    (
        *("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "is_quantized", "is_meta", "type"),
        *("size", "dim", "numel", "ndimension", "nelement", "stride", "is_floating_point", "is_complex", "__len__"),
        *("len", "unpack", "is_tensor", "requires_grad", "is_contiguous", "itemsize", "element_size", "get_device"),
    )
)

T = TypeVar("T")


class Refused(TraceError):
    """Code asked for a plain value that a trace does not have."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.text)
        self.why = why


class DataDependent(Refused):
    """Code asked for a plain value that depends on the values in a tensor."""


class Values:
    """The example's value of every proxy, and which of them depend on the values in tensors: plain values that do, and
    tensors whose size may."""

    def __init__(self, root: nn.Module, slots: tuple[Slot, ...]) -> None:
        self.root = root
        self.inputs = {slot.name: copy_inputs(slot.value) for slot in slots}
        self.running = False  # an op is run on values: nothing is recorded meanwhile

    def evaluate(
        self, kind: str, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> tuple[object, bool]:
        """(value, whether it or its size depends on data) of a node that is being recorded."""
        if kind == "placeholder":
            return self.inputs.get(str(target), UNKNOWN), False
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, fx.Proxy)]
        values = [value_of(proxy) for proxy in given]
        if any(value is UNKNOWN for value in values) or kind not in ("call_function", "call_method", "call_module"):
            return UNKNOWN, False
        plain_args: Any = map_aggregate(args, cast(Any, _unwrap))
        plain_kwargs: Any = map_aggregate(kwargs, cast(Any, _unwrap))
        self.running = True
        watch = _DataWatch()
        try:
            with watch:
                value = self._call(kind, target, plain_args, plain_kwargs)
        except Exception:
            return UNKNOWN, False
        finally:
            self.running = False
        name = str(plain_args[1] if target is getattr else getattr(target, "__name__", target))
        from_data = any(map(is_data, given))
        reads = name not in _METADATA and any(_holds_tensor(v) for v in values) and not _holds_tensor(value)
        return value, from_data or reads or watch.found

    def _call(self, kind: str, target: Target, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with torch.no_grad():
            if not isinstance(target, str):
                return target(*args, **kwargs)
            if kind == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return self.root.get_submodule(target)(*args, **kwargs)


class _DataWatch(OpMode):
    """Whether an op read a value of a tensor, or made a tensor of a size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def run_op(self, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self.found |= op.namespace not in ("aten", "prim", "prims")  # a custom op tells nothing of its sizes
        if torch.Tag.dynamic_output_shape in op.tags:
            masks = [t for t in pytree.tree_leaves(args[1:]) if isinstance(t, Tensor) and t.dtype in _MASKS]
            self.found |= op is not torch.ops.aten.index.Tensor or bool(masks)
        self.found |= torch.Tag.data_dependent_output in op.tags
        return op(*args, **kwargs)


_MASKS = (torch.bool, torch.uint8)


def value_of(proxy: fx.Proxy) -> object:
    """Return the value in the example, or UNKNOWN."""
    if type(proxy) is Attribute or "root" in proxy.__dict__:
        owner = value_of(proxy.__dict__["root"])
        return UNKNOWN if owner is UNKNOWN else getattr(owner, proxy.__dict__["attr"], UNKNOWN)
    return proxy.__dict__.get("tensor", proxy.__dict__.get("example", UNKNOWN))


def is_data(proxy: fx.Proxy) -> bool:
    """Tell whether the proxy stands for a plain value, or a tensor of a size, that depends on the values in tensors."""
    if "root" in proxy.__dict__:
        return is_data(proxy.__dict__["root"])
    return bool(proxy.__dict__.get("data", False))


def fix_value(proxy: fx.Proxy, how: str, convert: Callable[[Any], T], why: Reason) -> T:
    """Give the plain value that code asks for, with a check in the graph; a TraceError if it is not metadata."""
    value = value_of(proxy)
    refused: list[Exception] = proxy.tracer.__dict__.setdefault("refused", [])  # the user's code may catch it
    try:
        if value is UNKNOWN:
            raise Refused(why)
        if is_data(proxy) or (isinstance(value, Tensor) and how != "len"):
            raise DataDependent(Reason(f"{why.text} (it depends on the values in a tensor)", why.hint))
    except TraceError as error:
        refused.append(error)
        raise
    fixed = convert(value)
    node, how = _what_to_check(proxy.node, how)
    proxy.tracer.create_node("call_function", check_same, (node, how, cast(Any, fixed)), {})
    return fixed


def _what_to_check(node: fx.Node, how: str) -> tuple[fx.Node, str]:
    """Check a device rather than `device.type`: a stored graph reads attributes of tensors alone."""
    owner = node.args[0] if node.target is getattr and node.args[1] == "type" else None
    if isinstance(owner, fx.Node) and owner.target is getattr and owner.args[1] == "device":
        return owner, "device"
    return node, how


def is_argument_of_method() -> bool:
    """Tell whether what led to `__index__` is a call such as `torch.zeros(n)` or `x.expand(n)`, not `range(n)`."""
    frame = sys._getframe(2)
    if sys.version_info < (3, 11):
        return False
    positions = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if positions is None or None in positions or positions[0] != positions[1]:
        return positions is not None and positions[0] != positions[1]  # calls over several lines are torch's, mostly
    line, _, start, end = positions
    source = linecache.getline(frame.f_code.co_filename, cast(int, line)).encode()[start:end].decode(errors="replace")
    return "." in source.partition("(")[0] and source.endswith(")")


def _unwrap(value: object) -> object:
    return value_of(value) if isinstance(value, fx.Proxy) else value


def _holds_tensor(value: object) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


def _isinstance(value: object, classes: type | tuple[type, ...]) -> bool:
    """`isinstance` for the user's code: a proxy is what it was in the example. (Its `__class__` has to stay: torch
    would read it as a tensor's memory.)"""
    if isinstance(value, fx.Proxy) and (example := value_of(value)) is not UNKNOWN:
        return isinstance(example, classes)
    return isinstance(value, classes)


@contextlib.contextmanager
def _patched_isinstance(tree: nn.Module) -> Iterator[None]:
    """In the files of the packages that the model's classes come from, but for torch's."""
    names = {cls.__module__ for module in tree.modules() for cls in type(module).__mro__}
    packages = {name.partition(".")[0] for name in names} - {"torch", "builtins", "fxquant"}
    files = [vars(m) for name, m in list(sys.modules.items()) if name.partition(".")[0] in packages and m is not None]
    patched = [globals_ for globals_ in files if "isinstance" not in globals_]
    for globals_ in patched:
        globals_["isinstance"] = _isinstance
    try:
        yield
    finally:
        for globals_ in patched:
            del globals_["isinstance"]


@contextlib.contextmanager
def seeing_proxies(tree: nn.Module) -> Iterator[None]:
    """Functions that do not look for proxies among their arguments do, while the user's code is traced."""

    def sized(original: Callable[..., object]) -> Callable[..., object]:
        def call(*size: object, **kwargs: object) -> object:
            found = next((item for item in pytree.tree_leaves(size) if isinstance(item, fx.Proxy)), None)
            if found is not None:
                sizes = size if len(size) > 1 else size[0]
                return found.tracer.create_proxy("call_function", original, (sizes,), kwargs)
            return original(*size, **kwargs)

        return call

    def of_dtype(original: Callable[..., object]) -> Callable[..., object]:
        def call(dtype: object, *rest: object) -> object:
            if isinstance(dtype, fx.Proxy):
                dtype = fix_value(dtype, "dtype", lambda value: value, Reason("torch.finfo needs a dtype"))
            return original(dtype, *rest)

        return call

    def tensor(data: object, **kwargs: Any) -> object:
        found = [leaf for leaf in pytree.tree_leaves(data) if isinstance(leaf, fx.Proxy)]
        if found:
            return found[0].tracer.create_proxy("call_function", original_tensor, (data,), kwargs)
        return original_tensor(data, **kwargs)

    original_tensor = torch.tensor
    replaced: dict[str, Any] = {
        **{name: sized(getattr(torch, name)) for name in ("zeros", "ones", "empty", "rand", "randn")},
        **{name: of_dtype(getattr(torch, name)) for name in ("finfo", "iinfo")},
        "tensor": tensor,
    }
    with importing_without(lambda: mock.patch.multiple(torch, **replaced), "torch._dynamo"), _patched_isinstance(tree):
        yield
