"""How a converted region runs: its QDQ graph, what an engine put in the place of that, and how to take it out again.

    reference   the QDQ graph, which reads its grids: the meaning of the region, and what files hold
    filled      the same with the numbers of the grids in it, which is what runs (passes/fill_grids.py)
    lowered     what an engine made of that: kernels in a child of the region, a runner, a `forward` on the instance

All that an engine leaves on a region is put there and taken out by the functions of this file.
"""

from __future__ import annotations

import abc
import types
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, fx, nn

from fxquant.errors import InputError
from fxquant.graph.autocast import Dtypes
from fxquant.graph.encode import EncodedGraph, decode_graph
from fxquant.graph.paths import free_path
from fxquant.graph.region import Region, instead_of, lowering_of, regions, set_instead, set_lowering, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.standing import Standing

Steps = tuple[Tensor, tuple[Tensor, ...]]  # the outputs of all steps of a recurrent layer, and its final state


class Filler(Protocol):
    """Keeps the graph that runs in step with the grids. `waiting` are the grids whose numbers are not known."""

    waiting: tuple[str, ...]

    def ready(self, region: Region) -> None:
        """Bring the graph in step with its grids before a call, and raise if one is not known."""

    def refuses(self, args: tuple[object, ...], kwargs: dict[str, object]) -> InputError | None:
        """Tell why no grid takes an input of a call, if none does."""

    def keep_up(self, region: Region) -> None:
        """Make the graph again if the grids are not as they were."""

    def standing(self) -> Standing | None:
        """Return what `keep_up` looks at; None before it did."""

    def copied(self, region: Region) -> None:
        """Note what `keep_up` looks at: this is a copy, and the region the one that it is for."""

    def graph(self, region: Region) -> fx.Graph:
        """Make the QDQ graph with the numbers in it; as it is while some are not known."""


class Scan(Protocol):
    """Runs `state = step(x[t], *state)` for all t at once; None for a call that it does not take."""

    def __call__(self, region: Region, x: Tensor, state: tuple[Tensor, ...], backwards: bool, /) -> Steps | None: ...


class Runner(abc.ABC):
    """Runs a lowered region in the place of its graph."""

    failed: str = ""  # why it passes all calls on
    told: Collection[str] = ()  # what it has said of calls that it passed on
    unused: str = ""  # why it took no call so far
    outside: Mapping[str, str] = types.MappingProxyType({})  # nodes that Python runs, and why
    scan: Scan | None = None
    written: bool = False  # torch's ops are what it runs: they were written down

    @property
    @abc.abstractmethod
    def engine(self) -> str:
        """The engine that runs it."""

    @abc.abstractmethod
    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Return what the region returns for a call."""

    def repeat(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Answer a call like an earlier one, if nothing has changed since then; NotImplemented for others."""
        return NotImplemented

    def copied(self, region: Region) -> None:
        """Note what the region is: this is a copy, and the region the one that it is for."""
        return

    @abc.abstractmethod
    def renew(self) -> None:
        """Forget what was kept: the graph was made again, or its tensors are others."""

    def write_down(self) -> bool:
        """Take note that the ops of a call are written down: a trace or an exported program holds torch's ops alone.

        A runner that computes something else, by a rounding, runs them from then on; whether it is `written`.
        """
        return self.written


