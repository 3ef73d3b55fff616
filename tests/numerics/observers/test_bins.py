import itertools

import pytest
import torch

from fxquant.config.spec import Spec
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.observers.bins import BINS, grid_for
from fxquant.numerics.observers.histogram import SAMPLES, sampling_stride
from fxquant.numerics.observers.search_mse import expected_error
from fxquant.numerics.observers.table import make_observer

GAUSS = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
DATA = {
    "gauss": GAUSS,
    "relu": GAUSS.relu(),
    "relu6": (4 * GAUSS).clamp(0, 6),
    "silu": torch.nn.functional.silu(3 * GAUSS),
    "heavy": GAUSS**3,
    "skewed": GAUSS.exp(),
    "uniform": torch.linspace(-2, 5, 20_000),
    "outliers": torch.cat((GAUSS, torch.tensor([40.0, -60.0]))),
}
SPECS = {
    "s8-sym": Spec(),
    "u8-asym": Spec(signed=False, symmetric=False),
    "u8-sym": Spec(signed=False),
    "s8-pow2": Spec(scale="pow2"),
    "s4-sym": Spec(bits=4),
    "u4-asym": Spec(bits=4, signed=False, symmetric=False),
    "s2-sym": Spec(bits=2),
    "u2-asym": Spec(bits=2, signed=False, symmetric=False),
    "u8-floor": Spec(signed=False, symmetric=False, rounding="floor"),
    "s16-sym": Spec(bits=16),
}


def observed(spec, *data):
    observer = make_observer(spec, "x")
    for x in data:
        observer.update(x)
    return observer


def real_error(x, low, high, spec):
    scale, zero_point = choose_qparams(torch.as_tensor(low), torch.as_tensor(high), spec)
    return (fake_quantize(x.double(), scale, zero_point, spec) - x).square().sum().item()


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_expected_error_is_the_real_error(name, spec):
    x = DATA[name]
    observer = observed(spec, x)
    histogram = observer.histogram()
    for share in (1.0, 0.6, 0.2):
        low, high = histogram.low * share, histogram.high * share
        pair = torch.tensor([[low, high]], dtype=torch.float64)
        got = expected_error(histogram.edges, histogram.counts, pair, spec).item()
        # Bins do not tell where inside them a value lies: spikes (6.0 in relu6) and outliers cost a bin's width.
        width = (histogram.edges[1] - histogram.edges[0]).item()
        spike = 0.0 if name != "relu6" else len(x) * (width**2 + 2 * width * max(high / 50, 6 - high))
        tail = 2 * width * (abs(histogram.low) + histogram.high) * 2
        assert got == pytest.approx(real_error(x, low, high, spec), rel=0.1, abs=spike + tail)


@pytest.mark.broad
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_mse_search_finds_the_range_of_a_brute_force_search(name, spec):
    x = DATA[name]
    observer = observed(spec, x)
    low, high = observer.range()
    smallest, largest = min(observer.low.item(), 0.0), max(observer.high.item(), 0.0)
    assert smallest <= low <= 0.0 <= high <= largest
    shares = [i / 12 for i in range(1, 13)]
    pairs = zip(shares, shares, strict=True) if spec.symmetric else itertools.product(shares, shares)
    brute = min(real_error(x, smallest * a, largest * b, spec) for a, b in pairs)
    assert real_error(x, low, high, spec) <= 1.06 * brute
    assert real_error(x, low, high, spec) <= 1.01 * real_error(x, smallest, largest, spec)


def test_eight_bits_of_a_gaussian_are_hardly_clipped():
    low, high = observed(SPECS["u8-asym"], GAUSS).range()
    assert low < -3.4
    assert high > 3.4
    assert ((low > GAUSS) | (high < GAUSS)).float().mean() < 1e-3


def test_low_bits_and_heavy_tails_gain_much():
    for spec in (SPECS["s4-sym"], SPECS["u4-asym"]):
        x = DATA["heavy"]
        assert real_error(x, *observed(spec, x).range(), spec) < 0.5 * real_error(x, x.min(), x.max(), spec)


