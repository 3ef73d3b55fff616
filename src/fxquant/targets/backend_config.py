"""A Target from torch.ao's BackendConfig, read by its attributes.

pattern and dtype_configs   ->  kinds       ops with an entry for integers, as far as the base has kernels for them
patterns of several ops     ->  tails       (conv, relu); batch norms are folded in any case
conv + add                  ->  residual
OUTPUT_SHARE_OBSERVER...    ->  share       of kinds that have a range of their own otherwise

What a Target cannot hold is an error: ops, modules and fusers that are not torch's. Constraints on dtypes are for
qconfigs, which `check` compares with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.ops.table import OPS, Op, Role

_SIGNED = {torch.qint8: True, torch.int8: True, torch.quint8: False, torch.uint8: False}
_CLASSES = ("root_module", "qat_module", "reference_quantized_module", "fused_module", "fuser_method")
_SHARES = "OUTPUT_SHARE_OBSERVER_WITH_INPUT"


@dataclass(frozen=True, slots=True)
class Backend:
    """What a BackendConfig says: a target, and the dtypes of weighted ops as (input, weight) constraints."""

    target: Target
    dtypes: tuple[tuple[Any, Any], ...]

    def check(self, mapping: QConfigMapping) -> None:
        """Raise a ConfigError for a static qconfig of weighted ops that no entry of the backend allows."""
        types = mapping.object_type_qconfigs
        others = [qconfig for object_type, qconfig in types.items() if self._is_without_weight(object_type)]
        for qconfig in mapping.qconfigs():
            if any(qconfig is other for other in others):
                continue
            if qconfig is None or qconfig.activation is None or not isinstance(qconfig.weight, Spec):
                continue
            specs = qconfig.activation, qconfig.weight
            if qconfig.is_dynamic or any(all(map(_allows, pair, specs)) for pair in self.dtypes):
                continue
            raise ConfigError(
                f"backend_config {self.target.name!r} has no entry for activations of {specs[0]} with weights of "
                f"{specs[1]}. Give a qconfig inside of its dtype_configs, or leave backend_config out."
            )

    def _is_without_weight(self, object_type: object) -> bool:
        op = OPS.of(object_type)
        return op is not None and not (op.has_weight and op.kind in self.target.kinds)


def read_backend_config(config: object, base: Target) -> Backend:
    """Read torch.ao's object, or its dict form."""
    entries = _get(config, "configs")
    if entries is None:
        raise ConfigError(
            f"backend_config is a {type(config).__name__}. Give torch.ao's BackendConfig, or target= instead."
        )
    kinds: set[str] = set()
    share: set[str] = set()
    residual: set[str] = set()
    tails: dict[str, set[str]] = {}
    dtypes: list[tuple[Any, Any]] = []
    for entry in entries:
        integers = [each for each in _get(entry, "dtype_configs") or () if _is_integer(each)]
        _refuse_classes(entry)
        ops = [op for op in _ops(entry) if not op.folds or _is_single(entry)]
        if not integers or not ops:
            continue
        kinds.update(op.kind for op in ops if op.role is not Role.FLOAT)
        if any(op.adds for op in ops[1:]):
            residual.add(ops[0].kind)
        elif len(ops) > 1:
            tails.setdefault(ops[0].kind, set()).update(op.kind for op in ops[1:])
        if str(_get(entry, "observation_type")).endswith(_SHARES):
            share.update(op.kind for op in ops if op.role is Role.OWN_RANGE)
        if ops[0].has_weight:
            dtypes += [(_constraint(each, "input"), _constraint(each, "weight")) for each in integers]
    target = dataclasses.replace(
        base,
        name=str(_get(config, "name") or "backend_config"),
        kinds=base.kinds & kinds,
        tails={kind: base.tails[kind] & found for kind, found in tails.items() if kind in base.tails},
        residual=base.residual & residual,
        share=base.share | (base.kinds & share),
    )
    return Backend(target, tuple(dtypes))


