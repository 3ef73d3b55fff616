"""Sums, products, clips and curves of elements."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import fx

from fxquant.integers.arithmetic import MANTISSA
from fxquant.integers.operands import FINER, INT32, Args, is_binary, one_scale
from fxquant.integers.reader import Reader, fractions
from fxquant.integers.scales import places_of, position_of
from fxquant.integers.values import Curve, Value, Whole

_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul_.Tensor)
_WIDEST_BITS = 61
SLOPE = 8  # binary places of a slope where the scales are no powers of two


def add(reader: Reader, node: fx.Node, at: Args) -> Value:
    if at.get("alpha", 1) != 1:
        reader.refuse(node, "alpha is not 1")
    values = [reader.whole(node, at[key]) for key in ("self", "other")]
    scales = [value.one_scale for value in values]
    shifts = [0, 0]
    if scales[0] is not None and scales[1] is not None and position_of(scales[0] / scales[1]) is not None:
        finest = min(scales[0], scales[1])
        pair = [reader.centered(node, value) for value in values]
        shifts = [int(value.scale[0] / finest).bit_length() - 1 for value in pair]
        bound = sum(value.bound << shift for value, shift in zip(pair, shifts, strict=True))
    else:
        pair = reader.aligned(node, values)
        finest, bound = pair[0].scale[0], pair[0].bound + pair[1].bound
    reader.check_bound(node, bound, is_binary((finest,)))
    sign = -1 if node.target is torch.ops.aten.sub.Tensor else 1
    name = reader.emit("add", node, [value.tensor for value in pair], shifts=shifts, sign=sign)
    return Whole(tensor=name, scale=(finest,), axis=None, zero=0, bound=bound)


def mul(reader: Reader, node: fx.Node, at: Args) -> Value:
    pair = [reader.centered(node, one_scale(reader, node, at[key])) for key in ("self", "other")]
    bound = reader.check_bound(node, pair[0].bound * pair[1].bound, is_binary(pair[0].scale + pair[1].scale))
    name = reader.emit("mul", node, [value.tensor for value in pair])
    return Whole(tensor=name, scale=(pair[0].scale[0] * pair[1].scale[0],), axis=None, zero=0, bound=bound)


def clip(reader: Reader, node: fx.Node, at: Args) -> Value:
    """relu, relu6, hardtanh, clamp: ends of the sums. A finer scale holds them where that of the sums does not."""
    x = reader.centered(node, reader.whole(node, at["self"]))
    if str(node.target).startswith("aten.relu6"):
        low, high = 0.0, 6.0
    elif str(node.target).startswith("aten.relu"):
        low, high = 0.0, None
    else:
        low, high = (at.get(key, at.get(f"{key}_val")) for key in ("min", "max"))
    ends = [None if end is None else Fraction(float(end)) for end in (low, high)]
    if x.axis is not None and any(ends):
        x = reader.aligned(node, [x])[0]
    steps = [None if end is None else end / x.scale[0] for end in ends]
    shift = max((places_of(end) for end in steps if end is not None and position_of(x.scale[0]) is not None), default=0)
    if shift > FINER or x.bound << shift > INT32:
        shift = 0
    whole = [None if end is None else round(end * 2**shift) for end in steps]
    if any(a is not None and b is not None and a != b * 2**shift for a, b in zip(whole, steps, strict=True)):
        reader.note("bounds of clamps lie between steps of sums: they are rounded to these")
    bound = max([x.bound << shift, *(abs(end) for end in whole if end is not None)])
    name = reader.emit("clamp", node, [x.tensor], low=whole[0], high=whole[1], shift=shift)
    scale = tuple(each / 2**shift for each in x.scale)
    return Whole(tensor=name, scale=scale, axis=x.axis, zero=0, bound=bound)


def leaky_relu(reader: Reader, node: fx.Node, at: Args) -> Value:
    """Of integers of a grid a curve; of sums a product with the slope's digits, of which float32 keeps 24."""
    value = at["self"]
    if isinstance(value, Whole) and value.grid is not None and value.axis is None:
        return pointwise(reader, node, at)
    x = reader.centered(node, reader.whole(node, value))
    slope = fractions(torch.tensor([float(at["negative_slope"])], dtype=torch.float32))[0]
    if not is_binary(x.scale):
        slope = Fraction(round(slope * 2**SLOPE), 2**SLOPE)
        reader.note("slopes of leaky relus inside of kernels are rounded to k / 256")
    shift = places_of(slope)
    if not 0 < slope < 1 or shift > 30:
        reader.refuse(node, f"a slope of {float(slope)}")
    bound = x.bound << shift
    long = x.bound * slope.numerator > 2**MANTISSA
    name = reader.emit("leaky_relu", node, [x.tensor], multiplier=slope.numerator, shift=shift, mantissa=long)
    return Whole(tensor=name, scale=tuple(each / 2**shift for each in x.scale), axis=x.axis, zero=0, bound=bound)