@pytest.mark.parametrize("kind", ["histogram", "entropy", "percentile"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
def test_after_a_relu_low_is_exactly_zero(kind, symmetric):
    low, _ = observed(Spec(signed=False, symmetric=symmetric, observer=kind), DATA["relu"]).range()
    assert low.item() == 0.0


def test_an_extreme_that_the_sample_missed_is_counted():
    x = torch.zeros(10 * SAMPLES + 7)
    x[5] = 100.0
    observer = observed(Spec(), x)
    assert x[:: sampling_stride(len(x), SAMPLES)].max() == 0
    assert observer.histogram().counts.sum() == 1
    assert observer.range()[1].item() == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize("elements", [2**20, 16 * 64 * 112 * 112, 2**25, 3**14, 50_000])
def test_the_sampling_stride_shares_no_factor_with_the_shape(elements):
    stride = sampling_stride(elements, SAMPLES)
    assert elements % stride
    assert elements / stride <= SAMPLES
    assert elements / stride > SAMPLES / 2
    assert all(stride % d for d in range(2, stride))


def test_a_sample_stands_for_all_elements():
    x = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(1))
    histogram = observed(Spec(), x, x.relu()).histogram()
    total = histogram.counts.sum().item() + histogram.zeros
    assert total == pytest.approx(2 * x.numel(), rel=1e-3)
    assert histogram.zeros == pytest.approx(x.numel() / 2, rel=0.02)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (-3.0, 1e-9), (5.0, 7.0), (0.0, 2048.0), (0.0, 0.0)]
)
def test_the_grid_is_the_finest_that_holds_the_range(low, high):
    exponent, origin = grid_for(low, high)
    width = 2.0**exponent
    assert origin * width <= min(low, 0.0)
    assert max(high, 0.0) < (origin + BINS) * width
    if high > low:
        assert max(high, 0.0) - min(low, 0.0) >= (BINS / 2 - 1) * width


def test_growth_keeps_every_count():
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(500, generator=generator).abs() * 10.0**i for i in range(-6, 6)]
    data.append(-data[-1])
    observer = observed(Spec(), *data)
    exponent, origin = observer.grid.tolist()
    index = (torch.cat(data).double() / 2.0**exponent).floor().long() - origin
    assert torch.equal(observer.counts[:BINS], torch.bincount(index, minlength=BINS))


@pytest.mark.parametrize("percentile", [98.0, 99.0, 100.0])
def test_percentile_is_the_quantile_of_the_data(percentile):
    x, q = DATA["skewed"] - 1.0, percentile / 100
    width = (x.max() - x.min()).item() / (BINS / 2 - 1)
    low, high = observed(Spec(symmetric=False, observer="percentile", percentile=percentile), x).range()
    assert low.item() == pytest.approx(x.quantile((1 - q) / 2).item(), abs=width)
    assert high.item() == pytest.approx(x.quantile((1 + q) / 2).item(), abs=width)
    _, high = observed(Spec(observer="percentile", percentile=percentile), x).range()
    assert high.item() == pytest.approx(x.abs().quantile(q).item(), abs=width)
    _, high = observed(Spec(symmetric=False, observer="percentile", percentile=percentile), x.relu()).range()
    assert high.item() == pytest.approx(x.relu().quantile(q).item(), abs=width)


@pytest.mark.parametrize("spec", [SPECS["s8-sym"], SPECS["u8-asym"], SPECS["s4-sym"]], ids=["s8", "u8", "s4"])
def test_entropy_cuts_long_tails_and_keeps_even_data(spec):
    spec = spec.with_(observer="entropy")
    low, high = observed(spec, DATA["outliers"]).range()
    assert low > -30.0
    assert high < 30.0
    assert high > 2.0
    low, high = observed(spec, DATA["uniform"]).range()
    assert high - low > 0.95 * (7.0 if not spec.symmetric else high - low)
    assert high > 4.7
