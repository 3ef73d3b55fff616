"""PrepareCustomConfig, ConvertCustomConfig and FuseCustomConfig, with the setters that torch.ao users know.

The plain dict forms (`{"non_traceable_module_name": [...], ...}`) are read by `from_dict`; unknown keys are errors.
All plain attributes of a model are kept, so `preserved_attributes` only checks that they exist.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fxquant.config.forms import (
    as_dict,
    as_indexes,
    as_strings,
    by_quant_type,
    closest,
    given,
    need_method,
    need_module_class,
    read_keys,
    set_each,
    set_pairs,
)
from fxquant.errors import ConfigError


class QuantType(enum.Enum):
    """How a custom module is quantized."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    WEIGHT_ONLY = "weight_only"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standalone:
    """How a standalone module is prepared. None for the mapping means the parent's rules."""

    qconfig_mapping: Any = None
    example_inputs: tuple[Any, ...] | None = None
    prepare_custom_config: PrepareCustomConfig | None = None

    def row(self) -> tuple[object, ...]:
        """Return what follows the name or class in a dict: mapping, example inputs, custom config, backend config."""
        custom = self.prepare_custom_config
        return self.qconfig_mapping, self.example_inputs, None if custom is None else custom.to_dict(), None


ModulePairs = dict[QuantType, dict[type[nn.Module], type[nn.Module]]]


class FuseCustomConfig:
    """Options of `fuse_fx`.

    Example:
        >>> custom = fq.FuseCustomConfig().set_preserved_attributes(["training"])
        >>> fused = fq.fuse_fx(model, fuse_custom_config=custom)
    """

    def __init__(self) -> None:
        self.preserved_attributes: list[str] = []

    def set_preserved_attributes(self, attributes: list[str]) -> FuseCustomConfig:
        """Attributes that must be there afterwards; one that the model lacks is an error."""
        self.preserved_attributes = as_strings(attributes)
        return self

    @classmethod
    def from_dict(cls, fuse_custom_config_dict: Mapping[str, object]) -> FuseCustomConfig:
        """From the older dict form."""
        config = cls()
        read_keys(
            "fuse_custom_config", fuse_custom_config_dict, {"preserved_attributes": config.set_preserved_attributes}
        )
        return config

    def to_dict(self) -> dict[str, object]:
        """Return the dict form; `from_dict` reads it back."""
        return given({"preserved_attributes": self.preserved_attributes})