@dataclass(kw_only=True, slots=True)
class Lowering:
    """The form in which a converted region runs."""

    reference: EncodedGraph | None = None  # None until the graph is filled
    filled: Filler | None = None
    lower: Callable[[Region], object] | None = None  # lowers the filled graph, if it was lowered
    runner: Runner | None = None
    kernel_path: str = ""  # where the kernels of a lowered graph are
    float_dtype: torch.dtype | None = None  # of floats outside, if not what they are inside; see float_dtype.py
    cast_results: dict[Hashable, Dtypes | None] = field(default_factory=dict)  # see autocast.py
    source: str = ""  # the file that it came from, until a call went well

    @property
    def waiting(self) -> tuple[str, ...]:
        """The grids whose numbers are not known."""
        return () if self.filled is None else self.filled.waiting

    def ready(self, region: Region) -> None:
        """Bring the graph in step with its grids before a call, and raise if one is not known."""
        if self.filled is not None:
            self.filled.ready(region)

    def copied(self, region: Region) -> None:
        """Let what keeps facts of a region note those of a copy, before it is changed."""
        if self.filled is not None:
            self.filled.copied(region)
        if self.runner is not None:
            self.runner.copied(region)


def start_lowering(region: Region) -> Lowering:
    """Say that the graph of a region is QDQ now: it is converted."""
    made = Lowering()
    set_lowering(region, made)
    return made


def reference_graph(region: Region) -> fx.Graph:
    """Make the QDQ graph of a region, which reads its grids, lowered or not; before conversion, give its graph."""
    encoded = lowering_of(region).reference if stage_of(region) is Stage.CONVERTED else None
    return region.graph if encoded is None else decode_graph(encoded)


def reads_of(region: Region) -> list[tuple[str, str]]:
    """Return (op, target) of the nodes of the QDQ graph that call a module or read an attribute."""
    encoded = lowering_of(region).reference
    rows = [] if encoded is None else encoded["rows"]
    return [(row[0], str(row[2])) for row in rows if row[0] in ("call_module", "get_attr")]


def filled_graph(region: Region) -> fx.Graph:
    """Make the QDQ graph of a region with its numbers in it; as it is while some are not known."""
    filled = lowering_of(region).filled
    assert filled is not None
    return filled.graph(region)


def add_kernels(region: Region, kernels: nn.Module) -> None:
    """Give a region a child for its kernels."""
    lowering = lowering_of(region)
    lowering.kernel_path = free_path(region, "kernels")
    region.add_module(lowering.kernel_path, kernels)
    region.__dict__[lowering.kernel_path] = kernels  # found without a search through the tables of children


def await_first_call(model: nn.Module, source: object) -> None:
    """Let the next call of each region be the first of a model from a file (see call_lowered.py)."""
    for _, region in regions(model):
        lowering_of(region).source = str(source)


def run_instead(region: Region, forward: Callable[..., object]) -> None:
    """Let a region run a function of itself in the place of its graph."""
    set_instead(region, forward)
    region.__dict__["forward"] = types.MethodType(forward, region)


def run_own_graph(region: Region) -> None:
    """Undo `run_instead`. A forward that the user put there stays."""
    if not has_forward(region):
        region.__dict__.pop("forward", None)
    set_instead(region, None)


def has_forward(region: Region) -> bool:
    """Tell whether the user put a forward on a region."""
    own = region.__dict__.get("forward")
    return own is not None and getattr(own, "__func__", own) is not instead_of(region)


def runs_own_graph(region: Region) -> bool:
    """Tell whether a region runs its own graph, and no function in the place of that."""
    return "forward" not in region.__dict__


def unlower(region: Region) -> Region:
    """Take out, in place, all that an engine put there, so that the region runs its filled QDQ graph."""
    lowering = lowering_of(region)
    lowering.lower, lowering.runner = None, None
    _put_back(region, lowering)
    return region


def lower_again(region: Region) -> None:
    """Fill the QDQ graph with the numbers as they are now, and lower it if it was lowered."""
    lowering = lowering_of(region)
    _put_back(region, lowering)
    if lowering.lower is not None:
        lowering.lower(region)


def _put_back(region: Region, lowering: Lowering) -> None:
    """Put the filled graph in the place of kernels."""
    run_own_graph(region)
    if lowering.kernel_path:
        region.__dict__.pop(lowering.kernel_path, None)
        region.delete_submodule(lowering.kernel_path)
        lowering.kernel_path = ""
    region.graph = filled_graph(region)
