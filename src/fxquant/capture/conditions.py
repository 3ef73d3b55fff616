"""Conditions on the sizes of inputs, as data: nested tuples that are looked through, never compiled as source.

    ("==", ("%", ("size", 0, 1), 2), 0)        the size of tensor 0 along dim 1 is even

A condition is read from the Python expression that torch.export writes (`s[0][1] % 2 == 0`), stored as it is, and
checked again when it comes from a file: few operations, whole numbers of 64 bits, limited depth.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from fxquant.errors import InputError

Condition = Any  # a whole number, or a tuple of an operation and its operands
Sizes = Sequence[Sequence[int]]

_MOST = 2**63 - 1
_DEEPEST = 64
_LONGEST = 4000  # characters of an expression
_BINARY: dict[str, tuple[type[ast.AST], Callable[[Any, Any], Any]]] = {
    "+": (ast.Add, operator.add),
    "-": (ast.Sub, operator.sub),
    "*": (ast.Mult, operator.mul),
    "/": (ast.Div, operator.truediv),
    "//": (ast.FloorDiv, operator.floordiv),
    "%": (ast.Mod, operator.mod),
    "==": (ast.Eq, operator.eq),
    "!=": (ast.NotEq, operator.ne),
    "<": (ast.Lt, operator.lt),
    "<=": (ast.LtE, operator.le),
    ">": (ast.Gt, operator.gt),
    ">=": (ast.GtE, operator.ge),
}
_BY_NODE = {node: symbol for symbol, (node, _) in _BINARY.items()}
_CALLS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "abs": abs, "ceil": math.ceil, "floor": math.floor}
_UNARY = ("abs", "ceil", "floor", "not", "neg")
_MOST_POWER = 8


def read_condition(text: str) -> Condition:
    """Return the condition of a Python expression over `s[tensor][dim]`; a ValueError if it is none."""
    if len(text) > _LONGEST:
        raise ValueError(f"an expression of {len(text)} characters")
    try:
        found = _read(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:80]!r} is no expression") from error
    check_condition(found)
    return found


def _read(node: ast.expr) -> Condition:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _BY_NODE:
        return _BY_NODE[type(node.op)], _read(node.left), _read(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        power = node.right.value
        if isinstance(power, int) and 1 <= power <= _MOST_POWER:
            return functools.reduce(lambda made, _: ("*", made, _read(node.left)), range(power - 1), _read(node.left))
    if isinstance(node, ast.BoolOp):
        return ("and" if isinstance(node.op, ast.And) else "or", *map(_read, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        operand = _read(node.operand)
        if isinstance(node.op, ast.Not):
            return "not", operand
        return -operand if isinstance(operand, int) else ("neg", operand)
    if isinstance(node, ast.Compare) and all(type(op) in _BY_NODE for op in node.ops):
        values = [_read(value) for value in (node.left, *node.comparators)]
        pairs = [(_BY_NODE[type(op)], values[i], values[i + 1]) for i, op in enumerate(node.ops)]
        return pairs[0] if len(pairs) == 1 else ("and", *pairs)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:
        return (node.func.id, *map(_read, node.args))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Subscript):
        at, dim = node.value.slice, node.slice
        if isinstance(node.value.value, ast.Name) and node.value.value.id == "s":
            return "size", _read(at), _read(dim)
    raise ValueError(f"{ast.unparse(node)[:80]!r} is no condition on sizes")


def check_condition(condition: object, depth: int = 0) -> None:
    """Raise a ValueError unless it is a condition."""
    if isinstance(condition, int) and not isinstance(condition, bool):
        if abs(condition) > _MOST:
            raise ValueError("a number that does not fit 64 bits")
        return
    if not isinstance(condition, tuple) or len(condition) < 2 or depth > _DEEPEST or not isinstance(condition[0], str):
        raise ValueError(f"{str(condition)[:80]!r} is no condition on sizes")
    name, *operands = condition
    if name == "size":
        if len(operands) != 2 or not all(type(at) is int and 0 <= at < 10_000 for at in operands):
            raise ValueError(f"{condition!r} is no size")
        return
    counts = len(operands) == 2 if name in _BINARY else len(operands) == 1 if name in _UNARY else len(operands) >= 1
    if not counts or (name not in _BINARY and name not in _CALLS and name not in ("not", "neg", "and", "or")):
        raise ValueError(f"{name[:20]!r} is no operation of a condition")
    for operand in operands:
        check_condition(operand, depth + 1)


def holds(condition: Condition, sizes: Sizes) -> bool:
    """Tell whether a condition is true of these sizes. One that asks for a dim that is not there is not."""
    try:
        return bool(_function(condition)(sizes))
    except (IndexError, ZeroDivisionError, OverflowError):
        return False


@functools.lru_cache(maxsize=4096)
def _function(condition: Condition) -> Callable[[Sizes], Any]:
    """Return the condition as a function, put together from functions."""
    if isinstance(condition, int):
        return lambda sizes: condition
    name, *operands = condition
    if name == "size":
        at, dim = operands
        return lambda sizes: sizes[at][dim]
    parts = tuple(map(_function, operands))
    if name == "and":
        return lambda sizes: all(part(sizes) for part in parts)
    if name == "or":
        return lambda sizes: any(part(sizes) for part in parts)
    if name in _BINARY:
        function, (left, right) = _BINARY[name][1], parts
        return lambda sizes: _bounded(function(left(sizes), right(sizes)))
    if name in ("not", "neg"):
        unary, (only,) = operator.not_ if name == "not" else operator.neg, parts
        return lambda sizes: unary(only(sizes))
    call = _CALLS[name]
    return lambda sizes: call(*(part(sizes) for part in parts))


def _bounded(value: object) -> object:
    if isinstance(value, int) and abs(value) > _MOST:
        raise OverflowError("a size beyond 64 bits")
    return value


def show(condition: Condition, names: Sequence[str]) -> str:
    """Return the condition in words that the user knows: `x.size(0) % 2 == 0`."""
    if isinstance(condition, int):
        return str(condition)
    name, *operands = condition
    if name == "size":
        at, dim = operands
        return f"{names[at] if at < len(names) else f'input {at}'}.size({dim})"
    parts = [show(operand, names) for operand in operands]
    if name in _CALLS:
        return f"{name}({', '.join(parts)})"
    if name in ("not", "neg"):
        return f"{'not ' if name == 'not' else '-'}({parts[0]})"
    loose = [isinstance(operand, tuple) and not _binds(operand[0], name) for operand in operands]
    return f" {name} ".join(f"({part})" if is_loose else part for part, is_loose in zip(parts, loose, strict=True))


def _binds(inner: str, outer: str) -> bool:
    """Tell whether an operand needs no parentheses."""
    order = (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "//", "%"))
    ranks = {word: rank for rank, words in enumerate(order) for word in words}
    return ranks.get(inner, len(order)) > ranks.get(outer, -1)


def as_conditions(stored: object) -> tuple[Condition, ...]:
    """Return the conditions of a file, checked. Earlier files hold expressions. An InputError says which is none."""
    if not isinstance(stored, tuple):
        raise InputError("the conditions on sizes are no tuple.")
    found = []
    for item in stored:
        try:
            condition = read_condition(item) if isinstance(item, str) else item
            check_condition(condition)
        except ValueError as error:
            raise InputError(f"{error}.") from error
        found.append(condition)
    return tuple(found)
