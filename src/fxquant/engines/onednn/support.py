"""Which oneDNN kernels this build of torch has, and whether they are right: each is tried against the formula.

Inputs have 7 bits here: that more may be too much for a CPU is the matter of pairs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fxquant.engines.onednn.kernel_modules import Tail
from fxquant.graph.region import Region
from fxquant.ops.table import OpTable
from fxquant.passes.read_op import setting as setting

# kind of a unary op -> its name in oneDNN, example arguments, and its formula
TAILS: dict[str, tuple[str, tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    "relu": ("relu", (), F.relu),
    "clamp": ("hardtanh", (0.0, 6.0), F.relu6),
    "hardswish": ("hardswish", (), F.hardswish),
    "silu": ("swish", (), F.silu),
    "gelu": ("gelu", (), F.gelu),
    "tanh": ("tanh", (), torch.tanh),
    "leaky_relu": ("leaky_relu", (0.01,), F.leaky_relu),
}


@functools.cache
def supports(kind: str, tail: str, accumulate: bool) -> bool:
    """Tell whether the kernel for a kind with this tail (and sum) exists and agrees with the formula to one step."""
    try:
        actual, expected = _try(kind, tail, accumulate)
    except (RuntimeError, AttributeError):
        return False
    return bool((actual.int() - expected.int()).abs().max() <= 1)


@functools.cache
def supports_float_sum() -> bool:
    """Tell whether the linear kernel adds a float tensor to its float result, and leaves that tensor as it is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 128, (5, 33), generator=generator).to(torch.uint8)
    weight = torch.randint(-127, 128, (17, 33), generator=generator).to(torch.int8)
    other = torch.randn(5, 17, generator=generator)
    scale, zeros = torch.full((17,), 0.001), torch.zeros(17, dtype=torch.int32)
    expected = other + (x.float() - 120) * 0.02 @ (weight.float() * 0.001).t()
    added = other.clone()
    try:
        start = (x, 0.02, 120, torch.ops.onednn.qlinear_prepack(weight, None), scale, zeros, added, None)
        end = (1.0, 0, torch.float32, 1.0, 0, "add", 1.0, "none", (), "")
        actual = torch.ops.onednn.qlinear_pointwise.binary(*start, *end)
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(actual, expected, atol=1e-3) and torch.equal(added, other)


def _try(kind: str, tail: str, accumulate: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    dims = {"linear": 0, "conv1d": 1, "conv2d": 2, "conv3d": 3}[kind]

    def integers(low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, shape, generator=generator).to(dtype)

    x = integers(0, 128, (2, 16, *(5,) * dims), torch.uint8)
    weight = integers(-127, 128, (16, 16, *(3,) * dims), torch.int8)
    scale = torch.full((16,), 0.001)
    zeros, bias = torch.zeros(16, dtype=torch.int32), torch.linspace(-1, 1, 16)
    name, args, formula = TAILS[tail]
    end = (0.05, 100, torch.uint8)
    x_float, w_float = (x.float() - 60) * 0.04, weight.float() * 0.001
    if kind == "linear":
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        start: tuple[Any, ...] = (x, 0.04, 60, packed, scale, zeros)
        rest: tuple[Any, ...] = (bias, *end)
        result, op = F.linear(x_float, w_float, bias), torch.ops.onednn.qlinear_pointwise
    else:
        geometry = ([1] * dims, [1] * dims, [1] * dims, 1)
        packed = torch.ops.onednn.qconv_prepack(weight, scale, 0.04, 60, *geometry, None)
        start, rest = (x, 0.04, 60, packed, scale, zeros), (bias, *geometry, *end)
        result = getattr(F, kind)(x_float, w_float, bias, padding=1)
        op = torch.ops.onednn.qconv2d_pointwise if accumulate else torch.ops.onednn.qconv_pointwise
    algorithm = "none" if name == "gelu" else ""
    if accumulate:
        other = integers(0, 256, tuple(result.shape), torch.uint8)
        other = other.to(memory_format=torch.channels_last) if dims == 2 else other
        result = result + (other.float() - 50) * 0.1
        actual = op.binary(*start, other.clone(), *rest, 0.1, 50, "sum", 1.0, name, args, algorithm)
    else:
        actual = op.default(*start, *rest, name, args, algorithm)
    return actual, torch.clamp(torch.round(formula(result) / 0.05) + 100, 0, 255)


def tail_of(region: Region, node: fx.Node, ops: OpTable) -> Tail | None:
    """Return the post-op for a unary node; None if it has settings that oneDNN lacks."""
    op = ops.of_node(node, region)
    assert op is not None
    name, _, _ = TAILS[op.kind]
    module = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if op.kind == "clamp":
        low, high = clamp_bounds(node, module)
        return None if low is None or high is None else Tail(name=name, args=(low, high))
    if op.kind == "leaky_relu":
        slope = setting(node, module, 1, "negative_slope", 0.01)
        return Tail(name=name, args=(float(slope),))
    if op.kind == "gelu":
        approximate = setting(node, module, 1, "approximate", "none")
        return Tail(name=name, algorithm=str(approximate))
    return Tail(name=name)


def clamp_bounds(node: fx.Node, module: nn.Module | None) -> tuple[float | None, float | None]:
    """Return the bounds of a node of kind `clamp`, whatever its spelling (ReLU6 is [0, 6]); None for an open end."""
    name = str(getattr(node.target, "__name__", node.target))
    if module is not None:
        low, high = getattr(module, "min_val", None), getattr(module, "max_val", None)
    elif "relu6" in name:
        low, high = 0.0, 6.0
    elif "hardtanh" in name:
        low, high = setting(node, None, 1, "min_val", -1.0), setting(node, None, 2, "max_val", 1.0)
    elif "clamp_min" in name:
        low, high = setting(node, None, 1, "min", None), None
    elif "clamp_max" in name:
        low, high = None, setting(node, None, 1, "max", None)
    else:
        low, high = setting(node, None, 1, "min", None), setting(node, None, 2, "max", None)
    as_number = (float(value) if isinstance(value, (int, float)) else None for value in (low, high))
    first, second = as_number
    return first, second


def explicit_padding(
    padding: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...] | None:
    """Numbers for "same" and "valid"; None where "same" is not the same on both sides."""
    if padding == "valid":
        return (0,) * len(kernel)
    if not isinstance(padding, str):
        return tuple(padding) if not isinstance(padding, int) else (padding,) * len(kernel)
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return None if any(total % 2 for total in totals) else tuple(total // 2 for total in totals)
