"""What in a converted graph is not in the form that a target asks for (`Target.rewrites`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import fx

from fxquant.config.target import Target
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import Op
from fxquant.passes.pool_window import pool_window
from fxquant.passes.read_op import mean_axes, module_of, operand_of, setting
from fxquant.passes.round_leaky_slopes import rounded
from fxquant.passes.scale_average_pools import pool_factor

_Look = Callable[[Region, fx.Node, Op, tuple[Op, ...]], str]


def not_in_form(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...], target: Target) -> str:
    """Return the pass that would have rewritten an op, and what it found; nothing if all is well."""
    for name in sorted(target.rewrites & _FORMS.keys()):
        kinds, look = _FORMS[name]
        if op.kind in kinds and (why := look(region, node, op, tail)):
            return f"{name}: {why}"
    return ""


def _is_there(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...]) -> str:
    return f"it is a {op.kind}"


def _slope(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...]) -> str:
    slope = setting(node, module_of(region, node), 1, "negative_slope", 0.01)
    return "" if rounded(slope) == slope else f"its slope is {slope:g}"


def _factor(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...]) -> str:
    window = pool_window(node, op, module_of(region, node))
    right = window is None or pool_factor(window) == 1.0 or any(each.multiplies for each in tail)
    return "" if right else f"a window of {window} without its factor"


def _picture(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...]) -> str:
    info = tensor_info(node)
    return f"it is a {op.kind} of a picture" if info is not None and len(info.shape) == 4 else ""


def _mean(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...]) -> str:
    before = tensor_info(operand_of(node))
    whole = before is not None and len(before.shape) == 4 and mean_axes(node) == (2, 3)
    return "it is a mean over a picture" if whole else ""


def _split(region: Region, node: fx.Node, op: Op, tail: tuple[Op, ...]) -> str:
    return "it is a split of channels" if setting(node, None, 2, "dim", 0) == 1 else ""


_FORMS: Mapping[str, tuple[tuple[str, ...], _Look]] = {
    "silu_to_hardswish": (("silu",), _is_there),
    "sigmoid_to_hardsigmoid": (("sigmoid",), _is_there),
    "round_leaky_slopes": (("leaky_relu",), _slope),
    "scale_average_pools": (("avg_pool", "adaptive_avg_pool"), _factor),
    "batch_norm_to_conv": (("batch_norm",), _picture),
    "mean_to_pool": (("mean",), _mean),
    "split_to_slice": (("split",), _split),
}
