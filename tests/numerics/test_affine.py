import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.ao.quantization.fx import _decomposed as peer  # the reference to compare with; never imported by fxquant

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.affine import choose_qparams, dequantize, fake_quantize, quantize, sqnr_db

GRIDS = list(itertools.product((True, False), (True, False), ("float", "pow2")))
ROUNDINGS = ("half_even", "half_up", "floor")
specs = st.builds(
    lambda bits, grid, rounding: Spec(bits=bits, signed=grid[0], symmetric=grid[1], scale=grid[2], rounding=rounding),
    st.integers(2, 16),
    st.sampled_from(GRIDS),
    st.sampled_from(ROUNDINGS),
)
magnitudes = st.floats(2**-20, 2**20, width=32)
quick = settings(deadline=None, max_examples=150)


def grid_id(grid):
    return f"{'signed' if grid[0] else 'unsigned'}-{'sym' if grid[1] else 'asym'}-{grid[2]}"


@quick
@given(specs, magnitudes, magnitudes, st.integers(0, 2**16))
def test_error_is_within_a_step_inside_the_range(spec, below, above, seed):
    low, high = torch.tensor(-below), torch.tensor(above)
    scale, zero_point = choose_qparams(low, high, spec)
    x = torch.rand(200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * (above + below) - below
    x = torch.cat((x.float(), torch.stack((low, high))))
    error = x - fake_quantize(x, scale, zero_point, spec)
    slack = 0.02 * scale  # x / scale has 2^-24 relative error, 2^16 levels
    if spec.rounding == "floor":
        # the ends of a nudged range may fall up to half a step outside of the grid
        assert error.min() >= -0.5 * scale - slack
        assert error.max() <= 1.5 * scale + slack
    else:
        assert error.abs().max() <= 0.5 * scale + slack


@quick
@given(specs, magnitudes, magnitudes)
def test_zero_is_exact_and_the_grid_valid(spec, below, above):
    scale, zero_point = choose_qparams(torch.tensor([-below, 0.0]), torch.tensor([above, above]), spec)
    assert scale.dtype == torch.float32
    assert zero_point.dtype == torch.int32
    assert torch.isfinite(1 / scale).all()
    assert ((zero_point >= spec.quant_min) & (zero_point <= spec.quant_max)).all()
    for s, z in zip(scale, zero_point, strict=True):
        assert fake_quantize(torch.zeros(1), s, z, spec).item() == 0.0


@quick
@given(specs, magnitudes, magnitudes)
def test_order_is_kept_and_a_second_pass_changes_nothing(spec, below, above):
    scale, zero_point = choose_qparams(torch.tensor(-below), torch.tensor(above), spec)
    x = torch.linspace(-1.5 * below, 1.5 * above, 301)
    q = quantize(x, scale, zero_point, spec)
    assert q.dtype == spec.dtype
    assert (q.to(torch.int32).diff() >= 0).all()
    once = dequantize(q, scale, zero_point, spec)
    assert torch.equal(once, fake_quantize(x, scale, zero_point, spec))
    if spec.rounding != "floor":  # floor of a product that lost half a bit may step down
        assert torch.equal(fake_quantize(once, scale, zero_point, spec), once)


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
def test_the_whole_grid_round_trips(bits, grid):
    spec = Spec(bits=bits, signed=grid[0], symmetric=grid[1], scale=grid[2])
    scale, zero_point = choose_qparams(torch.tensor(-0.7), torch.tensor(1.9), spec)
    q = torch.arange(spec.quant_min, spec.quant_max + 1).to(spec.dtype)
    back = quantize(dequantize(q, scale, zero_point, spec), scale, zero_point, spec)
    assert torch.equal(back.to(torch.int32), q.to(torch.int32))


@pytest.mark.parametrize(
    ("changes", "low", "high", "scale", "zero_point"),
    [
        pytest.param({}, -2.0, 1.0, 2.0 / 127, 0, id="signed-sym"),
        pytest.param({"signed": False}, -2.0, 1.0, 2.0 / 127, 128, id="unsigned-sym"),
        pytest.param({"signed": False}, 0.0, 1.0, 1.0 / 255, 0, id="unsigned-sym-positive"),
        pytest.param({"signed": False, "symmetric": False}, -1.0, 254.0, 1.0, 1, id="unsigned-asym"),
        pytest.param({"symmetric": False}, -1.0, 254.0, 1.0, -127, id="signed-asym"),
        pytest.param({"symmetric": False}, 3.0, 255.0, 1.0, -128, id="range-widened-to-zero"),
        pytest.param({"scale": "pow2"}, 0.0, 127.0, 1.0, 0, id="pow2-already"),
        pytest.param({"scale": "pow2"}, 0.0, 127.1, 2.0, 0, id="pow2-rounds-up"),
        pytest.param({"scale": "pow2", "symmetric": False}, -2.0, 253.5, 2.0, -127, id="pow2-asym"),
        pytest.param({}, 0.0, 0.0, 1.0, 0, id="empty-range"),
        pytest.param({"symmetric": False, "scale": "pow2"}, 0.0, 0.0, 1.0, -128, id="empty-range-asym-pow2"),
        pytest.param({}, -1e-40, 1e-40, 2.0**-120, 0, id="denormal-range"),
    ],
)
def test_qparams_by_hand(changes, low, high, scale, zero_point):
    got_scale, got_zero_point = choose_qparams(torch.tensor(low), torch.tensor(high), Spec(**changes))
    assert got_scale.item() == pytest.approx(scale, rel=1e-6)
    assert got_zero_point.item() == zero_point


def test_infinite_range_still_gives_a_finite_scale():
    scale, _ = choose_qparams(torch.tensor(-math.inf), torch.tensor(math.inf), Spec(symmetric=False))
    assert torch.isfinite(scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_per_tensor_has_the_bits_of_quantized_decomposed(dtype, bits, signed):
    spec = Spec(bits=bits, signed=signed, symmetric=False)
    for seed in range(5):
        x = (torch.randn(20_000, generator=torch.Generator().manual_seed(seed)) * 3**seed).to(dtype)
        scale, zero_point = choose_qparams(x.min() * 0.8, x.max() * 0.7, spec)
        limits = (spec.quant_min, spec.quant_max, spec.dtype)
        wanted = peer.quantize_per_tensor(x, scale.item(), zero_point.item(), *limits)
        q = quantize(x, scale, zero_point, spec)
        assert torch.equal(q, wanted)
        wanted = peer.dequantize_per_tensor(q, scale.item(), zero_point.item(), *limits)
        assert torch.equal(dequantize(q, scale, zero_point, spec), wanted)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel_has_the_bits_of_quantized_decomposed(axis):
    spec = Spec(symmetric=False, granularity="per_channel", axis=axis)
    x = torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(0))
    others = [d for d in range(3) if d != axis % 3]
    scale, zero_point = choose_qparams(x.amin(others), x.amax(others), spec)
    args = (scale, zero_point, axis % 3, spec.quant_min, spec.quant_max, spec.dtype)
    q = quantize(x, scale, zero_point, spec)
    assert torch.equal(q, peer.quantize_per_channel(x, *args))
    assert torch.equal(dequantize(q, scale, zero_point, spec), peer.dequantize_per_channel(q, *args))


@pytest.mark.parametrize("bits", [4, 16])
def test_per_group_is_per_tensor_on_each_group(bits):
    whole = Spec(bits=bits, signed=False, symmetric=False)
    spec = whole.with_(granularity="per_group", group_size=4)
    x = torch.randn(3, 2, 8)
    groups = x.reshape(3, 2, 2, 4)
    scale, zero_point = choose_qparams(groups.amin(-1), groups.amax(-1), spec)
    q = quantize(x, scale, zero_point, spec)
    assert q.shape == x.shape
    for index in itertools.product(range(3), range(2), range(2)):
        wanted = quantize(groups[index], scale[index], zero_point[index], whole)
        assert torch.equal(q.reshape(3, 2, 2, 4)[index].int(), wanted.int())
    assert torch.equal(dequantize(q, scale, zero_point, spec), fake_quantize(x, scale, zero_point, spec))


def test_group_size_that_does_not_divide_names_the_shape():
    spec = Spec(granularity="per_group", group_size=3)
    with pytest.raises(ConfigError, match=r"group_size=3.*\(2, 8\)"):
        quantize(torch.ones(2, 8), torch.ones(2, 2), torch.zeros(2, 2), spec)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_fake_quantize_keeps_dtype_and_memory_format(dtype):
    x = torch.randn(2, 8, 4, 4).to(dtype).contiguous(memory_format=torch.channels_last)
    y = fake_quantize(x, torch.tensor(0.05), torch.tensor(3), Spec())
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_fake_quantize_does_not_hide_nan():
    assert fake_quantize(torch.tensor([math.nan]), torch.tensor(0.1), torch.tensor(0), Spec()).isnan().all()


def test_sqnr():
    reference = torch.tensor([3.0, 4.0])
    assert sqnr_db(reference, reference) == math.inf
    assert sqnr_db(reference, reference + torch.tensor([0.3, 0.4])) == pytest.approx(20.0, abs=1e-4)
    assert sqnr_db(torch.zeros(2), reference) == -math.inf