class PrepareCustomConfig:
    """Options of `prepare_fx`.

    Example:
        >>> custom = fq.PrepareCustomConfig().set_input_quantized_indexes([0])  # the model takes integers
        >>> mapping = fq.get_default_qconfig_mapping()
        >>> prepared = fq.prepare_fx(model, mapping, (loader[0],), prepare_custom_config=custom)
    """

    def __init__(self) -> None:
        self.standalone_module_names: dict[str, Standalone] = {}
        self.standalone_module_classes: dict[type[nn.Module], Standalone] = {}
        self.float_to_observed_mapping: ModulePairs = {}
        self.non_traceable_module_names: list[str] = []
        self.non_traceable_module_classes: list[type[nn.Module]] = []
        self.input_quantized_indexes: list[int] = []
        self.output_quantized_indexes: list[int] = []
        self.preserved_attributes: list[str] = []

    def set_standalone_module_name(
        self,
        module_name: str,
        qconfig_mapping: object = None,
        example_inputs: object = None,
        prepare_custom_config: PrepareCustomConfig | Mapping[str, object] | None = None,
        backend_config: object = None,
    ) -> PrepareCustomConfig:
        """Capture and quantize a module as one unit: one call in the graph around it.

        Its own mapping names paths from itself on; without one the rules of the whole model hold in it. Without
        example inputs of its own it takes those that it gets in a run of the model.
        """
        entry = _standalone(qconfig_mapping, example_inputs, prepare_custom_config, backend_config)
        self.standalone_module_names[module_name] = entry
        return self

    def set_standalone_module_class(
        self,
        module_class: type[nn.Module],
        qconfig_mapping: object = None,
        example_inputs: object = None,
        prepare_custom_config: PrepareCustomConfig | Mapping[str, object] | None = None,
        backend_config: object = None,
    ) -> PrepareCustomConfig:
        """Do the same for every module of a class."""
        entry = _standalone(qconfig_mapping, example_inputs, prepare_custom_config, backend_config)
        self.standalone_module_classes[need_module_class(module_class, "standalone_module_class")] = entry
        return self

    def set_float_to_observed_mapping(
        self, float_class: type[nn.Module], observed_class: type[nn.Module], quant_type: object = QuantType.STATIC
    ) -> PrepareCustomConfig:
        """Modules of `float_class` become `observed_class.from_float(module)`, where a rule of that type says so."""
        need_method(observed_class, "from_float", "float_to_observed")
        pairs = self.float_to_observed_mapping.setdefault(as_quant_type(quant_type), {})
        pairs[need_module_class(float_class, "float_to_observed")] = observed_class
        return self

    def set_non_traceable_module_names(self, module_names: str | list[str]) -> PrepareCustomConfig:
        """Modules that are not looked into: one call in the graph, left in float."""
        self.non_traceable_module_names = as_strings(module_names)
        return self

    def set_non_traceable_module_classes(
        self, module_classes: type[nn.Module] | list[type[nn.Module]]
    ) -> PrepareCustomConfig:
        """Do the same by class; subclasses count."""
        classes = [module_classes] if isinstance(module_classes, type) else list(module_classes)
        self.non_traceable_module_classes = [need_module_class(cls, "non_traceable_module_class") for cls in classes]
        return self

    def set_input_quantized_indexes(self, indexes: list[int]) -> PrepareCustomConfig:
        """Positional inputs of the converted model that arrive as integers; see `boundary_qparams`."""
        self.input_quantized_indexes = as_indexes(indexes, "input_quantized_indexes")
        return self

    def set_output_quantized_indexes(self, indexes: list[int]) -> PrepareCustomConfig:
        """Outputs of the converted model that are returned as integers; see `boundary_qparams`."""
        self.output_quantized_indexes = as_indexes(indexes, "output_quantized_indexes")
        return self

    def set_preserved_attributes(self, attributes: list[str]) -> PrepareCustomConfig:
        """Attributes that must be there afterwards; one that the model lacks is an error."""
        self.preserved_attributes = as_strings(attributes)
        return self

    @classmethod
    def from_dict(cls, prepare_custom_config_dict: Mapping[str, object]) -> PrepareCustomConfig:
        """From the older dict form; singular and plural keys are both read."""
        config = cls()
        setters: dict[str, Callable[[Any], object]] = {
            "non_traceable_module_name": config.set_non_traceable_module_names,
            "non_traceable_module_names": config.set_non_traceable_module_names,
            "non_traceable_module_class": config.set_non_traceable_module_classes,
            "non_traceable_module_classes": config.set_non_traceable_module_classes,
            "standalone_module_name": lambda rows: set_each(config.set_standalone_module_name, rows),
            "standalone_module_names": lambda rows: set_each(config.set_standalone_module_name, rows),
            "standalone_module_class": lambda rows: set_each(config.set_standalone_module_class, rows),
            "standalone_module_classes": lambda rows: set_each(config.set_standalone_module_class, rows),
            "float_to_observed_custom_module_class": lambda d: set_pairs(config.set_float_to_observed_mapping, d),
            "float_to_observed_mapping": lambda d: set_pairs(config.set_float_to_observed_mapping, d),
            "input_quantized_idxs": config.set_input_quantized_indexes,
            "input_quantized_indexes": config.set_input_quantized_indexes,
            "output_quantized_idxs": config.set_output_quantized_indexes,
            "output_quantized_indexes": config.set_output_quantized_indexes,
            "preserved_attributes": config.set_preserved_attributes,
        }
        read_keys("prepare_custom_config", prepare_custom_config_dict, setters)
        return config

    def to_dict(self) -> dict[str, object]:
        """Return the dict form; `from_dict` reads it back."""
        names, classes = self.standalone_module_names.items(), self.standalone_module_classes.items()
        return given(
            {
                "standalone_module_name": [(name, *entry.row()) for name, entry in names],
                "standalone_module_class": [(cls, *entry.row()) for cls, entry in classes],
                "float_to_observed_custom_module_class": by_quant_type(self.float_to_observed_mapping),
                "non_traceable_module_name": self.non_traceable_module_names,
                "non_traceable_module_class": self.non_traceable_module_classes,
                "input_quantized_idxs": self.input_quantized_indexes,
                "output_quantized_idxs": self.output_quantized_indexes,
                "preserved_attributes": self.preserved_attributes,
            }
        )

    def with_standalone(self, rows: Mapping[str, list[object]]) -> PrepareCustomConfig:
        """Return the same config with standalone modules that a qconfig_dict names."""
        if not any(rows.values()):
            return self
        config = copy.copy(self)
        config.standalone_module_names = dict(self.standalone_module_names)
        config.standalone_module_classes = dict(self.standalone_module_classes)
        set_each(config.set_standalone_module_name, rows.get("standalone_module_name", ()))
        set_each(config.set_standalone_module_class, rows.get("standalone_module_class", ()))
        return config


