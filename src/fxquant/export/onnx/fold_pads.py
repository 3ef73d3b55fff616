"""Zeros around the input of a convolution as a part of it, where the model pads in an op of its own.

    Pad(x) -> QuantizeLinear -> DequantizeLinear -> Conv    ->    QuantizeLinear(x) -> DequantizeLinear -> Conv(pads)

Zero is on every grid, so the integers are the same. ONNX Runtime runs what stands between the pairs of two kernels in
float: in EfficientNet-Lite0, whose convolutions are padded so, that took as long as the convolutions.
"""

from __future__ import annotations

import onnx_ir as ir

from fxquant.export.onnx.initializers import value_of
from fxquant.export.onnx.producers import grid_of

_ON_THE_WAY = ("DequantizeLinear", "Clip", "QuantizeLinear")  # from the convolution back to the padding


def fold_pads(graph: ir.Graph) -> None:
    """Let the convolutions that read padded integers pad them, in place; nothing uses the old nodes then."""
    for conv in [node for node in graph if node.op_type == "Conv"]:
        pair, pad = _padded(conv)
        pads = _zeros_around(pad) if pad is not None else None
        own = list(conv.attributes.get_ints("pads", ()))
        if pad is None or pads is None or conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            continue
        conv.replace_input_with(0, _without(graph, pad, pair))
        own = own or [0] * len(pads)
        conv.attributes["pads"] = ir.AttrInt64s("pads", [a + b for a, b in zip(own, pads, strict=True)])


def _padded(conv: ir.Node) -> tuple[list[ir.Node], ir.Node | None]:
    """Return the nodes of the pair that a convolution reads, first one first, and the padding before them, if any."""
    pair: list[ir.Node] = []
    made = conv.inputs[0].producer() if conv.inputs[0] is not None else None
    for kind in _ON_THE_WAY:
        if made is not None and made.op_type == kind:
            pair.insert(0, made)
            made = made.inputs[0].producer() if made.inputs[0] is not None else None
    whole = bool(pair) and pair[0].op_type == "QuantizeLinear" and pair[-1].op_type == "DequantizeLinear"
    return pair, made if whole and made is not None and made.op_type == "Pad" else None


def _zeros_around(pad: ir.Node) -> list[int] | None:
    """Return how many zeros a node puts at the two ends of each axis of the picture, if that is all it does."""
    sizes, fill = value_of(pad.inputs[1]), value_of(pad.inputs[2]) if len(pad.inputs) > 2 else None
    filled = len(pad.inputs) > 2 and pad.inputs[2] is not None and (fill is None or bool(fill.any()))
    by_axis = len(pad.inputs) > 3 and pad.inputs[3] is not None
    if sizes is None or filled or by_axis or pad.attributes.get_string("mode", "constant") != "constant":
        return None
    ends = sizes.reshape(2, -1)
    return None if ends[:, :2].any() or (ends < 0).any() else [int(size) for size in ends[:, 2:].ravel()]


def _without(graph: ir.Graph, pad: ir.Node, pair: list[ir.Node]) -> ir.Value:
    """Return what comes out of a pair on a tensor that is not padded; one on that grid already is left as it is."""
    x = pad.inputs[0]
    assert x is not None
    made = x.producer()
    grid = grid_of(made) if made is not None and made.op_type == "DequantizeLinear" and len(pair) == 2 else None
    if grid is not None and grid == grid_of(pair[0]):
        return x
    for node in pair:
        copy = ir.node(node.op_type, [x, *node.inputs[1:]], dict(node.attributes))
        copy.outputs[0].dtype, copy.outputs[0].shape = node.outputs[0].dtype, x.shape
        graph.insert_before(node, copy)
        x = copy.outputs[0]
    return x
