"""A hardware target, as data: which kinds run in int8, what a kernel fuses, and the default specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fxquant.core.ops import OPS
from fxquant.core.qconfig import QConfig
from fxquant.core.spec import Int32, Spec
from fxquant.errors import ConfigError

SPLITTABLE = frozenset(("silu",))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a piece of hardware (with the software that drives it) can run.

    `kinds` run in int8. `tails[kind]` are the unary kinds that its kernel applies before it writes its output.
    `residual` are the kinds whose kernel can add a second int8 tensor. `share` are kinds whose output has to use the
    input's scale although the op table gives them a range of their own. `signed` are kinds whose kernel takes signed
    operands with a zero point of 0 only, whatever the qconfig says. `split` are kinds that are written as smaller ops
    first ("silu"; see passes/split_ops.py). `bias` is as in QConfig. `shift` are the least and the greatest right shift
    from accumulator to output, for hardware whose scales are powers of two.
    """

    name: str
    kinds: frozenset[str]
    activation: Spec
    weight: Spec
    tails: Mapping[str, frozenset[str]] = field(default_factory=dict)
    residual: frozenset[str] = frozenset()
    share: frozenset[str] = frozenset()
    signed: frozenset[str] = frozenset()
    split: frozenset[str] = frozenset()
    bias: Spec | Int32 | None = None
    shift: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        named = {*self.kinds, *self.tails, *self.residual, *self.share, *self.signed, *self.split}
        named.update(kind for kinds in self.tails.values() for kind in kinds)
        beyond = sorted(self.split - SPLITTABLE)
        if beyond:
            raise ConfigError(f"Target {self.name!r}: split takes {', '.join(SPLITTABLE)}, not {', '.join(beyond)}.")
        unknown = sorted(named - OPS.by_kind.keys())
        if unknown:
            raise ConfigError(f"Target {self.name!r} names kinds that are not in the op table: {', '.join(unknown)}.")

    @property
    def qconfig(self) -> QConfig:
        """The post-training static qconfig of the target."""
        return QConfig(activation=self.activation, weight=self.weight, bias=self.bias)
