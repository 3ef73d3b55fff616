"""What a node's value is while a graph is read: see reader.py."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from fxquant.engines.native.elementwise import Expr
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import View

MOST_OPERANDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Lazy:
    """An expression of views of one shape."""

    expr: Expr
    operands: tuple[View, ...]
    constants: tuple[float, ...]
    shape: tuple[int, ...]
    level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """A value of Python; `constant` if it does not depend on the inputs."""

    node: fx.Node
    level: int
    constant: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A view whose batch is not in front, but at this axis. Other view ops may bring it back."""

    view: View
    axis: int

    @property
    def level(self) -> int:
        return self.view.level


Value = View | Lazy | Moved | Outside


def lazy(view: View) -> Lazy:
    """Return a view as an expression."""
    return Lazy(expr=("in", 0), operands=(view,), constants=(), shape=view.shape, level=view.level)


def join(op: str, a: Lazy | float, b: Lazy | float, shape: tuple[int, ...], *more: Lazy | float) -> Lazy:
    """Return an op of two expressions or numbers, or of more."""
    operands: list[View] = []
    constants: list[float] = []
    parts = []
    level = 0
    for part in (a, b, *more):
        if isinstance(part, Lazy):
            operands += [view for view in dict.fromkeys(part.operands) if view not in operands]
            parts.append(_placed(part.expr, [operands.index(view) for view in part.operands], len(constants)))
            constants += part.constants
            level = max(level, part.level)
        else:
            parts.append(("const", len(constants)))
            constants.append(float(part))
    if len(operands) > MOST_OPERANDS:
        raise Unread("it has too many operands")
    return Lazy(expr=(op, *parts), operands=tuple(operands), constants=tuple(constants), shape=shape, level=level)


def _placed(expr: Expr, places: list[int], constants: int) -> Expr:
    """Return an expression with its operands at these places, and its constants behind so many."""
    if expr[0] == "in":
        return ("in", places[expr[1]])
    if expr[0] == "const":
        return ("const", expr[1] + constants)
    return tuple(_placed(part, places, constants) if isinstance(part, tuple) else part for part in expr)


def shown(expr: Expr) -> str:
    if expr[0] in ("in", "const"):
        return ""
    if expr[0] == "act":
        return f"{expr[1].kind} {shown(expr[2])}".strip()
    return " ".join(filter(None, (expr[0], *(shown(part) for part in expr[1:]))))
