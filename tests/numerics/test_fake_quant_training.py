"""`FakeQuant` and `WeightFakeQuant` in training: how ranges start, follow, freeze and travel."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.learned.table import RANGES
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant
from fxquant.numerics.weights.weight_range import quantize_weight

SPECS = {
    "ste": Spec(signed=False, symmetric=False, learn="ste", observer="moving_average"),
    "lsq": Spec(bits=4, signed=False, learn="lsq"),
    "lsq asym": Spec(bits=4, signed=False, symmetric=False, learn="lsq"),
    "lsq+": Spec(bits=4, signed=False, symmetric=False, learn="lsq+"),
    "tqt": Spec(learn="tqt"),
    "pact": Spec(bits=4, signed=False, learn="pact"),
}
LEARNED = {name: spec for name, spec in SPECS.items() if name != "ste"}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
every = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
learned = pytest.mark.parametrize("spec", LEARNED.values(), ids=LEARNED)


def trained(spec: Spec) -> FakeQuant:
    quantizer = FakeQuant(spec, "t").train()
    quantizer(X)
    return quantizer


@every
def test_it_passes_what_it_sees_before_there_is_a_range(spec: Spec) -> None:
    quantizer = FakeQuant(spec, "t").eval()
    assert quantizer(X) is X and not quantizer.has_range


@every
def test_the_first_batch_in_train_mode_starts_the_range(spec: Spec) -> None:
    quantizer = trained(spec)
    assert quantizer.has_range
    scale, zero_point = quantizer.compute_qparams()
    assert torch.equal(quantizer.eval()(X), fake_quantize(X, scale, zero_point, spec))


@every
def test_freezing_changes_nothing_and_leaves_no_parameters(spec: Spec) -> None:
    quantizer = trained(spec).eval()
    before = quantizer(X)
    quantizer.freeze()
    assert torch.equal(quantizer(X), before) and not list(quantizer.parameters())


@learned
def test_learned_ranges_are_parameters_by_a_known_name(spec: Spec) -> None:
    names = [name for name, _ in FakeQuant(spec, "t").named_parameters()]
    assert names[0] == ("log2_threshold" if spec.learn == "tqt" else "log_scale")


@learned
def test_a_learned_range_ignores_later_batches(spec: Spec) -> None:
    quantizer = trained(spec)
    before = quantizer.compute_qparams()
    quantizer(X * 100)
    assert all(map(torch.equal, before, quantizer.compute_qparams()))


def test_an_observed_range_follows_the_data_until_it_is_frozen() -> None:
    quantizer = trained(SPECS["ste"])
    first = quantizer.compute_qparams()[0]
    quantizer(X * 100)
    second = quantizer.compute_qparams()[0]
    assert second > first
    quantizer.observing = False
    quantizer(X * 1000)
    assert torch.equal(quantizer.compute_qparams()[0], second)


@every
def test_eval_mode_learns_nothing(spec: Spec) -> None:
    quantizer = trained(spec).eval()
    before = copy.deepcopy(quantizer.state_dict())
    quantizer(X * 100)
    assert all(torch.equal(value, before[key]) for key, value in quantizer.state_dict().items())


@every
def test_a_checkpointed_block_is_observed_once(spec: Spec) -> None:
    quantizer = FakeQuant(spec, "t").train()
    x = X.clone().requires_grad_()
    checkpoint(quantizer, x, use_reentrant=False).sum().backward()
    assert int(quantizer.observer.batches) == 1


@every
def test_state_travels_by_copy_pickle_and_state_dict(spec: Spec) -> None:
    quantizer = trained(spec)
    quantizer.observing = False
    loaded = FakeQuant(spec, "t").train()
    loaded.load_state_dict(quantizer.state_dict())
    for twin in (loaded, copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert twin.state == "train" and not twin.observing
        assert torch.equal(twin(X * 3), quantizer(X * 3))


@every
@pytest.mark.parametrize("observer", ["histogram", "minmax"])
def test_training_starts_from_a_calibrated_range(spec: Spec, observer: str) -> None:
    calibrated = FakeQuant(spec.with_(learn=None, observer=observer), "t").eval()
    calibrated(X * 7)
    quantizer = FakeQuant(spec, "t").train()
    quantizer.load_state_dict(calibrated.state_dict())
    scale, zero_point = calibrated.compute_qparams()
    quantizer.observing = False
    found = quantizer(X), quantizer.compute_qparams()
    tolerance = 0.1 if isinstance(quantizer.observer, type(calibrated.observer)) else 0.5
    assert float(found[1][0]) == pytest.approx(float(scale), rel=tolerance)
    assert abs(int(found[1][1]) - int(zero_point)) <= 2


@learned
def test_a_cast_of_the_model_leaves_the_scale_alone(spec: Spec) -> None:
    quantizer = trained(spec)
    model = nn.Sequential(quantizer).half()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model(X.half()).dtype == torch.float16


@learned
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_a_scale_that_runs_away_stays_a_scale(spec: Spec, value: float) -> None:
    if spec.learn == "tqt":
        return
    quantizer = trained(spec)
    with torch.no_grad():
        quantizer.log_scale.fill_(value)
    assert 0 < float(quantizer.compute_qparams()[0]) < math.inf and torch.isfinite(quantizer(X)).all()


@learned
def test_adam_moves_a_range_by_a_share_of_its_size(spec: Spec) -> None:
    if spec.learn == "tqt":
        return  # its steps are powers of two
    shares = []
    for size in (1e-3, 1.0, 100.0):
        quantizer = FakeQuant(spec, "t").train()
        quantizer(X * size / 2)
        before = float(quantizer.compute_qparams()[0])
        optimizer = torch.optim.Adam(quantizer.parameters(), 1e-3)
        for _ in range(100):
            optimizer.zero_grad()
            (quantizer(X * size) / size - X).square().sum().backward()
            optimizer.step()
        shares.append(float(quantizer.compute_qparams()[0]) / before)
    assert 1.3 < shares[0] < 1.8 and shares == pytest.approx([shares[0]] * 3, rel=1e-2)


def test_the_offset_of_lsq_plus_learns() -> None:
    spec = LEARNED["lsq+"]
    quantizer = FakeQuant(spec, "t").train()
    quantizer(X.abs())  # starts at a range from 0 on
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    assert int(quantizer.compute_qparams()[1]) == 0
    optimizer = torch.optim.Adam(quantizer.parameters(), 1e-2)
    errors = []
    for _ in range(60):
        optimizer.zero_grad()
        error = (quantizer(x) - x).square().mean()
        error.backward()
        optimizer.step()
        errors.append(float(error.detach()))
    assert int(quantizer.compute_qparams()[1]) > 3 and errors[-1] < 0.25 * errors[0]


WEIGHTS = {
    "ste": Spec(granularity="per_channel", observer="minmax", learn="ste"),
    "ste pow2": Spec(observer="minmax", learn="ste", scale="pow2"),
    "lsq": Spec(bits=4, granularity="per_channel", learn="lsq"),
    "lsq groups": Spec(bits=4, granularity="per_group", group_size=4, learn="lsq"),
    "tqt": Spec(learn="tqt"),
    "tqt per channel": Spec(learn="tqt", granularity="per_channel", axis=1),
}


@pytest.mark.parametrize("spec", WEIGHTS.values(), ids=WEIGHTS)
def test_the_integers_of_a_weight_are_the_values_that_were_trained(spec: Spec) -> None:
    weight = torch.randn(6, 8)
    quantizer = WeightFakeQuant(spec, "w", weight.shape)
    values = quantizer(weight)
    q, scale, zero_point = quantizer.quantize(weight)
    assert q.dtype == torch.int8
    assert torch.equal(fake_quantize(weight, scale, zero_point, spec), values)
    if spec.learn == "ste":
        assert torch.equal(q, quantize_weight(weight, spec, "w")[0])


@pytest.mark.parametrize("observer", ["histogram", "minmax"])
def test_lsq_weights_start_at_the_least_squared_error_and_learn(observer: str) -> None:
    weight: Tensor = torch.randn(6, 80)
    spec = WEIGHTS["lsq"].with_(observer=observer)
    quantizer = WeightFakeQuant(spec, "w", weight.shape)
    assert torch.equal(quantizer.log_scale, torch.full((6,), -math.inf))
    quantizer(weight).square().sum().backward()
    best = quantize_weight(weight, spec.with_(learn=None, observer="histogram"), "w")[1]
    torch.testing.assert_close(quantizer.compute_qparams(weight)[0], best)
    assert quantizer.log_scale.grad.abs().min() > 0


@pytest.mark.parametrize("name", ["lsq", "lsq groups", "tqt", "tqt per channel"])
def test_a_learned_range_follows_the_size_of_its_weight(name: str) -> None:
    weight: Tensor = torch.randn(6, 8)
    quantizer = WeightFakeQuant(WEIGHTS[name], "w", weight.shape)
    first = quantizer(weight)
    gain = 8.0  # as of a batch norm whose running variance settles
    torch.testing.assert_close(quantizer(gain * weight), gain * first)


def test_a_weight_of_zeros_has_a_learned_range() -> None:
    weight = torch.zeros(6, 8)
    quantizer = WeightFakeQuant(WEIGHTS["lsq"], "w", weight.shape)
    assert torch.equal(quantizer(weight), weight)
    assert torch.isfinite(quantizer(torch.randn(6, 8))).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learn": "tqt", "symmetric": False}, "symmetric=True"),
        ({"learn": "lsq", "scale": "pow2"}, "use 'tqt'"),
        ({"learn": "lsq+"}, "learns an offset"),
    ],
)
def test_specs_that_cannot_be_learned_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Spec(**fields)


def test_tqt_means_powers_of_two() -> None:
    assert Spec(learn="tqt").scale == "pow2" and "log2_threshold" in RANGES
