"""A target as a file of plain values, and back.

    base: tensorrt                      a known target to start from; without it, all that Target needs is given
    name: my-chip
    activation: {bits: 8, symmetric: true}        the fields of Spec; so for Grids, Shapes, Kernel, Position
    tails: {conv2d: [relu, clamp]}

Nothing of a file is run: it is read by YAML's safe loader, and every key and value is checked.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fxquant.config.check_fields import check_arguments
from fxquant.config.forms import closest
from fxquant.config.limits import Grids, Kernel, Position, Shapes
from fxquant.config.read_yaml import read_yaml
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.targets import TARGETS, by_name

_Read = Callable[[Any, str], Any]


def load_target(path: str | os.PathLike[str]) -> Target:
    """Return a Target from a YAML file; docs/adding_a_target.md has one.

    Example:
        >>> _ = open("chip.yaml", "w").write("name: chip\\nbase: tflite\\n")
        >>> quantized = fq.quantize(model, loader, target=fq.load_target("chip.yaml"))
    """
    check_arguments(load_target, path=path)
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        name = str(path)
        hint = f" That is the name of a known target: target={name!r} takes it." if name in TARGETS else ""
        raise ConfigError(f"load_target cannot read {name!r}: {error}.{hint}") from None
    return from_plain(read_yaml(text, str(file))[0], str(file))


def find_target(name: str) -> Target:
    """Return a known target by its name, or one from the file of that name."""
    if name.endswith((".yaml", ".yml", ".json")):
        return load_target(name)
    if name not in TARGETS and os.path.exists(name):
        raise ConfigError(f"target {name!r} is no known name. Files of targets have names that end in .yaml or .json.")
    return by_name(name)


def to_plain(value: object) -> object:
    """Return a target, or a part of one, as what YAML and JSON hold. Fields that are as by default are left out."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {f.name: to_plain(getattr(value, f.name)) for f in fields if not _is_default(f, getattr(value, f.name))}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in sorted(value.items())}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(content: object, where: str = "target") -> Target:
    """Return the target that plain values describe."""
    given = dict(_mapping(content, where))
    base = given.pop("base", None)
    if base is not None:
        known = _made(lambda: by_name(base), f"{where}.base")
        assert isinstance(known, Target)
        changes = _fields(given, Target, _TARGET, where)
        made = _made(lambda: dataclasses.replace(known, **changes), where)
    else:
        made = _build(Target, _TARGET)(given, where)
    assert isinstance(made, Target)
    return made


def _is_default(field: dataclasses.Field[object], value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and bool(value == field.default)


def _mapping(content: object, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} holds {_shown(content)}. Give a mapping of fields.")
    return content


def _shown(value: object) -> str:
    return f"{value!r:.80}"


def _kinds(value: object, where: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where} is {_shown(value)}. Give a list of kinds.")
    return frozenset(value)


def _tuple(value: object, where: str) -> object:
    return tuple(value) if isinstance(value, list) else value


def _each(read: _Read) -> _Read:
    return lambda value, where: {key: read(item, f"{where}.{key}") for key, item in _mapping(value, where).items()}


def _list(read: _Read) -> _Read:
    def make(value: object, where: str) -> object:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {_shown(value)}. Give a list.")
        return tuple(read(item, f"{where}[{i}]") for i, item in enumerate(value))

    return make


def _fields(content: object, cls: type[Any], readers: Mapping[str, _Read], where: str) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.name != "factory"]
    found = {}
    for key, value in _mapping(content, where).items():
        if key not in names:
            raise ConfigError(f"{where} has no field {key!r}.{closest(str(key), names)} Known: {', '.join(names)}.")
        found[key] = readers.get(key, _tuple)(value, f"{where}.{key}")
    return found


def _build(cls: type[Any], readers: Mapping[str, _Read]) -> _Read:
    def make(content: object, where: str) -> object:
        found = _fields(content, cls, readers, where)
        needed = [field.name for field in dataclasses.fields(cls) if _is_needed(field) and field.name not in found]
        if needed:
            base = ", or base: with the name of a known target" if cls is Target else ""
            raise ConfigError(f"{where} lacks {', '.join(needed)}. Give {'it' if len(needed) == 1 else 'them'}{base}.")
        return _made(lambda: cls(**found), where)

    return make


def _is_needed(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _made(make: Callable[[], object], where: str) -> object:
    try:
        return make()
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: {error}") from None


_SPEC, _GRIDS, _SHAPES = _build(Spec, {}), _build(Grids, {}), _build(Shapes, {})
_KERNEL = _build(Kernel, {"input": _GRIDS, "weight": _GRIDS, "output": _GRIDS, "shapes": _SHAPES})
_POSITION = _build(Position, {"kinds": _kinds, "before": _kinds, "after": _kinds})


def _bias(value: object, where: str) -> object:
    if value is None or value == "int32":
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {_shown(value)}. Give int32, the fields of a Spec, or null for float.")
    return _SPEC(value, where)


_TARGET: Mapping[str, _Read] = {
    **dict.fromkeys(("kinds", "residual", "share", "signed", "split", "rewrites", "channel_scales"), _kinds),
    "activation": _SPEC,
    "weight": _SPEC,
    "bias": _bias,
    "tails": _each(_kinds),
    "ranges": _each(_tuple),
    "activations": _GRIDS,
    "weights": _GRIDS,
    "shapes": _SHAPES,
    "kernels": _each(_KERNEL),
    "positions": _list(_POSITION),
}
