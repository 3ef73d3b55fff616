"""The gradients of all trained quantizers, against the papers' formulas and against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import broadcast_qparam, fake_quantize
from fxquant.numerics.learned.base import log_of, scale_of
from fxquant.numerics.learned.lsq import lsq, lsq_plus
from fxquant.numerics.learned.pact import pact
from fxquant.numerics.learned.straight_through import straight_through
from fxquant.numerics.learned.tqt import threshold_of, tqt, tqt_scale

SPECS = {
    "s8": Spec(),
    "u4": Spec(bits=4, signed=False),
    "u8 asym": Spec(signed=False, symmetric=False),
    "half_up": Spec(bits=4, rounding="half_up"),
    "floor": Spec(bits=4, rounding="floor"),
    "per_channel": Spec(bits=4, granularity="per_channel"),
    "per_channel1": Spec(bits=4, granularity="per_channel", axis=1),
    "per_group": Spec(bits=4, granularity="per_group", group_size=4),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def case(spec: Spec, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor that the grid clips on both sides, a scale, a zero point."""
    x = torch.randn(4, 6, 8, dtype=dtype) * 2
    shape = {"per_tensor": (), "per_channel": (x.shape[spec.axis],), "per_group": (4, 6, 2)}[spec.granularity]
    scale = (torch.rand(shape, dtype=torch.float64) + 1) * 2.0 / (spec.quant_max - spec.quant_min)
    zero_point = torch.full(shape, 0 if spec.signed or spec.symmetric else 120, dtype=torch.int32)
    return x, scale, zero_point


