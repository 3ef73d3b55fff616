"""PrepareCustomConfig, ConvertCustomConfig and FuseCustomConfig, with the setters that torch.ao users know.

The plain dict forms (`{"non_traceable_module_name": [...], ...}`) are read by `from_dict`; unknown keys are errors.
All plain attributes of a model are kept, so `preserved_attributes` only checks that they exist.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from fxquant.errors import ConfigError


def _strings(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


class FuseCustomConfig:
    """Options of `fuse_fx`."""

    def __init__(self) -> None:
        self.preserved_attributes: list[str] = []

    def set_preserved_attributes(self, attributes: list[str]) -> FuseCustomConfig:
        """Attributes that must be there afterwards; all of them are, so this only documents the wish."""
        self.preserved_attributes = list(attributes)
        return self


class PrepareCustomConfig:
    """Options of `prepare_fx`."""

    def __init__(self) -> None:
        self.non_traceable_module_names: list[str] = []
        self.non_traceable_module_classes: list[type[nn.Module]] = []
        self.preserved_attributes: list[str] = []

    def set_non_traceable_module_names(self, module_names: str | list[str]) -> PrepareCustomConfig:
        """Modules that are not looked into: one call in the graph, left in float."""
        self.non_traceable_module_names = _strings(module_names)
        return self

    def set_non_traceable_module_classes(self, module_classes: list[type[nn.Module]]) -> PrepareCustomConfig:
        """The same by class; subclasses count."""
        classes = [module_classes] if isinstance(module_classes, type) else list(module_classes)
        self.non_traceable_module_classes = classes
        return self

    def set_preserved_attributes(self, attributes: list[str]) -> PrepareCustomConfig:
        """Attributes that must be there afterwards; all of them are, so this only documents the wish."""
        self.preserved_attributes = list(attributes)
        return self

    @classmethod
    def from_dict(cls, prepare_custom_config_dict: Mapping[str, Any]) -> PrepareCustomConfig:
        """From the older dict form; singular and plural keys are both read."""
        config = cls()
        setters: dict[str, Callable[[Any], PrepareCustomConfig]] = {
            "non_traceable_module_name": config.set_non_traceable_module_names,
            "non_traceable_module_names": config.set_non_traceable_module_names,
            "non_traceable_module_class": config.set_non_traceable_module_classes,
            "non_traceable_module_classes": config.set_non_traceable_module_classes,
            "preserved_attributes": config.set_preserved_attributes,
        }
        for key, value in prepare_custom_config_dict.items():
            if key not in setters:
                raise ConfigError(f"prepare_custom_config key {key!r} is unknown.{_hint(key, setters)}")
            setters[key](value)
        return config


class ConvertCustomConfig:
    """Options of `convert_fx`."""

    def __init__(self) -> None:
        self.preserved_attributes: list[str] = []

    def set_preserved_attributes(self, attributes: list[str]) -> ConvertCustomConfig:
        """Attributes that must be there afterwards; all of them are, so this only documents the wish."""
        self.preserved_attributes = list(attributes)
        return self

    @classmethod
    def from_dict(cls, convert_custom_config_dict: Mapping[str, Any]) -> ConvertCustomConfig:
        """From the older dict form."""
        config = cls()
        for key, value in convert_custom_config_dict.items():
            if key != "preserved_attributes":
                raise ConfigError(
                    f"convert_custom_config key {key!r} is unknown.{_hint(key, ['preserved_attributes'])}"
                )
            config.set_preserved_attributes(value)
        return config


def _hint(key: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f" Closest: {match[0]!r}." if match else f" Known: {', '.join(known)}."
