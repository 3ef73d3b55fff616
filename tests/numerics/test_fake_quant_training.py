"""`FakeQuant` in training: how ranges start, follow, freeze and travel."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from numerics.learned_specs import SPECS, X, trained

every = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


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