def levels(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """(x / s, lowest level, highest level), shaped like x (in groups)."""
    grouped = x.unflatten(-1, (-1, spec.group_size)) if spec.group_size else x
    s, z = broadcast_qparam(scale, grouped, spec), broadcast_qparam(zero_point, grouped, spec)
    return grouped / s, spec.quant_min - z, spec.quant_max - z


def total(values: Tensor, spec: Spec) -> Tensor:
    if spec.granularity == "per_tensor":
        return values.sum()
    if spec.granularity == "per_group":
        return values.sum(-1)
    return values.sum([d for d in range(values.dim()) if d != spec.axis])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_values_are_those_of_fake_quantize(spec: Spec, dtype: torch.dtype) -> None:
    x, scale, zero_point = case(spec, dtype)
    scale = scale.float()
    assert torch.equal(straight_through(x, scale, zero_point, spec), fake_quantize(x, scale, zero_point, spec))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_lsq_has_the_gradients_of_the_paper(spec: Spec) -> None:
    x, scale, zero_point = case(spec)
    log_scale = log_of(scale).requires_grad_()
    scale = scale_of(log_scale.detach())
    x.requires_grad_()
    g = torch.randn_like(x)
    lsq(x, log_scale, zero_point, spec).backward(g)
    v, low, high = levels(x.detach(), scale, zero_point, spec)
    inside = (v > low) & (v < high)
    rounded = {"half_even": v.round(), "half_up": (v + 0.5).floor(), "floor": v.floor()}[spec.rounding]
    to_scale = torch.where(inside, rounded - v, torch.where(v <= low, low, high).expand_as(v))
    grouped = g.reshape(v.shape)
    values_per_scale = x.numel() // scale.numel()
    expected = total(grouped * to_scale, spec) / math.sqrt(values_per_scale * spec.quant_max)
    # a step of s is s ln 256 times one of log256 s
    torch.testing.assert_close(log_scale.grad * scale * math.log(256), expected)
    torch.testing.assert_close(x.grad, torch.where(inside, grouped, 0.0).reshape(x.shape))


def test_lsq_plus_has_the_gradients_of_the_paper() -> None:
    spec = Spec(bits=4, signed=False, symmetric=False)
    x = (torch.randn(4, 50, dtype=torch.float64) * 2).requires_grad_()
    log_scale = torch.tensor(-2.0 / 8, dtype=torch.float64, requires_grad=True)
    offset = torch.tensor(-5 / 15, dtype=torch.float64, requires_grad=True)  # five of fifteen steps: -1.25
    g = torch.randn_like(x)
    y = lsq_plus(x, log_scale, offset, spec)
    y.backward(g)
    v = (x.detach() + 1.25) / 0.25
    torch.testing.assert_close(y.detach(), v.clamp(0, 15).round() * 0.25 - 1.25)
    inside, factor = (v > 0) & (v < 15), 1 / math.sqrt(x.numel() * 15)
    # the offset is a share of the width, and moves along with s: b / s = -5 comes to the paper's gradient
    to_scale = torch.where(inside, v.round() - v, v.clamp(0, 15) - 5)
    torch.testing.assert_close(log_scale.grad * 0.25 * math.log(256), (g * to_scale).sum() * factor)
    torch.testing.assert_close(offset.grad * 15 * 0.25, (g * ~inside).sum() * factor)
    torch.testing.assert_close(x.grad, g * inside)


@pytest.mark.parametrize("spec", [Spec(learn="tqt"), Spec(learn="tqt", bits=4, signed=False)], ids=str)
def test_tqt_has_the_gradients_of_the_paper(spec: Spec) -> None:
    x = (torch.randn(400, dtype=torch.float64) * 2).requires_grad_()
    log2_threshold = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    g = torch.randn_like(x)
    y = tqt(x, log2_threshold, torch.tensor(0), spec)
    y.backward(g)
    s = 2.0 / (2 ** (spec.bits - 1) if spec.signed else 2**spec.bits)
    v = x.detach() / s
    n, p = spec.quant_min, spec.quant_max
    assert torch.equal(y.detach(), v.round().clamp(n, p) * s)
    inside = (v.round() >= n) & (v.round() <= p)
    to_log = s * math.log(2) * torch.where(inside, v.round() - v, v.round().clamp(n, p))
    torch.testing.assert_close(log2_threshold.grad, (g * to_log).sum())
    torch.testing.assert_close(x.grad, g * inside)


def test_tqt_scales_are_powers_of_two_and_start_where_they_came_from() -> None:
    spec = Spec(learn="tqt")
    for exponent in (-9, -3, 0, 4):
        scale = torch.tensor(2.0**exponent)
        threshold = threshold_of(scale, torch.tensor(0), spec)
        assert torch.equal(tqt_scale(threshold, torch.tensor(0), spec), scale)


def test_pact_learns_from_what_it_clips_only() -> None:
    spec = Spec(bits=4, signed=False)
    x = torch.rand(200, dtype=torch.float64).requires_grad_()
    clip = torch.tensor(0.6, dtype=torch.float64)
    log_scale = log_of(clip / 15).requires_grad_()
    g = torch.randn_like(x)
    pact(x, log_scale, torch.tensor(0), spec).backward(g)
    # a step of the clip is clip ln 256 times one of log256 s
    torch.testing.assert_close(log_scale.grad * clip * math.log(256), (g * (x.detach() >= clip)).sum())
    torch.testing.assert_close(x.grad, g * (x.detach() < clip))


@pytest.mark.parametrize("kind", ["ste", "lsq", "tqt"])
def test_gradients_agree_with_finite_differences_of_the_unrounded_quantizer(kind: str) -> None:
    """With the rounding error held at its value, the quantizer is smooth, and this is its slope."""
    spec = Spec(bits=4)
    x = torch.randn(300, dtype=torch.float64) * 2
    g, zero = torch.randn_like(x), torch.tensor(0)
    at = {"ste": 0.21, "lsq": 0.21, "tqt": 0.6}[kind]

    def scale_of(parameter: float) -> float:
        # within one power of two the ceiling is a constant distance away
        return 2.0 ** (parameter + math.ceil(at) - at) / 8 if kind == "tqt" else parameter

    error = (x / scale_of(at)).round() - x / scale_of(at)
    margin = 0.0 if kind == "lsq" else 0.5
    inside = (x / scale_of(at) > -8 - margin) & (x / scale_of(at) < 7 + margin)

    def smooth(parameter: float) -> float:
        s = scale_of(parameter)
        level = torch.where(inside, x / s + error, (x / s).clamp(-8, 7))
        return float((g * level * s).sum())

    slope = (smooth(at + 1e-5) - smooth(at - 1e-5)) / 2e-5
    parameter = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    if kind == "ste":
        straight_through(x, parameter, zero, spec).backward(g)
    elif kind == "lsq":
        log_scale = log_of(parameter.detach()).requires_grad_()
        lsq(x, log_scale, zero, spec).backward(g * math.sqrt(x.numel() * 7))
        parameter.grad = log_scale.grad * at * math.log(256)
    else:
        tqt(x, parameter, zero, Spec(bits=4, learn="tqt")).backward(g)
    assert float(parameter.grad) == pytest.approx(slope, rel=1e-6)


def test_nothing_but_the_input_is_kept_for_backward() -> None:
    saved: list[Tensor] = []
    x = torch.randn(8, 8).relu().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        straight_through(x, torch.tensor(0.1), torch.tensor(0), Spec())
    assert [t.data_ptr() for t in saved if t.numel() > 1] == [x.data_ptr()]


def test_channels_last_and_contiguous_tensors_have_the_same_gradients() -> None:
    grads = []
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    g = torch.randn_like(x)
    for form in (torch.contiguous_format, torch.channels_last):
        scale = torch.tensor(-3.3, dtype=torch.float64, requires_grad=True)
        leaf = x.clone(memory_format=form).requires_grad_()
        lsq(leaf, scale, torch.tensor(0), Spec(bits=4)).backward(g)
        grads.append((scale.grad, leaf.grad))
    torch.testing.assert_close(*grads)
