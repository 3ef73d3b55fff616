"""Why a call of an op that has an int8 form stays in float: settings that leave the grid of the input, mostly.

Each function is one row's `unless`: it is asked about a node and the module that it calls, if any.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn


def _settings(node: fx.Node, module: nn.Module | None) -> Mapping[str, object]:
    return node.kwargs if module is None else vars(module)


def pad_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    mode: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value: Any = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    if module is not None:  # only the constant pads have a value
        value = getattr(module, "value", None)
    if isinstance(mode, (int, float)):  # ATen: constant_pad_nd(input, pad, value)
        mode, value = "constant", mode
    if mode == "constant" and value not in (None, 0, 0.0) and "moved" not in node.meta:
        return f"pads with {value}, which need not be on the input's grid"
    return None


def dropout_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    if "stays_on" in node.meta:  # while a model is trained, its grid is that of the model that is served
        return "is on in every call, and what it keeps is larger than the grid of its input"
    return None


def einsum_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    equation = node.args[0] if node.args else node.kwargs.get("equation")
    if not isinstance(equation, str):
        return "einsum is not a plain product of two tensors"
    inputs, arrow, output = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = inputs.split(",")
    if not arrow:  # what occurs once is in the output
        output = "".join(sorted(index for index in {*inputs} - {","} if index == "." or inputs.count(index) == 1))
    if len(terms) != 2 or any(len(set(term)) != len(term) for term in (*terms, output)):
        return "einsum is not a plain product of two tensors"
    if not set(terms[0]) & set(terms[1]) - set(output):
        return "einsum contracts no index, so it is not a product"
    return None


def embedding_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    if _settings(node, module).get("max_norm") is not None:
        return "embedding with max_norm changes its own weight"
    return None


def max_pool_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    several = isinstance(node.meta.get("tensor"), tuple)
    if several and any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        return "its indices are used"
    return None


def clamp_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    if len(node.all_input_nodes) > 1:
        return "its bounds are tensors, which may lie outside the range of its input"
    return None


def interpolate_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    aten = isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    if _settings(node, module).get("mode") == "bicubic" or (aten and "bicubic" in str(node.target)):
        return "bicubic interpolation overshoots the range of its input"
    return None


def div_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    return "rounds its result to whole numbers" if node.kwargs.get("rounding_mode") is not None else None


def view_reason(node: fx.Node, module: nn.Module | None) -> str | None:
    if any(isinstance(value, torch.dtype) for value in (*node.args, *node.kwargs.values())):
        return "reads the bits as another dtype"
    return None
