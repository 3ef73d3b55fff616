"""`FakeQuant` and `WeightQuant` in training: how ranges start, follow, freeze and travel."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fxquant.core.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.learned import parameter_of
from fxquant.numerics.weight_quant import WeightQuant
from fxquant.numerics.weights import quantize_weight

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
    assert names[0] == ("log2_threshold" if spec.learn == "tqt" else "scale")


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
def test_a_scale_that_steps_across_zero_stays_a_scale(spec: Spec) -> None:
    if spec.learn == "tqt":
        return
    quantizer = trained(spec)
    with torch.no_grad():
        quantizer.scale.neg_()
    assert float(quantizer.compute_qparams()[0]) > 0 and torch.isfinite(quantizer(X)).all()


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
    quantizer = WeightQuant(spec, "w", weight.shape)
    values = quantizer(weight)
    q, scale, zero_point = quantizer.quantize(weight)
    assert q.dtype == torch.int8
    assert torch.equal(fake_quantize(weight, scale, zero_point, spec), values)
    if spec.learn == "ste":
        assert torch.equal(q, quantize_weight(weight, spec, "w")[0])


def test_lsq_weights_start_at_the_paper_and_learn() -> None:
    weight: Tensor = torch.randn(6, 8)
    quantizer = WeightQuant(WEIGHTS["lsq"], "w", weight.shape)
    assert torch.equal(quantizer.scale, torch.zeros(6))
    quantizer(weight).square().sum().backward()
    torch.testing.assert_close(quantizer.scale.detach(), 2 * weight.abs().mean(1) / math.sqrt(7))
    assert quantizer.scale.grad.abs().min() > 0


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
    assert Spec(learn="tqt").scale == "pow2" and parameter_of(Spec(learn="tqt")) == "log2_threshold"
