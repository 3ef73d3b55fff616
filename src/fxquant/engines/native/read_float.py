"""Ops on floats and on what is true or false, element by element, that the op table has no kind for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from fxquant.engines.native.activations import FLOAT_KINDS, Act
from fxquant.engines.native.elementwise import COMPARISONS
from fxquant.engines.native.lazy import MOST_OPERANDS, Lazy, Value, join, lazy
from fxquant.engines.native.read_elementwise import operand, settle
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.spelled import LOGIC, name_of

Part = Lazy | float
_NAMES = ("input", "self", "condition", "other", "mask", "value", "exponent")
_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
_BOTH = {"and": "mul", "or": "max", "xor": "ne"}


def read_each(reader: Reader, node: fx.Node) -> Value:
    """Return the expression of an op of `spelled.EACH`."""
    name, found = name_of(node), reader.shapes[node]
    if not isinstance(found, Shape) or found.dtype not in (torch.float32, torch.bool):
        raise Unread("its output is neither float32 nor bool")
    given = _given(node, name)
    shape = reader.shape(node)
    if name in FLOAT_KINDS:
        return settle(reader, _act(name, _float(reader, given[0])), node)
    if name in ("pow", "square"):
        return settle(reader, _power(reader, given[0], 2 if name == "square" else given[1], shape), node)
    if name in ("bitwise_not", "logical_not"):
        return settle(reader, join("sub", 1.0, _parts(reader, given, True)[0], shape), node)
    parts = _parts(reader, given, name in LOGIC)
    if name in ("maximum", "minimum"):
        made = _extreme(name[:3], parts[0], parts[1], shape)
    elif name == "where":
        made = join("where", parts[0], parts[1], shape, parts[2])
    elif name == "masked_fill":
        made = join("where", parts[1], parts[2], shape, parts[0])
    else:
        made = join(name if name in COMPARISONS else _BOTH[name.rpartition("_")[2]], parts[0], parts[1], shape)
    return settle(reader, made, node)


def read_cast(reader: Reader, node: fx.Node) -> Value:
    """Take true and false for 1 and 0; floats for what is not 0."""
    source, found = node.args[0], reader.shapes[node]
    if not isinstance(source, fx.Node) or not isinstance(found, Shape):
        raise Unread("its operand is not a tensor of the program")
    before, after = reader.shapes[source].dtype, found.dtype
    if after not in (torch.float32, torch.bool) or before not in (torch.float32, torch.bool):
        raise Unread("it casts to another dtype")
    x = _lazy(reader, source)
    if after == torch.bool and before != torch.bool:
        return settle(reader, join("ne", x, 0.0, reader.shape(node)), node)
    return settle(reader, x, node)


def _given(node: fx.Node, name: str) -> list[object]:
    """Return the operands in the order of torch's functions."""
    if set(node.kwargs) - {*_NAMES}:
        raise Unread("it has settings that the kernel lacks")
    if len(node.kwargs) > 1 and [key for key in _NAMES if key in node.kwargs] != list(node.kwargs):
        raise Unread("its arguments are in another order")
    given: list[object] = [*node.args, *node.kwargs.values()]
    if name == "where" and node.op == "call_method" and len(given) == 3:  # x.where(condition, y)
        given = [given[1], given[0], given[2]]
    count = 3 if name in ("where", "masked_fill") else 1
    single = name in FLOAT_KINDS or name in ("square", "bitwise_not", "logical_not")
    if len(given) != (count if count == 3 or single else 2):
        raise Unread("it has settings that the kernel lacks")
    return given


def _lazy(reader: Reader, node: object) -> Lazy:
    found = operand(reader, node)
    if not isinstance(found, Lazy):
        raise Unread("an operand is not a tensor")
    return found


def _float(reader: Reader, node: object) -> Lazy:
    if not isinstance(node, fx.Node) or reader.shapes[node].dtype != torch.float32:
        raise Unread("an operand is not a float32 tensor")
    return _lazy(reader, node)


def _parts(reader: Reader, given: list[object], logic: bool) -> list[Part]:
    """Return the operands, few enough for one kernel; with `logic`, 1 where they are not 0."""
    found: list[Part] = []
    for each in given:
        part = float(each) if isinstance(each, bool) else operand(reader, each)
        left = MOST_OPERANDS - sum(len(other.operands) for other in found if isinstance(other, Lazy))
        if isinstance(part, Lazy) and len(part.operands) > max(left - (len(given) - len(found) - 1), 1):
            part = lazy(reader.view(each))
        if logic and isinstance(part, Lazy) and isinstance(each, fx.Node) and reader.shapes[each].dtype != torch.bool:
            part = join("ne", part, 0.0, part.shape)
        found.append(part)
    return found


def _act(kind: str, x: Lazy) -> Lazy:
    return replace(x, expr=("act", Act(kind=kind), x.expr))


def _power(reader: Reader, source: object, exponent: object, shape: tuple[int, ...]) -> Lazy:
    x = _float(reader, source)
    if isinstance(exponent, bool) or exponent not in (2, 3, *_POWERS):
        raise Unread("it has no native kernel for this exponent")
    if exponent in _POWERS:
        return _act(_POWERS[exponent], x)
    made = join("mul", x, x, shape)
    return made if exponent == 2 else join("mul", made, x, shape)


def _extreme(op: str, a: Part, b: Part, shape: tuple[int, ...]) -> Lazy:
    """Return the larger or smaller of two; what is not a number stays that."""
    if not isinstance(a, Lazy):
        a, b = b, a
    assert isinstance(a, Lazy)
    return join("where", join("ne", a, a, shape), a, shape, join(op, a, b, shape))
