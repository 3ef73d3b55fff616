"""The modules that the graph of a converted region calls or reads from, and whether they still stand where they did.

Kernels are made of what those modules held. One that is put in the place of another, `model.relu = nn.GELU()`, has to
be seen as torch.fx would see it, and so has a `forward` that is put on one, or another class. One that lacks what the
graph reads, `model.fc = nn.Linear(...)`, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import is_
from typing import Any

from torch import fx, nn

from fxquant.errors import StageError
from fxquant.graph.paths import find_module, get_attr
from fxquant.graph.standing import ABSENT, Standing, stand_there


class ReadModules:
    """The children on the ways to all modules that a graph calls or reads from."""

    def __init__(self, region: nn.Module, reads: Iterable[tuple[str, str]]) -> None:
        """`reads` has (op, target) of the nodes."""
        found: dict[tuple[int, str], tuple[dict[str, nn.Module | None], str, nn.Module]] = {}
        called: dict[int, nn.Module] = {}
        for op, target in reads:
            if op == "call_module":
                called.update({id(part): part for part in _parts(region, target)})
            if op in ("call_module", "get_attr"):
                _check(region, op, target)
                for table, name, child in _way(region, target):
                    found[id(table), name] = table, name, child
        self._tables = [table for table, _, _ in found.values()]
        self._names = [name for _, name, _ in found.values()]
        self._children = [child for _, _, child in found.values()]
        self._called = list(called.values())
        self._kinds = list(map(type, self._called))
        self._fields: list[dict[str, Any]] = [module.__dict__ for module in self._called]
        self._forwards = [fields.get("forward", ABSENT) for fields in self._fields]

    def stand(self) -> bool:
        """Tell whether all stand where they did, and do what they did. Passes in C: this is before each call."""
        if not stand_there(self._tables, self._names, self._children):
            return False
        if not all(map(is_, map(type, self._called), self._kinds)):
            return False
        return all(map(is_, map(dict.get, self._fields, repeat("forward"), repeat(ABSENT)), self._forwards))

    def standing(self) -> Standing:
        forwards = zip(self._fields, repeat("forward"), self._forwards, strict=False)
        return Standing(
            places=(*zip(self._tables, self._names, self._children, strict=True), *forwards),
            kinds=tuple(zip(self._called, self._kinds, strict=True)),
        )


def _parts(region: nn.Module, path: str) -> Iterator[nn.Module]:
    """Yield the module that a graph calls and those inside, without graphs, which run in a way of their own."""
    module = find_module(region, path)
    for part in () if module is None else module.modules():
        if not isinstance(part, fx.GraphModule):
            yield part


def _way(region: nn.Module, path: str) -> Iterator[tuple[dict[str, nn.Module | None], str, nn.Module]]:
    """Return the children that a path leads through: (table, name, child).

    It may end at a tensor, or in a plain object.
    """
    parent = region
    for step in path.split("."):
        child = parent._modules.get(step)
        if child is None:
            return
        yield parent._modules, step, child
        parent = child


def _check(region: nn.Module, op: str, target: str) -> None:
    path, name = target.rpartition(".")[::2] if op == "get_attr" else (target, "")
    module = find_module(region, path)
    if module is not None and not name:
        return
    try:
        get_attr(region, target)
    except AttributeError:
        stands = "is not there any more" if module is None else f"is a {type(module).__name__} now, without {name!r}"
        raise StageError(
            f"{path!r} {stands}, and the graph of the converted model uses it. Put back what was there, or change the "
            "float model and quantize that again."
        ) from None
