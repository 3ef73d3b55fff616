"""QConfigMapping: the user's rules, and which of them wins at a node.

Priority, rising: global, object type, regex (in order, first match), module name (nearest parent counts), and
(module name, object type, index). A rule with the value None leaves what it matches in float and unfused.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fxquant.core.qconfig import QConfig, as_qconfig
from fxquant.errors import ConfigError

_DICT_KEYS = ("", "global", "object_type", "module_name_regex", "module_name", "module_name_object_type_order")


class QConfigMapping:
    """Rules from parts of a model to qconfigs. The setters return self, so that they chain."""

    def __init__(self) -> None:
        self.global_qconfig: QConfig | None = None
        self.object_type_qconfigs: dict[Any, QConfig | None] = {}
        self.module_name_regex_qconfigs: dict[str, QConfig | None] = {}
        self.module_name_qconfigs: dict[str, QConfig | None] = {}
        self.module_name_object_type_order_qconfigs: dict[tuple[str, Any, int], QConfig | None] = {}

    def set_global(self, global_qconfig: object) -> QConfigMapping:
        """What holds where no other rule does."""
        self.global_qconfig = as_qconfig(global_qconfig)
        return self

    def set_object_type(self, object_type: Any, qconfig: object) -> QConfigMapping:
        """For a module class, a function, a method name; a class that is no op matches everything inside it."""
        self.object_type_qconfigs[object_type] = as_qconfig(qconfig)
        return self

    def set_module_name_regex(self, module_name_regex: str, qconfig: object) -> QConfigMapping:
        """For paths that `re.match` the pattern; the first pattern that matches wins."""
        try:
            re.compile(module_name_regex)
        except re.error as error:
            raise ConfigError(
                f"module_name_regex {module_name_regex!r} is not a regular expression: {error}"
            ) from error
        self.module_name_regex_qconfigs[module_name_regex] = as_qconfig(qconfig)
        return self

    def set_module_name(self, module_name: str, qconfig: object) -> QConfigMapping:
        """For a module path and everything below it, unless a longer path has a rule."""
        self.module_name_qconfigs[module_name] = as_qconfig(qconfig)
        return self

    def set_module_name_object_type_order(
        self, module_name: str, object_type: Any, index: int, qconfig: object
    ) -> QConfigMapping:
        """For the `index`-th op of a type directly inside a module."""
        self.module_name_object_type_order_qconfigs[(module_name, object_type, index)] = as_qconfig(qconfig)
        return self

    @classmethod
    def from_dict(cls, qconfig_dict: Mapping[str, Any]) -> QConfigMapping:
        """From a `qconfig_dict`: `{"": q, "object_type": [(t, q)], ...}`, or the flat form `{"": q, "sub": q1}`."""
        mapping = cls()
        structured = any(
            isinstance(value, (list, tuple)) and not hasattr(value, "weight") for value in qconfig_dict.values()
        )
        for key, value in qconfig_dict.items():
            if key in ("", "global"):
                mapping.set_global(value)
            elif isinstance(value, (list, tuple)) and not hasattr(value, "weight"):
                if key not in _DICT_KEYS:
                    raise ConfigError(f"qconfig_dict key {key!r} is unknown.{_closest(key, _DICT_KEYS)}")
                for entry in value:
                    try:
                        getattr(mapping, f"set_{key}")(*entry)
                    except TypeError as error:
                        raise ConfigError(f"qconfig_dict[{key!r}] has the entry {entry!r}: {error}") from error
            elif structured:
                raise ConfigError(f"qconfig_dict key {key!r} is unknown.{_closest(key, _DICT_KEYS)}")
            else:
                mapping.set_module_name(key, value)
        return mapping

    def to_dict(self) -> dict[str, Any]:
        """The structured dict form; `from_dict` reads it back."""
        orders = self.module_name_object_type_order_qconfigs.items()
        return {
            "": self.global_qconfig,
            "object_type": list(self.object_type_qconfigs.items()),
            "module_name_regex": list(self.module_name_regex_qconfigs.items()),
            "module_name": list(self.module_name_qconfigs.items()),
            "module_name_object_type_order": [(*key, value) for key, value in orders],
        }

    def __repr__(self) -> str:
        return f"QConfigMapping.from_dict({self.to_dict()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QConfigMapping) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A place that rules are asked about: its path, kind and spelling (module class, function or method name).

    `scope` are the enclosing (path, class name) pairs, outermost first; `order` counts the ops of the same kind
    directly inside the same module.
    """

    path: str
    kind: str
    spelling: Any
    scope: tuple[tuple[str, str], ...] = ()
    order: int = 0

    def below(self, root: str) -> Site:
        """The same place as seen from a module above it."""

        def cut(path: str) -> str:
            return path[len(root) :].removeprefix(".")

        inside = tuple((cut(path), cls) for path, cls in self.scope if path == root or path.startswith(f"{root}."))
        return dataclasses.replace(self, path=cut(self.path), scope=inside)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The qconfig that won at a site, and the rule it came from."""

    qconfig: QConfig | None
    rule: str


Setter = Callable[[str, str, Any], Any]
MappingLike = QConfigMapping | Mapping[str, Any] | Setter | tuple[Setter, ...]


def _closest(name: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, [k for k in known if k], n=1, cutoff=0.5)
    return f" Closest: {match[0]!r}." if match else ""


def _type_name(object_type: Any) -> str:
    return str(getattr(object_type, "__name__", object_type))


class Rules:
    """A mapping in the form annotate asks: `choose(site)`, and at the end `unmatched()`.

    `same_op(a, b)` tells whether two spellings are one op (from the op table). `root` is the path from which the
    names of the rules go on: that of a standalone module with a mapping of its own.
    """

    def __init__(self, source: object, same_op: Callable[[Any, Any], bool], root: str = "") -> None:
        self._setters: tuple[Setter, ...] = ()
        self._foreign = False
        self.same_op = same_op
        self._root = root
        self._seen_paths: set[str] = set()
        self._matched: set[tuple[str, Any]] = set()
        if isinstance(source, QConfigMapping):
            self.mapping = source
        elif isinstance(source, Mapping):
            self.mapping = QConfigMapping.from_dict(source)
        elif hasattr(source, "global_qconfig") and hasattr(source, "module_name_qconfigs"):
            self.mapping = _read_foreign(source)
            self._foreign = True
        elif callable(source) or (isinstance(source, tuple) and source and all(map(callable, source))):
            self._setters = source if isinstance(source, tuple) else (source,)
            self.mapping = QConfigMapping()
        else:
            raise ConfigError(
                f"{type(source).__name__} is not a qconfig mapping. Give a QConfigMapping, a qconfig_dict, "
                "a callable (name, kind, op) -> QConfig, or a tuple of such callables."
            )

    @property
    def has_setters(self) -> bool:
        """Whether the rules are callables, so that what they give is known only when they are asked."""
        return bool(self._setters)

    @property
    def is_training(self) -> bool:
        tables = self.mapping.to_dict()
        values = [tables[""], *(entry[-1] for key in tables if key for entry in tables[key])]
        return any(value is not None and value.is_training for value in values)

    def choose(self, site: Site) -> Choice:
        """The rule that wins at a site. Rules that match are remembered even when a stronger one wins."""
        site = site.below(self._root) if self._root else site
        self._seen_paths.add(site.path)
        for index, setter in enumerate(self._setters):
            answer = setter(site.path, site.kind, site.spelling)
            if answer is not None:
                qconfig = None if isinstance(answer, str) and answer == "float" else as_qconfig(answer)
                return Choice(qconfig=qconfig, rule=f"setter {index}")
        best = Choice(qconfig=self.mapping.global_qconfig, rule="global")
        for step in (self._by_type, self._by_regex, self._by_name, self._by_order):
            best = step(site) or best
        return best

    def _by_type(self, site: Site) -> Choice | None:
        found: Choice | None = None
        depth = -1
        for object_type, qconfig in self.mapping.object_type_qconfigs.items():
            at = self._type_depth(object_type, site)
            if at is not None:
                self._matched.add(("object_type", object_type))
                if at > depth:
                    found, depth = Choice(qconfig=qconfig, rule=f"object_type={_type_name(object_type)}"), at
        return found

    def _type_depth(self, object_type: Any, site: Site) -> int | None:
        """How closely a type matches: the op itself counts most, then the nearest enclosing module."""
        if self._is_type(object_type, site):
            return len(site.scope) + 1
        if isinstance(object_type, type):
            name = f"{object_type.__module__}.{object_type.__qualname__}"
            return max((i for i, (_, cls) in enumerate(site.scope) if cls == name), default=None)
        return None

    def _is_type(self, object_type: Any, site: Site) -> bool:
        return self.same_op(object_type, site.spelling) or object_type == site.kind

    def _by_regex(self, site: Site) -> Choice | None:
        found: Choice | None = None
        for pattern, qconfig in self.mapping.module_name_regex_qconfigs.items():
            if re.match(pattern, site.path):
                self._matched.add(("module_name_regex", pattern))
                found = found or Choice(qconfig=qconfig, rule=f"module_name_regex={pattern!r}")
        return found

    def _by_name(self, site: Site) -> Choice | None:
        found: Choice | None = None
        length = -1
        for name, qconfig in self.mapping.module_name_qconfigs.items():
            if site.path == name or site.path.startswith(f"{name}.") or not name:
                self._matched.add(("module_name", name))
                if len(name) > length:
                    found, length = Choice(qconfig=qconfig, rule=f"module_name={name!r}"), len(name)
        return found

    def _by_order(self, site: Site) -> Choice | None:
        parent = site.scope[-1][0] if site.scope else ""
        for key, qconfig in self.mapping.module_name_object_type_order_qconfigs.items():
            name, object_type, index = key
            if self._is_type(object_type, site) and index == site.order and name in (parent, site.path):
                self._matched.add(("module_name_object_type_order", key))
                return Choice(
                    qconfig=qconfig, rule=f"module_name_object_type_order={name!r},{_type_name(object_type)},{index}"
                )
        return None

    def unmatched(self, module_paths: Iterable[str]) -> list[str]:
        """A line for each rule that matched nothing, with the closest path. `module_paths` are all of the model's."""
        paths = [*module_paths]
        lines = []
        for number, (kind, key) in enumerate(self._all_rules(), 1):
            if (kind, key) in self._matched or (self._foreign and kind == "object_type"):
                continue
            if kind == "module_name" and key in paths:
                continue
            if kind == "module_name_regex" and any(re.match(key, path) for path in paths):
                continue
            shown = _type_name(key) if kind == "object_type" else repr(key)
            hint = _closest(str(key), paths) if kind == "module_name" else ""
            what = {"object_type": "op", "module_name_object_type_order": "op"}.get(kind, "module")
            lines.append(f"rule {number} ({kind}={shown}) matches no {what}.{hint}")
        return lines

    def _all_rules(self) -> list[tuple[str, Any]]:
        m = self.mapping
        return [
            *(("object_type", key) for key in m.object_type_qconfigs),
            *(("module_name_regex", key) for key in m.module_name_regex_qconfigs),
            *(("module_name", key) for key in m.module_name_qconfigs),
            *(("module_name_object_type_order", key) for key in m.module_name_object_type_order_qconfigs),
        ]


def _read_foreign(source: Any) -> QConfigMapping:
    """A torch.ao QConfigMapping, read by its fields."""
    mapping = QConfigMapping().set_global(source.global_qconfig)
    for object_type, qconfig in source.object_type_qconfigs.items():
        mapping.set_object_type(object_type, qconfig)
    for pattern, qconfig in source.module_name_regex_qconfigs.items():
        mapping.set_module_name_regex(pattern, qconfig)
    for name, qconfig in source.module_name_qconfigs.items():
        mapping.set_module_name(name, qconfig)
    for (name, object_type, index), qconfig in source.module_name_object_type_order_qconfigs.items():
        mapping.set_module_name_object_type_order(name, object_type, index, qconfig)
    return mapping
