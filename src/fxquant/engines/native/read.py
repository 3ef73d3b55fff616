"""A converted graph -> native ops and what Python runs between them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from torch import fx

from fxquant.engines.native.activations import KINDS
from fxquant.engines.native.groups import Group, find_group
from fxquant.engines.native.hand_over import hand_over, run_outside, seen_by_python
from fxquant.engines.native.lazy import Outside, Value
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.read_attention import read_attention
from fxquant.engines.native.read_dynamic import Chain, find_chain, read_chain
from fxquant.engines.native.read_elementwise import (
    read_act,
    read_batch_norm,
    read_binary,
    read_dequantize,
    read_prelu,
    read_quantize,
    read_same,
)
from fxquant.engines.native.read_embedding import Rows, find_rows, read_rows
from fxquant.engines.native.read_float import read_cast, read_each
from fxquant.engines.native.read_moves import read_cat, read_pad, read_pixel_shuffle, read_stack
from fxquant.engines.native.read_norms import read_group_norm, read_layer_norm
from fxquant.engines.native.read_pool import read_avg_pool, read_max_pool, read_mean
from fxquant.engines.native.read_reduction import is_rms_norm, read_normalize, read_rms_norm, read_sum
from fxquant.engines.native.read_resize import read_interpolate
from fxquant.engines.native.read_rows import read_einsum, read_matmul, read_softmax
from fxquant.engines.native.read_views import read_split, read_view
from fxquant.engines.native.read_weighted import read_group
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape, Unread, find_shapes
from fxquant.engines.native.spelled import EACH, REDUCTIONS, name_of
from fxquant.graph import torch_compat
from fxquant.graph.region import Region

Handler = Callable[[Reader, fx.Node], Value]
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), read_binary),
    **dict.fromkeys(sorted(KINDS - {"gelu_tanh"}), read_act),
    **dict.fromkeys(("identity", "dropout"), read_same),
    **dict.fromkeys(("reshape", "permute", "squeeze", "slice", "expand"), read_view),
    "split": read_split,
    "cat": read_cat,
    "stack": read_stack,
    "pad": read_pad,
    "pixel_shuffle": read_pixel_shuffle,
    "max_pool": read_max_pool,
    **dict.fromkeys(("avg_pool", "adaptive_avg_pool"), read_avg_pool),
    "mean": read_mean,
    "sum": read_sum,
    "layer_norm": read_layer_norm,
    **dict.fromkeys(("group_norm", "instance_norm"), read_group_norm),
    "softmax": read_softmax,
    "matmul": read_matmul,
    "einsum": read_einsum,
    "attention": read_attention,
    "batch_norm": read_batch_norm,
    "prelu": read_prelu,
    "interpolate": read_interpolate,
    "cast": read_cast,
}

NAMED: dict[str, Handler] = {  # ops without a kind
    **dict.fromkeys(sorted(EACH), read_each),
    **dict.fromkeys(sorted(REDUCTIONS), read_sum),
    "normalize": read_normalize,
    "rms_norm": read_rms_norm,
    "bool": read_cast,
}

_PARTS = frozenset(("slice", "split", "expand"))
_VIEWS = _PARTS | {"reshape", "permute", "squeeze"}


def read(region: Region, graph: fx.Graph, inputs: Sequence[object], machine: Machine) -> Reader:
    """Read the whole graph, for inputs of these sizes (but for the batch)."""
    shapes, sizes = find_shapes(region, graph, inputs)
    reader = Reader(region=region, graph=graph, shapes=shapes, machine=machine, sizes=sizes)
    ends: dict[fx.Node, Group] = {}
    chains: dict[fx.Node, Chain] = {}
    lookups: dict[fx.Node, Rows] = {}
    for node in graph.nodes:
        group = find_group(reader, node)
        if group is not None:
            reader.fused.update(group.nodes)
            ends[group.nodes[-1]] = group
        chain = find_chain(reader, node)
        if chain is not None:
            reader.fused.update(chain.nodes)
            chains[node] = chain
        rows = find_rows(reader, node)
        if rows is not None:
            reader.fused.update(rows.nodes)
            lookups[node] = rows
    given = _views_given_out(reader)
    for node in graph.nodes:
        if node.op == "output":
            _read_output(reader, node)
        elif node in given:
            reader.values[node] = run_outside(reader, node, "")
            del reader.reasons[node]  # it takes no time
        elif node in chains:
            _read_chain(reader, chains[node])
        elif node in lookups:
            reader.values[node] = read_rows(reader, lookups[node])
        elif node in ends:
            _read_group(reader, ends[node])
        elif node not in reader.fused:
            reader.values[node] = _read_node(reader, node)
    return reader


def _views_given_out(reader: Reader) -> set[fx.Node]:
    """Return the nodes that make views with gaps for the caller, who gets those of torch: parts of a larger tensor."""
    found: set[fx.Node] = set()
    for node in reader.graph.output_node().all_input_nodes:
        chain: list[fx.Node] = []
        while node not in reader.fused and _kind(reader, node) in _VIEWS:
            chain.append(node)
            if _kind(reader, node) in _PARTS:
                found.update(chain)
            node = node.all_input_nodes[0]
    return found


def _kind(reader: Reader, node: fx.Node) -> str:
    op = reader.table.of_node(node, reader.region)
    if node.target is operator.getitem and op is None:
        return "split"  # one of its results
    return "" if op is None or not node.all_input_nodes else op.kind


def _read_group(reader: Reader, group: Group) -> None:
    """Read the kernel of a group; of its first op alone, if that is all there is; or each node by itself."""
    alone = Group(node=group.node, kind=group.kind, nodes=(group.node,))
    for each in (group, alone):
        try:
            value = reader.attempt(functools.partial(read_group, reader, each))
        except Unread as error:
            reason = str(error)
        else:
            reader.values[each.nodes[-1]] = value
            break
    else:
        each = alone
        reader.values[group.node] = run_outside(reader, group.node, reason)
    for node in group.nodes[len(each.nodes) :]:
        reader.values[node] = _read_node(reader, node)


def _read_chain(reader: Reader, chain: Chain) -> None:
    """Read the kernel of a chain, or each node by itself."""
    try:
        reader.values[chain.nodes[-1]] = reader.attempt(functools.partial(read_chain, reader, chain))
    except Unread:
        for node in chain.nodes:
            reader.values[node] = _read_node(reader, node)


def _read_node(reader: Reader, node: fx.Node) -> Value:
    if node.op == "placeholder":
        return Outside(node=node, level=-1)
    if node.op == "get_attr":
        return Outside(node=node, level=-1, constant=True)
    if node in reader.taken:
        return reader.taken[node]
    if reader.is_constant(node):
        return Outside(node=node, level=-1, constant=True)
    shape = reader.shapes.get(node)
    if isinstance(shape, Shape) and not shape.batched:
        return run_outside(reader, node, "its output has no batch in front")
    try:
        return reader.attempt(lambda: _handler(reader, node)(reader, node))
    except Unread as error:
        return run_outside(reader, node, str(error))


def _handler(reader: Reader, node: fx.Node) -> Handler:
    if node.target in torch_compat.QUANTIZE_OPS:
        return read_quantize
    if node.target in torch_compat.DEQUANTIZE_OPS:
        return read_dequantize
    if (name := name_of(node)) in NAMED:
        return NAMED[name]
    if is_rms_norm(reader, node):
        return read_rms_norm
    op = reader.table.of_node(node, reader.region)
    if op is None or op.kind not in HANDLERS:
        raise Unread("it has no native kernel")
    return HANDLERS[op.kind]


def _read_output(reader: Reader, node: fx.Node) -> None:
    for operand in node.all_input_nodes:
        if not isinstance(seen_by_python(reader, operand), Outside):
            hand_over(reader, operand)
