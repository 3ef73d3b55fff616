"""What was decided about a region, from the first pass to conversion: what is watched, and what is quantized how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

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


@dataclass(kw_only=True, slots=True)
class Preparation:
    """Decisions about a whole region. Those about a node are its Note and Decision (graph/notes.py)."""

    fused: bool = False  # its batch norms went into the ops before them
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
    boundary: Boundary | None = None  # inputs and outputs that are integers
    traced_hooks: frozenset[int] = frozenset()  # keys of those whose results became part of the graph
