"""Run the graphs of a file without data: on tensors that have a shape and a dtype and nothing else.

What comes out is whether the parts fit each other on the inputs that the file itself records, and how large tensors
get. Nothing of their size is allocated. An op that needs values (`nonzero`, `item`), and code of the user's own, give
what the file recorded of the node, or a value that is not known; what is computed from that is not looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from fxquant.archive.check_amounts import BY_VALUES, check_module, infos_of, inverse_stft, may_grow, word_of
from fxquant.archive.check_calls import check_values
from fxquant.archive.check_defaults import check_default
from fxquant.archive.check_python import (
    MOST_IN_ALL,
    MOST_PARTS,
    NUMBER,
    UNKNOWN,
    Unknown,
    check_receiver,
    check_result,
    check_values_of_python,
    degree_of,
    is_python,
    leaves_of,
    reads_number,
    weight_of,
)
from fxquant.archive.stock_fields import stock_classes
from fxquant.capture import guards
from fxquant.capture.symbolic.trace import run_forward
from fxquant.errors import ArchiveError, InputError
from fxquant.graph.nodes import NOT_HELD, TensorInfo, held_value
from fxquant.graph.op_mode import Op, OpMode
from fxquant.graph.paths import find_module, get_attr
from fxquant.graph.region import Region, origin_of, regions
from fxquant.numerics.grid import Grid
from fxquant.numerics.weights.quantized_weight import QuantizedWeight

LEAST_LIMIT = 2**30  # bytes of one tensor that any file may make
FACTOR = 1024  # what a file of more bytes may make, per byte of the file and of its example inputs
IN_ALL = 64  # times the limit of one tensor, over a whole run
MOST_DIMENSIONS = 64  # of a tensor: no op of torch counts with more


_READS_VALUES = frozenset(("item", "tolist", "is_nonzero", "_local_scalar_dense", "equal", "allclose"))
_CHECKS = (guards.check_fixed, guards.check_given, guards.check_same, guards.check_items, guards.check_key)


def dry_run(tree: nn.Module, file_bytes: int) -> None:
    """Raise an ArchiveError that names the first node that cannot run, or makes more than the file gives reason for."""
    found = list(regions(tree))
    # tensors made in inference mode do not count what is written to them
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        for path, region in reversed(found):  # those inside first: a graph that calls them runs them as they are
            _Run(path, region, file_bytes).run()


class _Run:
    """One region, on the inputs that its placeholders record."""

    def __init__(self, path: str, region: Region, file_bytes: int) -> None:
        self.path, self.region = path, region
        given = [info for node in region.graph.nodes if node.op == "placeholder" for info in infos_of(node)]
        known = sum(info.dtype.itemsize * math.prod(info.shape) for info in given)
        self.limit = max(LEAST_LIMIT, FACTOR * (file_bytes + min(known, LEAST_LIMIT)))
        self.left = IN_ALL * self.limit
        self.parts = max(MOST_IN_ALL, file_bytes)  # values that may still be taken and made
        # see capture/piecewise/stock_region.py: one that the example did not reach has placeholders without a shape
        self.called = origin_of(region).method != "leaf" or all(info.shape for info in given)
        self.values: dict[fx.Node, Any] = {}
        self.degrees: dict[fx.Node, int] = {}
        self.weights: dict[fx.Node, int] = {}
        self.read: dict[fx.Node, tuple[torch.Size, tuple[int, ...]]] = {}  # tensors of the file, as they were

    def run(self) -> None:
        for node in self.region.graph.nodes:
            try:
                if node.op == "output":
                    leaves_of(map_arg(node.args, lambda each: self.values[each]))
                    self._check_read()
                    break
                with _Sizes(self.limit):
                    value = self._node(node)
                self._measure(value)
            except (ArchiveError, InputError, ArithmeticError, AssertionError, AttributeError) as error:
                raise self._at(node, error) from error
            except (LookupError, MemoryError, RecursionError, RuntimeError, TypeError, ValueError) as error:
                raise self._at(node, error) from error
            self.values[node] = value

    def _at(self, node: fx.Node, error: BaseException) -> ArchiveError:
        text = str(error).splitlines()[0][:300] if str(error) else ""
        place = f"region {self.path or '<root>'!r}, node {node.name!r} ({node.op} {str(node.target)[:80]})"
        kind = "" if isinstance(error, (ArchiveError, InputError)) else f"{type(error).__name__}: "
        return ArchiveError(f"{place}: {kind}{text}")

    def _node(self, node: fx.Node) -> object:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            value = _bare(get_attr(self.region, str(node.target))) if node.target != "_self" else UNKNOWN
            if isinstance(value, Tensor):
                self.read[node] = value.shape, value.stride()
            return value
        args, kwargs = map_arg((node.args, node.kwargs), lambda each: self.values[each])
        leaves = self._count(leaves_of((args, kwargs)))
        degrees = [self.degrees.get(each, 0) for each in node.all_input_nodes]
        check_receiver(node, args)
        check_values_of_python(node, args, kwargs, degrees)
        own = self._own(node, args, leaves)
        if own is not None:
            return own[0]
        self.degrees[node] = degree_of(node, leaves, degrees)
        module = find_module(self.region, str(node.target)) if node.op == "call_module" else None
        by_data = any(leaf is NUMBER for leaf in leaves) and not self._is_own_code(node, module)
        if module is not None:
            check_module(module, args, kwargs)
        check_values(node, self.region, args, kwargs, by_data)
        if any(isinstance(leaf, Unknown) for leaf in leaves):
            self.weights[node] = weight_of(node, self.weights)
            self._spend(self.weights[node])
            return NUMBER if by_data and _is_number(node, leaves) else self._recorded(node)
        try:
            return self._call(node, args, kwargs)
        except NotImplementedError:
            return self._by_values(node, args, kwargs)
        except RuntimeError as error:
            if "meta tensor" not in str(error) and "Meta tensor" not in str(error):
                raise
            return self._by_values(node, args, kwargs)

    def _check_read(self) -> None:
        """What was checked of the file's tensors is to hold in the next call, too.

        Methods such as `unsqueeze_` give them another shape; other writes give integer weights and grids other numbers.
        """
        for node, before in self.read.items():
            name, value = str(node.target), self.values[node]
            if (value.shape, value.stride()) != before:
                raise ArchiveError(f"the graph gives {name[:80]!r} another shape, in place.")
            owner = find_module(self.region, name.rpartition(".")[0])
            if value._version and isinstance(owner, (Grid, QuantizedWeight)):
                raise ArchiveError(f"the graph writes to {name[:80]!r}, which is no state of a model.")

    def _by_values(self, node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Return the result of a call that needs the values of its tensors."""
        if word_of(node) == "istft":
            made: Callable[..., object] = inverse_stft  # of arguments that nobody has looked at
            return made(*args, **kwargs)
        if node.op != "call_module" and may_grow(node):
            raise ArchiveError(BY_VALUES)
        if word_of(node) == "tolist" and isinstance(args[0], Tensor):
            return _listed(tuple(args[0].shape))
        return NUMBER if _reads_number(node) else self._recorded(node)

    def _own(self, node: fx.Node, args: tuple[object, ...], leaves: list[object]) -> tuple[object] | None:
        """Of our own functions, in a tuple; None for all others."""
        if node.target in _CHECKS:
            return (None,)
        if node.target is guards.unpack and _is_input(node.args[0]):  # a record does not say whether it is a tuple
            return (self._recorded(node),)
        if node.target in (guards.take_item, guards.unpack) and isinstance(args[0], (list, tuple, dict)):
            return (node.target(*args),)  # of a container that the graph makes, whatever the file records
        if node.target in (guards.take_item, guards.unpack, guards.pack, run_forward):
            return (self._recorded(node),)
        if node.target is guards.check_sizes and any(isinstance(leaf, Unknown) for leaf in leaves):
            return (None,)
        return None

    def _call(self, node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        if node.op == "call_module":
            module = find_module(self.region, str(node.target))
            if module is None or not _is_stock(module):
                return self._recorded(node)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            return functional_call(module, {name: _bare(tensor) for name, tensor in state.items()}, args, dict(kwargs))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if _is_code(node.target):
            return self._recorded(node)
        if node.target is operator.add and {type(arg) for arg in args} == {list, tuple}:
            return [*args[0], *args[1]]  # type: ignore[misc]  # a record does not say which of them code gave
        if "device" in kwargs or word_of(node) in _MAKERS:
            kwargs = {**kwargs, "device": "meta"}
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _input(self, node: fx.Node) -> object:
        held = held_value(node)
        taken = held if held is not NOT_HELD else self._recorded(node)
        if taken is UNKNOWN and node.args:
            return node.args[0]
        check_default(node, taken)
        return taken

    def _recorded(self, node: fx.Node) -> object:
        info = node.meta.get("tensor") if self.called else None
        if isinstance(info, tuple):
            return [_made(item, self.limit) for item in info]
        return _made(info, self.limit)

    def _measure(self, value: object) -> None:
        for tensor in check_result(self._count(leaves_of(value))):
            check_size(tensor, self.limit)
            self._spend(tensor.dim())
            self.left -= tensor.numel() * tensor.element_size()
            if self.left < 0:
                raise ArchiveError(f"with it, the graph makes more than {IN_ALL} times {self.limit} bytes in all.")

    def _count(self, leaves: list[object]) -> list[object]:
        self._spend(len(leaves))
        return leaves

    def _spend(self, parts: int) -> None:
        self.parts -= parts
        if self.parts < 0:
            raise ArchiveError("up to it, the graph takes and makes more values than a file like this may.")

    def _is_own_code(self, node: fx.Node, module: nn.Module | None) -> bool:
        """Tell whether a node calls the user's own code, which a file only names."""
        if node.op == "call_module":
            return module is None or not _is_stock(module)
        return node.op == "call_function" and _is_code(node.target)


def check_size(tensor: Tensor, limit: int) -> None:
    """Raise an ArchiveError if a tensor is larger than the file gives reason for."""
    if tensor.dim() > MOST_DIMENSIONS:
        raise ArchiveError(f"it makes a tensor of {tensor.dim()} dimensions.")
    size = tensor.numel() * tensor.element_size()
    if size > limit:
        raise ArchiveError(
            f"it makes a tensor of the shape {tuple(tensor.shape)}, {size} bytes; a file like this may make {limit}, "
            f"and {IN_ALL} times as much in all."
        )


class _Sizes(OpMode):
    """Looks at all that ops make, inside of functions and modules, too."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def run_op(self, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        # torch's own shape function of grouped products takes bfloat16 alone; the kernel for the CPU takes others, too
        made = _grouped(*args, **kwargs) if op is torch.ops.aten._grouped_mm.default else op(*args, **kwargs)
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                check_size(leaf, self.limit)
        return made


def _grouped(x: Any, y: Any, offs: Any = None, bias: object = None, out_dtype: Any = None) -> Tensor:
    """Return a tensor of the shape of a grouped product: groups of rows, of columns, or of the summed dimension."""
    if x.shape[-1] != y.shape[-2] or (offs is None) != (x.dim() == y.dim() == 3):
        raise RuntimeError(f"no grouped product of {tuple(x.shape)} and {tuple(y.shape)}")
    groups = (offs.shape[0],) if x.dim() == y.dim() == 2 else (x.shape[0],) if x.dim() == y.dim() else ()
    return x.new_empty((*groups, x.shape[-2], y.shape[-1]), dtype=out_dtype or x.dtype)  # type: ignore[no-any-return]


def _is_input(node: object) -> bool:
    return isinstance(node, fx.Node) and node.op == "placeholder"


_Value = TypeVar("_Value")
_MAKERS = frozenset(
    ("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm")
) | {"scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"}


def _reads_number(node: fx.Node) -> bool:
    return word_of(node) in _READS_VALUES or reads_number(node)


def _is_number(node: fx.Node, leaves: list[object]) -> bool:
    """Tell whether a node that takes a number read from a tensor gives one, whatever the file records of it."""
    if is_python(node):
        return not any(isinstance(leaf, Tensor) for leaf in leaves)
    return word_of(node).startswith("sym_")


def _listed(shape: tuple[int, ...]) -> object:
    """Return what `tolist` gives of a tensor."""
    if math.prod(shape) > MOST_PARTS:
        raise ArchiveError(f"it makes a list of the {math.prod(shape)} values of a tensor.")
    return [_listed(shape[1:]) for _ in range(shape[0])] if shape else NUMBER


def _is_code(function: object) -> bool:
    """Tell whether a function is the user's own."""
    module = str(getattr(function, "__module__", "") or "")
    return module.partition(".")[0] not in ("torch", "fxquant", "_operator", "math", "builtins", "collections", "")


def _is_stock(module: nn.Module) -> bool:
    known = stock_classes()
    kinds = {type(part) for part in module.modules() if not isinstance(part, Region)}
    return all(known.get(f"{kind.__module__}.{kind.__qualname__}") is kind for kind in kinds)


def _bare(value: _Value) -> _Value:
    bare: _Value = tree_map(lambda leaf: leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf, value)
    return bare


def _made(info: object, limit: int) -> object:
    if isinstance(info, (tuple, list)):
        return [_made(item, limit) for item in info]
    if not isinstance(info, TensorInfo):
        return UNKNOWN
    if math.prod(info.shape) * info.dtype.itemsize > limit:
        raise ArchiveError(f"it records a tensor of the shape {info.shape}.")
    return torch.empty(info.shape, dtype=info.dtype, device="meta")
