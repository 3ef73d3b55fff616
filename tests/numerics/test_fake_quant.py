import copy
import io
import pickle

import pytest
import torch
from torch import nn

from fxquant.config.spec import Spec
from fxquant.errors import StageError
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.fake_quant import FakeQuant

SPECS = {
    "histogram": Spec(signed=False, symmetric=False),
    "minmax": Spec(observer="minmax"),
    "per_channel": Spec(observer="minmax", granularity="per_channel", axis=1),
    "per_group": Spec(observer="minmax", granularity="per_group", group_size=4),
    "fixed": Spec(signed=False, symmetric=False, observer="fixed", range=(0.0, 1.0)),
    "dynamic": Spec(symmetric=False, dynamic=True),
}
X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
all_specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def calibrated(spec):
    quantizer = FakeQuant(spec, "layer1.add").eval()
    quantizer(X)
    return quantizer


@all_specs
def test_observing_gives_back_the_very_tensor(spec):
    quantizer = FakeQuant(spec, "layer1.add").eval()
    assert quantizer(X) is X
    assert quantizer.state == "observe"


@all_specs
def test_frozen_rounds_to_the_observed_grid(spec):
    quantizer = calibrated(spec)
    quantizer.freeze()
    if spec.dynamic:
        scale, zero_point = choose_qparams(X.min(), X.max(), spec)
    else:
        scale, zero_point = quantizer.compute_qparams()
        assert torch.equal(quantizer.scale, scale)
    y = quantizer(X)
    assert torch.equal(y, fake_quantize(X, scale, zero_point, spec))
    assert not torch.equal(y, X)


def test_dynamic_follows_each_input():
    quantizer = FakeQuant(SPECS["dynamic"], "x").eval()
    assert quantizer.observer is None
    with pytest.raises(StageError, match=r"'x'.*dynamic"):
        quantizer.compute_qparams()
    quantizer.freeze()
    assert torch.allclose(quantizer(1000 * X), 1000 * quantizer(X), rtol=1e-4)
    assert quantizer(X[:0]).shape == X[:0].shape


@pytest.mark.parametrize("state", ["observe", "frozen"])
@pytest.mark.parametrize("x", [torch.arange(4), torch.tensor([True]), None, 3.0], ids=["int", "bool", "none", "number"])
def test_anything_but_a_float_tensor_passes(x, state):
    quantizer = calibrated(SPECS["minmax"])
    quantizer.state = state
    assert quantizer(x) is x


def test_calibrating_in_train_mode_says_what_to_do():
    quantizer = FakeQuant(SPECS["minmax"], "layer1.add")
    with pytest.raises(StageError, match=r"'layer1\.add'.*model\.eval\(\)"):
        quantizer(X)
    assert quantizer(X, observe=False) is X
    assert not quantizer.observer.seen


def test_observe_false_looks_away():
    quantizer = FakeQuant(SPECS["minmax"], "layer1.add").eval()
    quantizer(X, observe=False)
    assert not quantizer.observer.seen


def test_freezing_without_data_names_the_tensor():
    quantizer = FakeQuant(SPECS["histogram"], "layer1.add").eval()
    with pytest.raises(StageError, match=r"'layer1\.add' saw no data"):
        quantizer.freeze()
    assert quantizer.state == "observe"


@all_specs
@pytest.mark.parametrize("frozen", [False, True], ids=["observe", "frozen"])
def test_calibration_survives_copy_pickle_and_state_dict(spec, frozen):
    quantizer = calibrated(spec)
    if frozen:
        quantizer.freeze()
    file = io.BytesIO()
    torch.save(quantizer.state_dict(), file)
    file.seek(0)
    loaded = FakeQuant(spec, "layer1.add").eval()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for twin in (loaded, copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert twin.state == quantizer.state
        assert torch.equal(twin.scale, quantizer.scale)
        twin.freeze()
        reference = copy.deepcopy(quantizer)
        reference.freeze()
        assert torch.equal(twin(X), reference(X))


def test_state_inside_a_model_is_all_tensors():
    model = nn.Sequential(calibrated(SPECS["histogram"]))
    assert all(isinstance(value, torch.Tensor) for value in model.state_dict().values())


def test_casting_the_model_keeps_the_scale_and_follows_the_input_dtype():
    quantizer = calibrated(SPECS["minmax"])
    quantizer.freeze()
    scale = quantizer.scale.clone()
    quantizer.to(torch.bfloat16)
    assert torch.equal(quantizer.scale, scale)
    assert quantizer(X.bfloat16()).dtype == torch.bfloat16


def test_moving_to_another_device_moves_the_buffers():
    quantizer = calibrated(SPECS["histogram"]).to("meta")
    assert all(b.device.type == "meta" for b in quantizer.buffers())


def test_frozen_compiles_into_one_graph():
    quantizer = calibrated(SPECS["histogram"])
    quantizer.freeze()
    exported = torch.export.export(quantizer, (X,)).module()
    assert torch.equal(exported(X), quantizer(X))


def test_repr_is_short():
    assert "layer1.add: u8 asym per_tensor histogram, observe" in repr(FakeQuant(SPECS["histogram"], "layer1.add"))