def _get(entry: object, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _pattern(entry: object) -> object:
    """Return a class, function or name; or several, root first."""
    nested = _get(entry, "_pattern_complex_format") or _get(entry, "pattern_complex_format")
    if nested is None:
        return _get(entry, "pattern")
    flat = tuple(reversed(list(_flatten(nested))))
    return flat if len(flat) > 1 else flat[0]


def _flatten(nested: object) -> Iterator[object]:
    for item in nested if isinstance(nested, tuple) else (nested,):
        yield from _flatten(item) if isinstance(item, tuple) else (item,)


def _is_single(entry: object) -> bool:
    return not isinstance(_pattern(entry), tuple)


def _ops(entry: object) -> Iterator[Op]:
    """Return the ops of a pattern, the weighted one first.

    Those of torch that the op table does not have stay in float.
    """
    pattern = _pattern(entry)
    found = []
    for part in pattern if isinstance(pattern, tuple) else (pattern,):
        op = OPS.of(part)
        if op is not None:
            found.append(op)
        elif not isinstance(part, str) and not _is_known(part):
            name = getattr(part, "__qualname__", part)
            raise ConfigError(
                f"backend_config has the pattern {name}, which is no op that fxquant knows. Leave the entry out and "
                "make it a custom module (PrepareCustomConfig.set_float_to_observed_mapping), or wrap it."
            )
    yield from sorted(found, key=lambda op: not op.has_weight)


def _is_known(part: object) -> bool:
    """Tell whether a class or function is torch's, or Python's."""
    module = str(getattr(part, "__module__", None) or "torch")
    return module.partition(".")[0] in ("torch", "torchao", "operator", "_operator", "builtins")


def _refuse_classes(entry: object) -> None:
    for name in _CLASSES:
        value = _get(entry, name)
        if value is not None and not _is_known(value):
            raise ConfigError(
                f"backend_config has {name}={getattr(value, '__qualname__', value)}. Modules and fusers of one's own "
                "are not put in here; make it a custom module (PrepareCustomConfig.set_float_to_observed_mapping)."
            )


def _is_integer(dtype_config: object) -> bool:
    """Tell whether an entry is for integers, and not for one fixed grid, which ops such as sigmoid have anyway."""
    wanted = _constraint(dtype_config, "input")
    weight = _constraint(dtype_config, "weight")
    return wanted.dtype in _SIGNED or weight.dtype in (*_SIGNED, torch.quint4x2)


def _constraint(dtype_config: object, side: str) -> _Constraint:
    found = _get(dtype_config, f"{side}_dtype_with_constraints") or _get(dtype_config, f"{side}_dtype")
    return cast(_Constraint, found) if hasattr(found, "quant_min_lower_bound") else _Plain(found)


class _Constraint(Protocol):
    """torch.ao's DTypeWithConstraints."""

    @property
    def dtype(self) -> torch.dtype | None: ...

    @property
    def quant_min_lower_bound(self) -> float | None: ...

    @property
    def quant_max_upper_bound(self) -> float | None: ...

    @property
    def scale_min_lower_bound(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class _Plain:
    """A dtype without constraints."""

    dtype: torch.dtype | None
    quant_min_lower_bound: None = None
    quant_max_upper_bound: None = None
    scale_min_lower_bound: None = None


def _allows(constraint: _Constraint, spec: Spec) -> bool:
    low, high, scale = (
        constraint.quant_min_lower_bound,
        constraint.quant_max_upper_bound,
        constraint.scale_min_lower_bound,
    )
    inside = (low is None or low <= spec.quant_min) and (high is None or spec.quant_max <= high)
    signed = None if constraint.dtype is None else _SIGNED.get(constraint.dtype)
    # a grid without negative numbers fits both dtypes if it leaves the top bit free
    fits = signed == spec.signed or (signed is True and spec.bits < 8)
    return fits and spec.bits <= 8 and inside and (scale is None or scale <= spec.min_scale)
