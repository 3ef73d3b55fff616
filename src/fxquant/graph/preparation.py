"""What was decided about a region, from the first pass to conversion: what is watched, and what is quantized how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from fxquant.config.limits import Position
from fxquant.config.spec import Spec
from fxquant.graph.notes import PrepareRequest

if TYPE_CHECKING:
    from fxquant.graph.algorithm import Algorithm
    from fxquant.graph.boundary import Boundary


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatCalls:
    """Calls of a graph, each a value for every placeholder, and what it gives in float; how many moves are measured."""

    calls: tuple[tuple[Any, ...], ...]
    outputs: tuple[Any, ...]
    tries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatMeans:
    """Of the channels that ops make in float, by node, on calls of the graph; and what each call gives.

    `weights` are those, by node, of ops whose bias will have a few bits.
    """

    by_node: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    outputs: tuple[tuple[Tensor, ...], ...]
    calls: tuple[tuple[Any, ...], ...]


class FoldedNorm(Protocol):
    """Knows how to load a float model's state where a norm went into the op before it (numerics/weights)."""

    @property
    def op(self) -> str:
        """The path of the op."""

    @property
    def named(self) -> str:
        """The path of the op in the float model."""

    @property
    def norm(self) -> str:
        """The path that the norm had."""

    def moved(self, op: str) -> FoldedNorm:
        """Return the same with the op at another path."""

    def given(self, state_dict: dict[str, object], prefix: str) -> list[str]:
        """Return the names of the norm's tensors in a state."""

    def lacks(self, state_dict: dict[str, object], prefix: str) -> list[str]:
        """Return the names of what it takes to fold the norm, and the state has not."""

    def fold(self, op: nn.Module, state_dict: dict[str, object], prefix: str) -> None:
        """Fold the norm of a float model's state into what that has of the op, in place."""


@dataclass(kw_only=True, slots=True)
class Preparation:
    """Decisions about a whole region. Those about a node are its Note and Decision (graph/notes.py)."""

    fused: bool = False  # its batch norms went into the ops before them
    folded: tuple[FoldedNorm, ...] = ()  # these
    request: PrepareRequest | None = None  # what prepare_fx was asked for, as long as nothing is decided
    algorithms: tuple[Algorithm, ...] = ()  # at work on it, until they are applied
    adapted: bool = False  # by these: they rewrote the float graph after calibration
    statistics_path: str = ""  # where the observers of a model are of which nothing is decided
    watched: Mapping[str, tuple[str, ...]] | None = None  # the tensors that each of these sees
    quantizers: Mapping[str, Spec] | None = None  # by id
    quantizer_path: str = ""  # where their modules are, until conversion
    observed: Mapping[str, tuple[str, ...]] | None = None  # the tensors that each of them observes, in training
    positions: tuple[Position, ...] = ()  # of the target: what holds between scales that are powers of two
    clear_ties: bool = False  # scales are still to be moved to where ties are far
    float_calls: FloatCalls | None = None  # inputs on which moves of scales are measured, until these are chosen
    float_means: FloatMeans | None = None  # by which biases are corrected, until they are
    float_tensors: Mapping[str, Mapping[str, Tensor]] | None = None  # weights and biases by path, until they are chosen
    boundary: Boundary | None = None  # inputs and outputs that are integers
    traced_hooks: frozenset[int] = frozenset()  # keys of those whose results became part of the graph
