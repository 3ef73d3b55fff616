"""One row of the op table, the facts that it holds of a kind, and how the arguments of a call are read by it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, fx, nn


class Role(enum.Enum):
    """What quantization does to an op."""

    COMPUTE = "compute"  # carries the arithmetic: int8 kernels, usually weights
    OWN_RANGE = "own_range"  # output has a range of its own
    SHARE = "share"  # output lives on the input's grid
    FIXED = "fixed"  # output range is known beforehand
    FLOAT = "float"


class Layout(enum.Enum):
    """How the result of an op lies in memory (engines/layout.py)."""

    CONV = "conv"  # channels last if the input or the weight is
    EACH = "each"  # as the operands do, element by element
    POOL = "pool"  # as the operand does, if that is a picture
    CAT = "cat"  # channels last if all are
    PART = "part"  # as views of the operand
    NEW = "new"  # contiguous, whatever the operand


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One row: how a kind is spelled, and every fact about it that some other file would have to know.

    Spelling. `params` names the positional parameters of the functional spelling; `operands` are the positions of the
    activations among them (a list-valued argument counts as all its elements). `inplace` maps the in-place functions
    and methods to their twins, `attributes` the attributes of a tensor to the function that they are.

    Weight. `weight` is its name, None for ops without; `functional` computes the op with any weight. `channel_axis` is
    the axis of its output channels, `weight_rank` the number of its dimensions. `channels_at` is the axis of the
    channels in the input and the output, None for lookups; a batch norm there folds into the weight.

    Behaviour. `range` is that of the output, where it is known beforehand. `is_view`: the result may be a view of the
    input; `may_be_input`: it may be the input itself. `moves`: values are moved and nothing is computed, so it runs on
    integers as they are. `keeps_rank`: the result has as many dimensions as the input. `noop`: does nothing at
    inference; `random`: draws numbers in training. `adds`: is the sum of its two operands; `multiplies`: their product;
    `divides`: the first by the second.
    `keeps_factor`: a positive factor of a channel passes through it, where `unless` gives no reason; `clips`: cuts
    values off at bounds; `picks`: each value of the result is one of the input's, or 0; `averages`: is a mean over
    axes. `window`: a pool averages one that is "given", or "parts" of a picture. `gate`: the op is x * gate(x);
    `attends`: it is attention, two products with a softmax between.
    `pools`: a lookup that makes one row of several. `is_norm`: owns statistics, or parameters also where it has no
    weight; `folds`: is one gain and one shift per channel, which fold into the weighted op before. `casts`: gives
    the values another dtype.
    `layout` says how the result lies in memory, for ops that compute the same however their operands lie; without it,
    an op sees them as the float model's lie. `unless` is asked about a node and the module that it calls, if any: the
    reason why it has to stay in float, or None.
    """

    kind: str
    role: Role
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()
    params: tuple[str, ...] = ("input",)
    operands: tuple[int, ...] = (0,)
    inplace: Mapping[Any, Any] | None = None
    attributes: Mapping[str, Any] | None = None
    functional: Callable[..., Any] | None = None
    weight: str | None = None
    channel_axis: int = 0
    weight_rank: int = 0
    channels_at: int | None = None
    range: tuple[float, float] | None = None
    is_view: bool = False
    may_be_input: bool = False
    moves: bool = False
    keeps_rank: bool = False
    noop: bool = False
    random: bool = False
    adds: bool = False
    multiplies: bool = False
    divides: bool = False
    keeps_factor: bool = False
    clips: bool = False
    picks: bool = False
    averages: bool = False
    window: Literal["given", "parts"] | None = None
    gate: Callable[[Tensor], Tensor] | None = None
    attends: bool = False
    pools: bool = False
    casts: bool = False
    is_norm: bool = False
    folds: bool = False
    layout: Layout | None = None
    unless: Callable[[fx.Node, nn.Module | None], str | None] | None = None

    @property
    def has_weight(self) -> bool:
        return self.weight is not None

    @property
    def is_lookup(self) -> bool:
        """Whether the weight is read by row, not multiplied with."""
        return self.has_weight and not self.operands

    @property
    def is_product(self) -> bool:
        """Whether activations are multiplied, with a weight or with each other."""
        return self.role is Role.COMPUTE and bool(self.operands)

    @property
    def splits(self) -> bool:
        """Whether it can be written as smaller ops (passes/split_ops.py)."""
        return self.gate is not None or self.attends

    @property
    def folds_norm(self) -> bool:
        """Whether a batch norm after it folds into its weight."""
        return self.has_weight and self.channels_at is not None


# one parameter, by the names that PyTorch gives it in different spellings
_ALSO_CALLED = {"input": ("self",), "other": ("mat2",), "mat1": ("batch1",), "mat2": ("batch2",)}


def argument(node: fx.Node, op: Op, index: int, default: object = None) -> Any:
    """Return the argument at a position of the functional spelling, given by position or by name."""
    if index < len(node.args):
        return node.args[index]
    name: str = op.params[index] if index < len(op.params) else ""
    return next((node.kwargs[n] for n in (name, *_ALSO_CALLED.get(name, ())) if n in node.kwargs), default)


def activation_nodes(node: fx.Node, op: Op) -> list[fx.Node]:
    """Return the nodes that feed the activation operands, in order, lists flattened; scalars are left out."""
    found: list[fx.Node] = []
    for index in op.operands:
        value = argument(node, op, index)
        values = value if isinstance(value, (list, tuple)) else (value,)
        found.extend(v for v in values if isinstance(v, fx.Node))
    return found
