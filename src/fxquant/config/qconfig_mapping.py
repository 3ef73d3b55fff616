"""QConfigMapping: the user's rules, with the setters that torch.ao users know. config/rules.py applies them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fxquant.config.forms import closest
from fxquant.config.qconfig import QConfig, as_qconfig
from fxquant.errors import ConfigError

STANDALONE = ("standalone_module_name", "standalone_module_class")
_DICT_KEYS = (
    *("", "global", "object_type", "module_name_regex", "module_name", "module_name_object_type_order"),
    *STANDALONE,
)


class _SetGlobal:
    """`mapping.set_global(qconfig)`; called on the class, as some guides have it, it starts a mapping."""

    def __get__(self, mapping: QConfigMapping | None, cls: type[QConfigMapping]) -> Callable[[object], QConfigMapping]:
        def set_global(global_qconfig: object) -> QConfigMapping:
            """Return what holds where no other rule does."""
            found = cls() if mapping is None else mapping
            found.global_qconfig = as_qconfig(global_qconfig)
            return found

        return set_global


class QConfigMapping:
    """Rules from parts of a model to qconfigs. The setters return self, so that they chain.

    Example:
        >>> mapping = fq.QConfigMapping().set_global(fq.get_default_qconfig("x86"))
        >>> mapping = mapping.set_object_type(nn.AdaptiveAvgPool2d, None).set_module_name("head", None)  # in float
        >>> prepared = fq.prepare_fx(model, mapping, (loader[0],))
    """

    def __init__(self) -> None:
        self.global_qconfig: QConfig | None = None
        self.object_type_qconfigs: dict[Any, QConfig | None] = {}
        self.module_name_regex_qconfigs: dict[str, QConfig | None] = {}
        self.module_name_qconfigs: dict[str, QConfig | None] = {}
        self.module_name_object_type_order_qconfigs: dict[tuple[str, Any, int], QConfig | None] = {}
        self.standalone: dict[str, list[Any]] = {}  # as in PrepareCustomConfig, which older dicts name here

    set_global = _SetGlobal()

    def set_object_type(self, object_type: object, qconfig: object) -> QConfigMapping:
        """Set the qconfig of a module class, a function, a method name. A class that is no op matches all inside it.

        A dotted name such as "torch.nn.Conv2d" stands for what torch has there, or had: of a function that is gone,
        "torch.nn.functional.add", the last word counts. None, for what a torch does not have, matches nothing.
        """
        self.object_type_qconfigs[object_type] = as_qconfig(qconfig)
        return self

    def set_module_name_regex(self, module_name_regex: str, qconfig: object) -> QConfigMapping:
        """Set the qconfig of paths that `re.match` the pattern; the first pattern that matches wins."""
        try:
            re.compile(module_name_regex)
        except re.error as error:
            raise ConfigError(
                f"module_name_regex {module_name_regex!r} is not a regular expression: {error}"
            ) from error
        self.module_name_regex_qconfigs[module_name_regex] = as_qconfig(qconfig)
        return self

    def set_module_name(self, module_name: str, qconfig: object) -> QConfigMapping:
        """Set the qconfig of a module path and everything below it, unless a longer path has a rule."""
        self.module_name_qconfigs[module_name] = as_qconfig(qconfig)
        return self

    def set_module_name_object_type_order(
        self, module_name: str, object_type: object, index: int, qconfig: object
    ) -> QConfigMapping:
        """Set the qconfig of the `index`-th op of a type directly inside a module."""
        self.module_name_object_type_order_qconfigs[(module_name, object_type, index)] = as_qconfig(qconfig)
        return self

    @classmethod
    def from_dict(cls, qconfig_dict: Mapping[str, Any]) -> QConfigMapping:
        """From a `qconfig_dict`: `{"": q, "object_type": [(t, q)], ...}`, or the flat form `{"": q, "sub": q1}`."""
        mapping = cls()
        structured = any(
            isinstance(value, (list, tuple)) and not hasattr(value, "weight")
            for key, value in qconfig_dict.items()
            if key not in STANDALONE
        )
        for key, value in qconfig_dict.items():
            if key in ("", "global"):
                mapping.set_global(value)
            elif key in STANDALONE:
                mapping.standalone[key] = [value] if isinstance(value, (str, type)) else list(value)
            elif isinstance(value, (list, tuple)) and not hasattr(value, "weight"):
                if key not in _DICT_KEYS:
                    raise ConfigError(f"qconfig_dict key {key!r} is unknown.{closest(key, _DICT_KEYS)}")
                for entry in value:
                    if isinstance(entry, str) or not isinstance(entry, Sequence):
                        raise ConfigError(
                            f"qconfig_dict[{key!r}] has the entry {entry!r}. Give a list of pairs, "
                            f"such as [({entry!r}, qconfig)]."
                        )
                    try:
                        getattr(mapping, f"set_{key}")(*entry)
                    except TypeError as error:
                        raise ConfigError(f"qconfig_dict[{key!r}] has the entry {entry!r}: {error}") from error
            elif structured:
                raise ConfigError(f"qconfig_dict key {key!r} is unknown.{closest(key, _DICT_KEYS)}")
            else:
                mapping.set_module_name(key, value)
        return mapping

    def to_dict(self) -> dict[str, Any]:
        """Return the structured dict form; `from_dict` reads it back."""
        orders = self.module_name_object_type_order_qconfigs.items()
        return {
            "": self.global_qconfig,
            "object_type": list(self.object_type_qconfigs.items()),
            "module_name_regex": list(self.module_name_regex_qconfigs.items()),
            "module_name": list(self.module_name_qconfigs.items()),
            "module_name_object_type_order": [(*key, value) for key, value in orders],
            **self.standalone,
        }

    def qconfigs(self) -> list[QConfig | None]:
        """Return the qconfigs of all rules."""
        tables = self.to_dict()
        rules = [key for key in tables if key and key not in STANDALONE]
        return [tables[""], *(entry[-1] for key in rules for entry in tables[key])]

    def __repr__(self) -> str:
        return f"QConfigMapping.from_dict({self.to_dict()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QConfigMapping) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]
