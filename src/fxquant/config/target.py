"""A hardware target, as data: which kinds run in int8, what a kernel fuses, what grids it takes, the default specs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fxquant.config.check_fields import check_fields
from fxquant.config.forms import closest
from fxquant.config.limits import Grids, Kernel, Position, Shapes
from fxquant.config.qconfig import QConfig
from fxquant.config.spec import Int32, Spec
from fxquant.errors import ConfigError
from fxquant.ops.table import OPS

REWRITES = (  # passes of these names, in this order
    *("silu_to_hardswish", "sigmoid_to_hardsigmoid", "round_leaky_slopes", "batch_norm_to_conv", "split_to_slice"),
    *("mean_to_pool", "split_pools", "scale_average_pools"),
)
BIASES = ("float", "int32", "int16", "int8")
_ANY = Kernel()


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a piece of hardware (with the software that drives it) can run.

    `kinds` run in int8: products by a kernel, the others on int8 tensors, by a kernel or by a float op in between.
    `tails[kind]` are the unary kinds that its kernel applies before it rounds its output.
    `residual` are the kinds whose kernel can add a second int8 tensor. `share` are kinds whose output has to use the
    input's scale although the op table gives them a range of their own. `signed` are kinds whose kernel takes signed
    operands with a zero point of 0 only, whatever the qconfig says. `split` are kinds that are written as smaller ops
    first (passes/split_ops.py). `rewrites` are the passes that bring a model into the form of the hardware
    (REWRITES; each is a file in passes/). `ranges` are those of outputs that the hardware fixes otherwise than the op
    table. `integer_outputs`: every int8 kernel writes integers, also where only float ops read them. `rounded_outputs`
    are kinds without a kernel from integers to floats: theirs do so, too, but not in the last layers of a model.
    `channel_scales` are convolutions that may have a scale for each channel of their input where they are depthwise.

    `activation`, `weight` and `bias` are the default specs (`bias` as in QConfig). What else is allowed: `activations`,
    `weights`, `biases` (of BIASES; none named allows all) and `shapes` for all kinds, `kernels` for single ones. An op
    for which a rule asks beyond that stays in float, and its Decision says why. `positions` are what holds between
    the scales of tensors that are powers of two (passes/solve_positions.py). `clear_ties`: float scales move by a hair,
    to where no sum of integers comes near the middle between two steps, so that a file gives the same bits in whatever
    order a runtime multiplies its scales (passes/clear_ties.py).

    Example:
        >>> activation, weight = fq.Spec(), fq.Spec(granularity="per_channel", observer="minmax")
        >>> board = fq.Target(name="board", kinds=frozenset({"conv2d", "linear"}), activation=activation, weight=weight)
        >>> quantized = fq.quantize(model, loader, target=board, engine="reference")
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
    rewrites: frozenset[str] = frozenset()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    integer_outputs: bool = False
    rounded_outputs: frozenset[str] = frozenset()
    channel_scales: frozenset[str] = frozenset()
    bias: Spec | Int32 | None = None
    activations: Grids = field(default_factory=Grids)
    weights: Grids = field(default_factory=Grids)
    biases: tuple[str, ...] = ()
    shapes: Shapes = field(default_factory=Shapes)
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    positions: tuple[Position, ...] = ()
    clear_ties: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.name:
            raise ConfigError("Target(name=''): give it a name, by which explain and errors speak of it.")
        self._check_ranges()
        named = {*self.kinds, *self.tails, *self.residual, *self.share, *self.signed, *self.split, *self.channel_scales}
        named.update(self.rounded_outputs)
        named.update(kind for kinds in self.tails.values() for kind in kinds)
        named.update((*self.ranges, *self.kernels))
        named.update(kind for each in self.positions for kind in (*each.kinds, *each.before, *each.after))
        splittable = sorted(kind for kind, op in OPS.by_kind.items() if op.splits)
        beyond = sorted({*self.split} - {*splittable})
        if beyond:
            raise ConfigError(f"Target {self.name!r}: split takes {', '.join(splittable)}, not {', '.join(beyond)}.")
        unknown = sorted(named - OPS.by_kind.keys())
        if unknown:
            raise ConfigError(
                f"Target {self.name!r} names kinds that are not in the op table: {', '.join(unknown)}."
                f"{closest(unknown[0], OPS.by_kind)}"
            )
        strange = sorted({*self.rewrites} - {*REWRITES})
        if strange:
            raise ConfigError(
                f"Target {self.name!r}: rewrites takes {', '.join(REWRITES)}, not {', '.join(map(repr, strange))}."
                f"{closest(str(strange[0]), REWRITES)}"
            )
        odd = sorted(set(self.biases) - set(BIASES))
        if odd:
            raise ConfigError(f"Target {self.name!r}: biases takes {', '.join(BIASES)}, not {', '.join(odd)}.")
        self._check_defaults()

    def _check_ranges(self) -> None:
        for kind, ends in self.ranges.items():
            if not -math.inf < ends[0] < ends[1] < math.inf:
                raise ConfigError(f"Target {self.name!r}: the range of {kind} is {ends!r:.80}. Give [low, high].")

    def _check_defaults(self) -> None:
        """Raise unless the default specs are among those that are allowed."""
        for field_, grids, spec in (
            ("activation", self.activations, self.activation),
            ("weight", self.weights, self.weight),
        ):
            why = grids.refuse(spec)
            if why:
                raise ConfigError(f"Target {self.name!r}: its default {field_} has {why}. Change one of the two.")
        if self.biases and bias_form(self.bias) not in self.biases:
            raise ConfigError(
                f"Target {self.name!r}: its default bias is {bias_form(self.bias)}, not {' or '.join(self.biases)}."
            )

    @property
    def qconfig(self) -> QConfig:
        """The post-training static qconfig of the target."""
        return QConfig(activation=self.activation, weight=self.weight, bias=self.bias)

    def kernel(self, kind: str) -> Kernel:
        """Return what a kind takes beyond what holds for all."""
        return self.kernels.get(kind, _ANY)


def bias_form(bias: Spec | Int32 | None) -> str:
    """Tell how a bias is stored: float, int32, int16 or int8."""
    if isinstance(bias, Spec):
        return "int8" if bias.bits <= 8 else "int16"
    return bias or "float"
