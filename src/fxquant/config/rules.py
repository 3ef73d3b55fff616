"""Which of the user's rules (a QConfigMapping, a dict, callables) wins at a node.

Priority, rising: global, object type, regex (in order, first match), module name (nearest parent counts), and
(module name, object type, index). A rule with the value None leaves what it matches in float and unfused.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fxquant.config.forms import closest
from fxquant.config.qconfig import QConfig, as_qconfig
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.spec import Spec
from fxquant.errors import ConfigError

log = logging.getLogger("fxquant")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A place that rules are asked about: its path, kind and spelling (module class, function or method name).

    `scope` are the enclosing (path, class name) pairs, outermost first; `order` counts the ops of the same kind
    directly inside the same module. `is_output`: its result leaves the graph. `place` is what `explain` calls it
    (graph/paths.py): ops that are no modules have one each, where they share the path of the module around them.
    """

    path: str
    kind: str
    spelling: Any
    scope: tuple[tuple[str, str], ...] = ()
    order: int = 0
    is_output: bool = False
    place: str = ""

    def below(self, root: str) -> Site:
        """Return the same place as seen from a module above it."""

        def cut(path: str) -> str:
            return path[len(root) :].removeprefix(".")

        inside = tuple((cut(path), cls) for path, cls in self.scope if path == root or path.startswith(f"{root}."))
        place = cut(self.place).removeprefix(":")
        return dataclasses.replace(self, path=cut(self.path), scope=inside, place=place)

    def is_in(self, names: Collection[str]) -> bool:
        """Tell whether an op is among names of ops, as its path or its place."""
        return self.place in names or bool(self.path and self.path in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The qconfig that won at a site, and the rule it came from."""

    qconfig: QConfig | None
    rule: str


Setter = Callable[[str, str, Any], Any]


def _type_name(object_type: object) -> str:
    return str(getattr(object_type, "__name__", object_type))


class Rules:
    """A mapping in the form annotate asks: `choose(site)`, and at the end `unmatched()`.

    `same_op(a, b)` tells whether two spellings are one op (from the op table). `root` is the path from which the
    names of the rules go on: that of a standalone module with a mapping of its own.
    """

    def __init__(self, source: object, same_op: Callable[[object, object], bool], root: str = "") -> None:
        self._setters: tuple[Setter, ...] = ()
        self._foreign = False
        self.same_op = same_op
        self._root = root
        self._seen_paths: set[str] = set()
        self._matched: set[tuple[str, Any]] = set()
        self._gone: set[str] = set()  # dotted names that torch does not have
        if isinstance(source, Spec):
            source = QConfig(weight=source)  # a spec alone is one of weights
        if isinstance(source, QConfigMapping):
            self.mapping = source
        elif hasattr(source, "activation") and hasattr(source, "weight"):  # a QConfig, also torch.ao's
            self.mapping = QConfigMapping().set_global(source)
            self._foreign = not isinstance(source, QConfig)
        elif isinstance(source, Mapping):
            self.mapping = QConfigMapping.from_dict(source)
            self._foreign = _holds_foreign(source)
        elif hasattr(source, "global_qconfig") and hasattr(source, "module_name_qconfigs"):
            self.mapping = _read_foreign(source)
            self._foreign = True
        elif _is_rule(source) or (isinstance(source, tuple) and source and all(map(_is_rule, source))):
            self._setters = source if isinstance(source, tuple) else (source,)
            _check_arguments(self._setters)
            _check_order(self._setters)
            self.mapping = QConfigMapping()
        else:
            if isinstance(source, tuple):
                _check_items(source)
            todo = "For the defaults: fxquant.get_default_qconfig_mapping(). " if source is None else ""
            if isinstance(source, str):
                todo = f"For a target by its name: fxquant.get_default_qconfig_mapping({source!r}). "
            raise ConfigError(
                f"{type(source).__name__} is not a qconfig mapping. {todo}Give a QConfigMapping, a qconfig_dict, "
                "a QConfig, the Spec of weights, a callable (name, kind, op) -> QConfig, or a tuple of such callables."
            )

    @property
    def has_setters(self) -> bool:
        """Whether the rules are callables, so that what they give is known only when they are asked."""
        return bool(self._setters)

    @property
    def is_training(self) -> bool:
        return any(value is not None and value.is_training for value in self.mapping.qconfigs())

    def choose(self, site: Site) -> Choice:
        """Return the rule that wins at a site. Rules that match are remembered even when a stronger one wins."""
        site = site.below(self._root) if self._root else site
        self._seen_paths.update((site.path, site.place))
        for index, setter in enumerate(self._setters):
            answer = setter.at(site) if hasattr(setter, "at") else setter(site.path, site.kind, site.spelling)
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

    def _type_depth(self, object_type: object, site: Site) -> int | None:
        """Tell how closely a type matches: the op itself counts most, then the nearest enclosing module."""
        if self._is_type(object_type, site):
            return len(site.scope) + 1
        object_type = self._named(object_type)
        if isinstance(object_type, type):
            name = f"{object_type.__module__}.{object_type.__qualname__}"
            return max((i for i, (_, cls) in enumerate(site.scope) if cls == name), default=None)
        return None

    def _is_type(self, object_type: object, site: Site) -> bool:
        object_type = self._named(object_type)
        return self.same_op(object_type, site.spelling) or object_type == site.kind

    def _named(self, object_type: object) -> object:
        """Return what a dotted name stands for."""
        if not isinstance(object_type, str) or "." not in object_type:
            return object_type
        first, *steps = object_type.split(".")
        found: Any = torch if first == "torch" else None
        for step in steps:
            found = getattr(found, step, None)
        if found is not None:
            return found
        if object_type not in self._gone:
            self._gone.add(object_type)
            log.warning("object_type %r: there is no such name; read as %r.", object_type, steps[-1])
        return steps[-1]

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

    def see(self, sites: Iterable[Site]) -> None:
        """Note the ops that a model has, also those that are gone by the time that rules are asked about the rest."""
        for site in sites:
            if not self._setters:
                self.choose(site)

    def unmatched(self, module_paths: Iterable[str], classes: Collection[type] = ()) -> list[str]:
        """Return a line for each rule that matched nothing, with the closest path.

        `module_paths` and `classes` are those of all modules of the model.
        """
        paths = [*module_paths]
        lines = self._unmatched_names({*self._seen_paths, *paths})
        for number, (kind, key) in enumerate(self._all_rules(), 1):
            if (kind, key) in self._matched or (self._foreign and kind == "object_type"):
                continue
            if kind == "object_type" and (key is None or key in self._gone):
                continue
            if kind == "module_name" and key in paths:
                continue
            if kind == "object_type" and key in classes:
                continue
            if kind == "module_name_regex" and any(re.match(str(key), path) for path in paths):
                continue
            shown = _type_name(key) if kind == "object_type" else repr(key)
            hint = closest(str(key), paths) if kind == "module_name" else ""
            what = {"object_type": "op", "module_name_object_type_order": "op"}.get(kind, "module")
            lines.append(f"rule {number} ({kind}={shown}) matches no {what}.{hint}")
        return lines

    def _unmatched_names(self, known: set[str]) -> list[str]:
        """Return a line for each op that a setter names and the model has not."""
        return [
            f"setter {index} ({_setter_name(setter)}) names {name!r}, which is no op or module.{closest(name, known)}"
            for index, setter in enumerate(self._setters)
            for name in sorted(_names_of(setter))
            if name not in known and not any(fnmatch.fnmatchcase(each, name) for each in known)
        ]

    def _all_rules(self) -> list[tuple[str, object]]:
        m = self.mapping
        return [
            *(("object_type", key) for key in m.object_type_qconfigs),
            *(("module_name_regex", key) for key in m.module_name_regex_qconfigs),
            *(("module_name", key) for key in m.module_name_qconfigs),
            *(("module_name_object_type_order", key) for key in m.module_name_object_type_order_qconfigs),
        ]


def _names_of(setter: object) -> frozenset[str]:
    """Return the ops and modules that a setter of ours is about, or patterns of them."""
    names = getattr(setter, "names", None)
    return names if isinstance(names, frozenset) else frozenset()


def _setter_name(setter: object) -> str:
    return str(getattr(setter, "name", type(setter).__name__))


def _check_arguments(setters: tuple[Setter, ...]) -> None:
    """Raise for callables that cannot be asked: they are given (name, kind, op)."""
    for index, setter in enumerate(setters):
        try:
            if not hasattr(setter, "at"):
                inspect.signature(setter).bind("name", "kind", None)
        except TypeError as error:
            raise ConfigError(
                f"setter {index} ({_setter_name(setter)}) cannot be called with (name, kind, op): {error}. Such a "
                "callable gets the path of an op, its kind (such as 'conv2d') and its class or function."
            ) from error
        except ValueError:  # a builtin without a signature
            continue


def _check_order(setters: tuple[Setter, ...]) -> None:
    """Raise for setters behind one that answers for every op."""
    for index, setter in enumerate(setters[:-1]):
        if getattr(setter, "answers_all", False):
            raise ConfigError(
                f"setter {index} ({_setter_name(setter)}) answers for every op, so setter {index + 1} "
                f"({_setter_name(setters[index + 1])}) is never asked. The first answer wins: put it last."
            )


def _is_rule(source: object) -> bool:
    """Tell whether something can be asked as a rule: a class would be made, and its object taken for the answer."""
    return callable(source) and not isinstance(source, type)


def _check_items(source: tuple[object, ...]) -> None:
    """Raise for what cannot stand in a tuple of rules."""
    for index, item in enumerate(source):
        if not _is_rule(item):
            raise ConfigError(
                f"rule {index} of {len(source)} is a {type(item).__name__}. A tuple of rules holds fxquant.templates "
                "and callables (name, kind, op) -> QConfig; a QConfigMapping, a dict or a QConfig goes alone."
            )


def _holds_foreign(source: object) -> bool:
    """Tell whether a qconfig_dict has qconfigs of torch.ao, whose default rules name ops that few models have."""
    if isinstance(source, Mapping):
        return any(map(_holds_foreign, source.values()))
    if isinstance(source, (list, tuple)) and not hasattr(source, "_fields"):
        return any(map(_holds_foreign, source))
    return type(source).__module__.startswith("torch.ao.")


def _read_foreign(source: Any) -> QConfigMapping:
    """Return a torch.ao QConfigMapping, read by its fields."""
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
