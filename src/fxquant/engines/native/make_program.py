"""The program of a region for inputs of some sizes: from disk, or read, and compared with what its graph answers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fxquant.engines.agreement import compare_results, nudge
from fxquant.engines.native import kept
from fxquant.engines.native.calls import Key
from fxquant.engines.native.inputs import batch_of, first_sample
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.plain import interpret, plain_graph, returned, run_and_look
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Changes, Shape, Unread, order_of
from fxquant.engines.native.verdicts import keep_verdict, load_verdict
from fxquant.errors import FxQuantError, InputError
from fxquant.graph.nodes import reads_size
from fxquant.graph.region import Region


class Refused(Exception):
    """The graph itself refuses a call."""


class Wrong(Exception):
    """A program does not do what its graph does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    program: Program
    outside: dict[str, str] = field(default_factory=dict)  # nodes that Python runs, and why


def make_program(region: Region, key: Key, inputs: list[object], machine: Machine, libraries: Libraries) -> Made:
    """Make the program for a size, and compare it with the graph, unless that was done before.

    It raises `Unread`, `Refused`, `Changes` or `Wrong` where there is none.
    """
    graph = plain_graph(region)
    text = f"{graph} {key} {_layouts(region)}"  # before it is read, which folds numbers into it
    name = kept.name_of(region, graph, text, machine)
    if (known := kept.load(libraries, name, region, graph, machine)) is not None:
        likes = pytree.tree_map_only(Tensor, _like, inputs)
        known.remake = functools.partial(_remake, region, likes, machine, libraries)
        return Made(program=known)
    made = _attempt(region, graph, inputs, machine, libraries)
    if isinstance(made, Changes):
        raise made
    orders = load_verdict(libraries.cache, made.program, text) if isinstance(made, Made) else None
    if isinstance(made, Made) and not made.program.whole and orders is not None:
        made.program.set_orders(orders)
    else:
        made = _compared(region, graph, inputs, made)
        keep_verdict(libraries.cache, made.program, text)
    kept.keep(libraries, name, made.program)
    return made


def _compared(region: Region, graph: fx.Graph, inputs: list[object], made: Made | Exception) -> Made:
    """Return what was made if it answers what the graph does. If the graph refuses the inputs, that is told first."""
    if isinstance(made, Made) and made.program.whole:
        inputs = first_sample(inputs)
    try:
        with torch.random.fork_rng(devices=[]):  # this run and that of the program see the same random numbers
            raw, lying = run_and_look(region, graph, inputs, made.program.seen if isinstance(made, Made) else ())
    except (InputError, TypeError) as error:
        raise Refused from error
    try:
        if isinstance(made, Exception):
            raise made
        made.program.lay_out(lying)
        with torch.random.fork_rng(devices=[]):
            found = made.program.answer(inputs, batch_of(inputs))
        compare_results(returned(graph, raw), found, lambda: interpret(region, graph, nudge(inputs)), "native")
    except Unread:
        raise
    except Exception as error:  # a model runs, whatever is wrong with its code
        why = str(error) if isinstance(error, FxQuantError) else f"{type(error).__name__}: {error}"
        raise Wrong(why) from error
    return made


def _attempt(
    region: Region, graph: fx.Graph, inputs: Sequence[object], machine: Machine, libraries: Libraries
) -> Made | Exception:
    try:
        return _make(region, graph, inputs, machine, libraries)
    except Exception as error:
        return error


def _remake(region: Region, likes: Sequence[object], machine: Machine, libraries: Libraries) -> Program:
    return _make(region, plain_graph(region), likes, machine, libraries).program


def _make(region: Region, graph: fx.Graph, inputs: Sequence[object], machine: Machine, libraries: Libraries) -> Made:
    """Read a graph for inputs of these sizes."""
    reader = read(region, graph, inputs, machine)
    left = len(_left(reader))
    if not reader.ops or (left and not any(op.macs for op in reader.ops)):
        raise Unread("it has no op with a native kernel")
    if 2 * left > len(reader.ops):
        raise Unread("more than a third of its ops have no native kernel")
    program = Program(reader, libraries)
    outside = {
        node.name: reader.reasons[node]
        for nodes in program.outside.values()
        for node in nodes
        if node in reader.reasons and not reads_size(node)
    }
    return Made(program=program, outside=outside)


def _like(value: Tensor) -> Tensor:
    """Return a tensor of the same sizes and strides, without memory."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _left(reader: Reader) -> list[fx.Node]:
    """Return the nodes that Python runs on tensors with a batch."""
    return [node for node in reader.reasons if isinstance(reader.shapes.get(node), Shape) and not reads_size(node)]


def _layouts(region: Region) -> list[tuple[int, ...]]:
    """Tell how the tensors of a region lie in memory: with the inputs, that decides how results do."""
    return [order_of(tensor) for tensor in (*region.parameters(), *region.buffers())]