class ConvertCustomConfig:
    """Options of `convert_fx`.

    Example:
        >>> custom = fq.ConvertCustomConfig().set_preserved_attributes(["training"])
        >>> prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (loader[0],))
        >>> quantized = fq.convert_fx(fq.calibrate(prepared, loader), convert_custom_config=custom)
    """

    def __init__(self) -> None:
        self.observed_to_quantized_mapping: ModulePairs = {}
        self.preserved_attributes: list[str] = []

    def set_observed_to_quantized_mapping(
        self, observed_class: type[nn.Module], quantized_class: type[nn.Module], quant_type: object = QuantType.STATIC
    ) -> ConvertCustomConfig:
        """Modules of `observed_class` become `quantized_class.from_observed(module)`."""
        need_method(quantized_class, "from_observed", "observed_to_quantized")
        pairs = self.observed_to_quantized_mapping.setdefault(as_quant_type(quant_type), {})
        pairs[need_module_class(observed_class, "observed_to_quantized")] = quantized_class
        return self

    def set_preserved_attributes(self, attributes: list[str]) -> ConvertCustomConfig:
        """Attributes that must be there afterwards; one that the model lacks is an error."""
        self.preserved_attributes = as_strings(attributes)
        return self

    @classmethod
    def from_dict(cls, convert_custom_config_dict: Mapping[str, object]) -> ConvertCustomConfig:
        """From the older dict form."""
        config = cls()
        setters: dict[str, Callable[[Any], object]] = {
            "observed_to_quantized_custom_module_class": lambda d: set_pairs(
                config.set_observed_to_quantized_mapping, d
            ),
            "observed_to_quantized_mapping": lambda d: set_pairs(config.set_observed_to_quantized_mapping, d),
            "preserved_attributes": config.set_preserved_attributes,
        }
        read_keys("convert_custom_config", convert_custom_config_dict, setters)
        return config

    def to_dict(self) -> dict[str, object]:
        """Return the dict form; `from_dict` reads it back."""
        return given(
            {
                "observed_to_quantized_custom_module_class": by_quant_type(self.observed_to_quantized_mapping),
                "preserved_attributes": self.preserved_attributes,
            }
        )


def as_prepare_config(config: object) -> PrepareCustomConfig:
    """Ours, a plain dict, torch.ao's object (it has a `to_dict`), or None."""
    if config is None or isinstance(config, PrepareCustomConfig):
        return config or PrepareCustomConfig()
    return PrepareCustomConfig.from_dict(as_dict(config, "prepare_custom_config"))


def as_convert_config(config: object) -> ConvertCustomConfig:
    """Return the same for `convert_fx`."""
    if config is None or isinstance(config, ConvertCustomConfig):
        return config or ConvertCustomConfig()
    return ConvertCustomConfig.from_dict(as_dict(config, "convert_custom_config"))


def as_fuse_config(config: object) -> FuseCustomConfig:
    """Return the same for `fuse_fx`."""
    if config is None or isinstance(config, FuseCustomConfig):
        return config or FuseCustomConfig()
    return FuseCustomConfig.from_dict(as_dict(config, "fuse_custom_config"))


def as_quant_type(value: object) -> QuantType:
    """Ours, torch.ao's (by its name), or "static", "dynamic", "weight_only"."""
    name = str(getattr(value, "name", value)).upper()
    if name not in QuantType.__members__:
        known = ", ".join(repr(kind.value) for kind in QuantType)
        raise ConfigError(f"quant_type {value!r} is unknown. Known: {known}.")
    return QuantType[name]


def check_preserved(model: nn.Module, names: Iterable[str], caller: str) -> None:
    """Raise a ConfigError for a name in `preserved_attributes` that the model does not have."""
    for name in names:
        if not hasattr(model, name):
            known = [key for key in (*model.__dict__, *model._modules, *dir(type(model))) if not key.startswith("__")]
            raise ConfigError(
                f"{caller}: preserved_attributes names {name!r}, which {type(model).__name__} does not have."
                f"{closest(name, known)}"
            )


def _standalone(mapping: object, example_inputs: object, custom: object, backend_config: object) -> Standalone:
    if backend_config is not None:
        raise ConfigError("a standalone module's backend_config is torch.ao's description of hardware. Leave it None.")
    if example_inputs is not None and not isinstance(example_inputs, (tuple, list)):
        example_inputs = (example_inputs,)
    return Standalone(
        qconfig_mapping=mapping,
        example_inputs=tuple(example_inputs) if example_inputs else None,
        prepare_custom_config=None if custom is None else as_prepare_config(custom),
    )
