"""Why a target's kernel does not take a call that a rule asks int8 for: grids, shapes, groups, biases.

The target's own table says it (config/limits.py); there is nothing here about single targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import fx, nn

from fxquant.config.limits import Grids
from fxquant.config.qconfig import QConfig
from fxquant.config.spec import Spec
from fxquant.config.target import Target, bias_form
from fxquant.graph.nodes import tensor_info
from fxquant.ops.table import Op, activation_nodes
from fxquant.passes.pool_window import pool_window
from fxquant.passes.read_op import mean_axes

_NO_KERNEL = " has no int8 kernel for "


def refuse(
    target: Target, node: fx.Node, op: Op, qconfig: QConfig, weight: Spec | None, module: nn.Module | None
) -> str | None:
    """Return the first rule of the target against a static int8 call, or None."""
    found = next(_reasons(target, node, op, qconfig, weight, module), None)
    return None if found is None else f"target {target.name} ({found[0]}): {found[1]}"


def no_kernel(target: Target, kind: str) -> str:
    """Return the reason against a kind that is not among those of the target."""
    return f"target {target.name}{_NO_KERNEL}{kind}"


def rule_in(reason: str) -> str:
    """Return the rule, a field of Target, that a reason from here names; nothing for other reasons."""
    if reason.startswith("target ") and _NO_KERNEL in reason:
        return "kinds"
    found = re.match(r"target .+? \((\w+)\): ", reason)
    return found.group(1) if found else ""


def _reasons(
    target: Target, node: fx.Node, op: Op, qconfig: QConfig, weight: Spec | None, module: nn.Module | None
) -> Iterator[tuple[str, str]]:
    kernel, operands = target.kernel(op.kind), activation_nodes(node, op)
    groups = getattr(module, "groups", 1)
    if kernel.one_group and groups != 1:
        yield "kernels", f"{op.kind} of {groups} groups, at most 1"
    if kernel.axes and (axes := mean_axes(node)) != kernel.axes:
        yield "kernels", f"{op.kind} over axes {axes}, not {kernel.axes}"
    if kernel.window is not None and (window := pool_window(node, op, module)) is not None:
        values = window[0] * window[1]
        if values > kernel.window:
            yield "kernels", f"{op.kind} of a window of {values} values, at most {kernel.window}"
    for tensor in (*operands, node):
        info = tensor_info(tensor)
        for rule, shapes in (("shapes", target.shapes), ("kernels", kernel.shapes)) if info is not None else ():
            assert info is not None
            if why := shapes.refuse(info.shape):
                yield rule, f"{op.kind} of {why}"
    for index in range(len(operands)):
        yield from _grid(
            f"{op.kind} takes no input of", qconfig.input_spec(index), "activations", target.activations, kernel.input
        )
    yield from _grid(
        f"{op.kind} gives no output of", qconfig.output_spec, "activations", target.activations, kernel.output
    )
    if target.integer_outputs and qconfig.output_spec is None:
        yield "integer_outputs", f"{op.kind} gives no output of float"
    yield from _grid(f"{op.kind} takes no weight of", weight, "weights", target.weights, kernel.weight)
    has_bias = weight is not None and getattr(module, "bias", None) is not None
    if has_bias and target.biases and bias_form(qconfig.bias) not in target.biases:
        yield "biases", f"{op.kind} takes no bias of {bias_form(qconfig.bias)}, only {' or '.join(target.biases)}"


def _grid(what: str, spec: Spec | None, rule: str, all_kinds: Grids, own: Grids) -> Iterator[tuple[str, str]]:
    for name, grids in ((rule, all_kinds), ("kernels", own)) if spec is not None else ():
        assert spec is not None
        if why := grids.refuse(spec):
            yield name, f"{what} {why}"