def hardsigmoid(reader: Reader, node: fx.Node, at: Args) -> Value:
    """Of sums clip(x + 3, 0, 6) / 6. On the scale of the sums 3 is a whole number, or they get a finer one."""
    source = at["self"]
    if not isinstance(source, Whole) or source.grid is not None:
        return pointwise(reader, node, at)
    _, gate, _ = _gate(reader, node, source)
    return Whole(tensor=gate.tensor, scale=(gate.scale[0] / 6,), axis=None, zero=0, bound=gate.bound)


def hardswish(reader: Reader, node: fx.Node, at: Args) -> Value:
    """Of sums x * clip(x + 3, 0, 6) / 6. float32 rounds the product and the quotient, which the step does as well."""
    source = at["self"]
    if not isinstance(source, Whole) or source.grid is not None:
        return pointwise(reader, node, at)
    x, gate, exact = _gate(reader, node, source)
    bound = reader.check_width(node, x.bound * gate.bound)
    scale = x.scale[0] * gate.scale[0]
    if not exact:
        name = reader.emit("mul", node, [x.tensor, gate.tensor])
        return Whole(tensor=name, scale=(scale / 6,), axis=None, zero=0, bound=bound)
    places = _WIDEST_BITS - bound.bit_length()
    name = reader.emit("hardswish", node, [x.tensor, gate.tensor], places=places)
    return Whole(tensor=name, scale=(scale / 2**places,), axis=None, zero=0, bound=(bound << places) // 6 + 1)


def _gate(reader: Reader, node: fx.Node, source: Whole) -> tuple[Whole, Whole, bool]:
    """Return sums x, clip(x + 3, 0, 6) on their scale, and whether that has a 3."""
    if source.axis is not None:
        reader.refuse(node, "it is a curve of sums with a scale for each channel, before they are rounded")
    x = reader.centered(node, source)
    three = 3 / x.scale[0]
    shift = places_of(three) if position_of(x.scale[0]) is not None else 0
    if shift:
        x = reader.rescaled(node, x, x.scale[0] / 2**shift)
        three = 3 / x.scale[0]
    ends, exact = round(three), three.denominator == 1
    if not exact:
        reader.note("bounds of hard-sigmoids lie between steps of sums: they are rounded to these")
    reader.check_bound(node, 2 * ends, exact)
    moved = reader.emit("center", node, [x.tensor], zero=-ends)
    name = reader.emit("clamp", node, [moved], low=0, high=2 * ends, shift=0)
    return x, Whole(tensor=name, scale=x.scale, axis=None, zero=0, bound=2 * ends), exact


def pointwise(reader: Reader, node: fx.Node, at: Args) -> Value:
    """Return an elementwise function of the integers of a grid: a table, once it is rounded."""
    source = next(value for value in at.values() if isinstance(value, (Whole, Curve)))
    if isinstance(source, Curve):
        return Curve(source=source.source, nodes=(*source.nodes, node))
    if source.grid is None:
        number = at.get("other")
        if node.target in _PRODUCTS and isinstance(number, (int, float)) and number > 0:
            return _times(reader, node, source, number)
        reader.refuse(
            node, "it is a curve of sums that are not rounded; a target with no such curve in kernels rounds them"
        )
    return Curve(source=source, nodes=(node,))


def _times(reader: Reader, node: fx.Node, x: Whole, number: float) -> Whole:
    """Return sums times a number, such as an average pool's factor, before they are rounded: they have another scale.

    Of a pool, float32 rounds that number and the division once each, which leaves ties ties.
    """
    x, factor = reader.centered(node, x), fractions(torch.tensor([number], dtype=torch.float32))[0]
    return Whole(tensor=x.tensor, scale=tuple(each * factor for each in x.scale), axis=x.axis, zero=0, bound=x.bound)
