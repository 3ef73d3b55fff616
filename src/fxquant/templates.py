"""Ready rules for the grids of a target, as values: give one, or a tuple of them, in the place of a qconfig mapping.

    fq.prepare_fx(model, (fq.templates.int16(table, top_k=4), fq.templates.calibration), x, target="bpu")

Of a tuple, the first that answers wins at an op; callables `(name, kind, op) -> QConfig | "float" | None` may stand
between. `calibration` and `qat` answer for every op, so they come last. The others take the purpose of the call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fxquant.config.qconfig import QConfig
from fxquant.config.rules import Site
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.errors import ConfigError

__all__ = ["Template", "calibration", "high_precision_outputs", "int16", "qat", "qat_fixed_scales", "weight_only"]

Purpose = Literal["calibration", "qat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """A rule that knows its target when it is used.

    `purpose` is None where it goes with both. `names` are the ops that it answers for, None all; `outputs`: only those
    whose result leaves the model. `bits` are those of activations, None the target's. `fixed` keeps the scales of
    activations in training as calibration found them.
    """

    name: str
    purpose: Purpose | None = None
    names: frozenset[str] | None = None
    outputs: bool = False
    bits: int | None = None
    weights_alone: bool = False
    fixed: bool = False
    target: Target | None = None

    def for_target(self, target: Target, purpose: Purpose) -> Template:
        """Return the same for a target and a call; an error if they do not go together."""
        if self.purpose not in (None, purpose):
            wanted, other = ("calibration", "training") if purpose == "calibration" else ("training", "calibration")
            raise ConfigError(
                f"template {self.name!r} is for {other}, and this call prepares for {wanted}. "
                f"Use templates.{purpose}, or {'prepare_qat_fx' if purpose == 'calibration' else 'prepare_fx'}."
            )
        made = dataclasses.replace(self, target=target, purpose=purpose)
        if self.bits is not None and (why := target.activations.refuse(made._activation(target))):
            raise ConfigError(f"template {self.name!r}: activations of target {target.name!r} cannot have {why}.")
        return made

    @property
    def answers_all(self) -> bool:
        """Whether it leaves no op to the rules behind it."""
        return self.names is None and not self.outputs

    def at(self, site: Site) -> QConfig | None:
        """Return the qconfig at a place, or None for the next rule to answer."""
        if self.target is None:
            raise ConfigError(
                f"template {self.name!r} has no target. Give it to prepare_fx, prepare_qat_fx or quantize."
            )
        if (self.names is not None and not site.is_in(self.names)) or (self.outputs and not site.is_output):
            return None
        weight = self._weight(self.target)
        if self.weights_alone:
            return QConfig(weight=weight)
        activation = self._activation(self.target)
        return QConfig(
            activation=activation,
            weight=weight,
            bias=self.target.bias,
            input=activation if self.bits is not None else None,  # whatever the op before it writes
            output="float" if self.outputs else None,
        )

    def __call__(self, name: str, kind: str, op: object) -> QConfig | None:
        return self.at(Site(path=name, kind=kind, spelling=op))

    def _activation(self, target: Target) -> Spec:
        spec = target.activation if self.bits is None else target.activation.with_(bits=self.bits)
        if self.purpose != "qat":
            return spec
        return spec.with_(observer="moving_average", learn="ste", momentum=0.0 if self.fixed else spec.momentum)

    def _weight(self, target: Target) -> Spec:
        return target.weight.with_(observer="minmax", learn="ste") if self.purpose == "qat" else target.weight


calibration = Template(name="calibration", purpose="calibration")
qat = Template(name="qat", purpose="qat")
# ranges of activations stay those of the calibrated model whose state_dict is loaded; else the first batch gives them
qat_fixed_scales = Template(name="qat_fixed_scales", purpose="qat", fixed=True)
weight_only = Template(name="weight_only", weights_alone=True)
# ops whose result leaves the model take int8 and give their sums as they are
high_precision_outputs = Template(name="high_precision_outputs", outputs=True)


def int16(table: Iterable[object], *, top_k: int | None = None, ratio: float | None = None) -> Template:
    """16-bit inputs and outputs for the most sensitive ops: the first `top_k`, or a share `ratio` of those listed.

    `table` is that of `fxquant.sensitivity`, or rows whose first item is the path of an op, the most sensitive first;
    ops that are no modules go by the names that `explain` has for them (`layer1.0:add`).
    """
    return Template(name="int16", bits=16, names=most_sensitive(table, top_k=top_k, ratio=ratio))


def most_sensitive(table: Iterable[object], *, top_k: int | None, ratio: float | None) -> frozenset[str]:
    """Return the names of the ops at the top of a table of sensitivity."""
    if (top_k is None) == (ratio is None):
        raise ConfigError("sensitive ops: give how many (top_k) or which share of the table (ratio), one of the two.")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0):
        raise ConfigError(f"top_k={top_k!r}: expected a whole number from 0 on.")
    if ratio is not None and not 0 <= ratio <= 1:
        raise ConfigError(f"ratio={ratio!r}: expected a number from 0 to 1.")
    if not isinstance(table, Iterable):
        raise ConfigError(f"{table!r:.80} is no table of sensitivity. Give the result of fxquant.sensitivity.")
    ops = list(dict.fromkeys(path for row in table for path in _ops_of(row)))
    return frozenset(ops[: top_k if top_k is not None else round(len(ops) * (ratio or 0.0))])


def _ops_of(row: object) -> tuple[str, ...]:
    """Return the ops of a row: those that read an activation, or the first item."""
    if hasattr(row, "places"):
        return tuple(row.places)
    if isinstance(row, Sequence) and not isinstance(row, str) and row and isinstance(row[0], str):
        return (row[0],)
    raise ConfigError(
        f"{row!r} is no row of a table of sensitivity. Give the result of fxquant.sensitivity, or rows that begin with "
        "the path of an op."
    )


def for_target(rules: object, target: Target, purpose: Purpose) -> object:
    """Rules as they were given, with each template made for a target. Templates of both purposes are an error."""
    if isinstance(rules, Template):
        return rules.for_target(target, purpose)
    if not isinstance(rules, tuple) or not any(isinstance(rule, Template) for rule in rules):
        return rules
    found = {rule.purpose: rule.name for rule in rules if isinstance(rule, Template) and rule.purpose is not None}
    if len(found) > 1:
        raise ConfigError(
            f"templates for calibration ({found['calibration']!r}) and for training ({found['qat']!r}) are mixed. "
            "Use those of one of the two: calibrate and train in two models, linked by load_state_dict."
        )
    return tuple(rule.for_target(target, purpose) if isinstance(rule, Template) else rule for rule in rules)
