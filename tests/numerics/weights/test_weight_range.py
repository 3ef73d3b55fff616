import pytest
import torch

from fxquant.config.spec import Spec
from fxquant.errors import CalibrationError, ConfigError
from fxquant.numerics.affine import dequantize
from fxquant.numerics.weights.weight_range import quantize_weight

SPECS = {
    "per_tensor": Spec(),
    "per_channel0": Spec(granularity="per_channel"),
    "per_channel1": Spec(granularity="per_channel", axis=1),
    "per_group": Spec(granularity="per_group", group_size=4),
}
OBSERVERS = ("minmax", "moving_average", "percentile", "histogram", "entropy")


def weight(*shape, seed=0, power=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) ** power


def squared_error(w, spec):
    q, scale, zero_point = quantize_weight(w, spec, "w")
    return (dequantize(q, scale, zero_point, spec) - w).square().sum().item()


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_shapes_and_accuracy(spec, symmetric, observer):
    spec = spec.with_(observer=observer, symmetric=symmetric)
    w = weight(6, 5, 3, 8)
    q, scale, zero_point = quantize_weight(w, spec, "conv.weight")
    shapes = {"per_tensor": (), "per_channel": (w.shape[spec.axis],), "per_group": (6, 5, 3, 2)}
    assert q.shape == w.shape
    assert q.dtype == torch.int8
    assert scale.shape == zero_point.shape == shapes[spec.granularity]
    assert (dequantize(q, scale, zero_point, spec) - w).square().mean() < 4e-4


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("power", [1, 3], ids=["gauss", "heavy"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_mse_search_never_loses_to_minmax(spec, bits, power):
    w = weight(16, 4, 64, power=power)
    found = squared_error(w, spec.with_(bits=bits, observer="histogram"))
    plain = squared_error(w, spec.with_(bits=bits, observer="minmax"))
    assert found <= plain
    if bits == 4 and spec.granularity == "per_channel":
        assert found < 0.9 * plain


def test_mse_search_is_per_channel():
    w = weight(2, 4096)
    w[1] = torch.linspace(-1, 1, 4096)  # uniform: clipping only hurts
    spec = Spec(bits=4, granularity="per_channel", observer="histogram")
    _, scale, _ = quantize_weight(w, spec, "w")
    assert scale[0] < 0.9 * w[0].abs().max() / 7
    assert scale[1] > 0.89 / 7  # the best of a uniform row is 7 / 7.5


def test_percentile_drops_one_outlier_per_channel():
    w = torch.linspace(-1, 1, 2000).repeat(3, 1)
    w[:, 7] = torch.tensor([10.0, 20.0, -30.0])
    for symmetric in (True, False):
        spec = Spec(granularity="per_channel", observer="percentile", percentile=99.8, symmetric=symmetric)
        _, scale, _ = quantize_weight(w, spec, "w")
        assert scale.max() < 1.1 / 127


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_float_dtypes_give_float32_scales(dtype):
    w = weight(4, 16).to(dtype)
    q, scale, _ = quantize_weight(w, SPECS["per_channel0"], "w")
    wanted, wanted_scale, _ = quantize_weight(w.float(), SPECS["per_channel0"], "w")
    assert scale.dtype == torch.float32
    assert torch.equal(q, wanted)
    assert torch.equal(scale, wanted_scale)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_a_dead_channel_stays_zero(observer):
    w = weight(3, 16)
    w[1] = 0
    q, scale, _ = quantize_weight(w, Spec(granularity="per_channel", observer=observer), "w")
    assert not q[1].any()
    assert scale[1] == 1.0


def test_fixed_range():
    spec = Spec(granularity="per_channel", observer="fixed", range=(-1.27, 1.27))
    _, scale, _ = quantize_weight(weight(3, 16), spec, "w")
    assert torch.allclose(scale, torch.full((3,), 0.01))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_name_the_weight(bad):
    w = weight(4, 8)
    w[2, 3] = bad
    with pytest.raises(CalibrationError, match=r"layer1\.conv\.weight"):
        quantize_weight(w, Spec(), "layer1.conv.weight")


@pytest.mark.parametrize(
    ("shape", "spec", "message"),
    [
        pytest.param((4, 10), SPECS["per_group"], "last axis of 10 .* group_size=4", id="group"),
        pytest.param((8,), Spec(), r"shape \(8,\)", id="one-axis"),
        pytest.param((0, 8), Spec(), "non-empty", id="empty"),
        pytest.param((4, 8), Spec(granularity="per_channel", axis=2), "no axis 2", id="axis"),
    ],
)
def test_weights_that_do_not_fit_name_themselves(shape, spec, message):
    with pytest.raises(ConfigError, match=f"'fc.weight'.*{message}"):
        quantize_weight(torch.ones(shape), spec, "fc.weight")


def test_the_weight_is_left_alone():
    w = torch.nn.Parameter(weight(4, 8))
    before = w.detach().clone()
    q, scale, _ = quantize_weight(w, Spec(observer="histogram"), "w")
    assert torch.equal(w.detach(), before)
    assert not scale.requires_grad
    assert not q.requires_grad
