"""GPTQ loses less at the output than rounding to the nearest, whatever the op and the grid."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import GPTQ, BiasCorrection, gptq
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.observers.gram import Patches
from fxquant.numerics.weights.weight_range import find_weight_qparams

INT4 = fq.Spec(bits=4, granularity="per_channel", observer="minmax")
GRIDS = {
    "int4": INT4,
    "int4_groups": fq.Spec(bits=4, granularity="per_group", group_size=8, observer="minmax"),
    "uint4": fq.Spec(bits=4, signed=False, symmetric=False, granularity="per_channel", observer="minmax"),
    "int4_per_tensor": fq.Spec(bits=4, observer="minmax"),
    "int8": fq.Spec(granularity="per_channel", observer="minmax"),
    "pow2": fq.Spec(bits=4, granularity="per_channel", observer="minmax", scale="pow2"),
}


def correlated(*shape: int, axis: int, seed: int = 0) -> Tensor:
    """Data whose channels go together, so that one can make up for what another loses."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator).transpose(axis, -1)
    mixed = torch.randn(shape[axis], shape[axis], generator=torch.Generator().manual_seed(99))
    return (0.3 * x + x @ mixed / shape[axis] ** 0.5 + 1).transpose(axis, -1)


def gain(model: nn.Module, x: Tensor, test: Tensor, weight: fq.Spec, activation: fq.Spec | None) -> float:
    """Decibels that GPTQ adds to bias correction."""
    mapping = {"": fq.QConfig(activation=activation, weight=weight)}
    mode = "static" if activation else "weight_only"
    found = []
    for algorithms in ((BiasCorrection(),), (GPTQ(), BiasCorrection())):
        options = {"algorithms": algorithms, "engine": "reference", "mode": mode}
        found.append(sqnr_db(model(test), fq.quantize(model, [x], qconfig_mapping=mapping, **options)(test)))
    return found[1] - found[0]


@pytest.mark.parametrize("name", GRIDS)
def test_a_linear_loses_less(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 16)).eval()
    x, test = correlated(256, 32, axis=1), correlated(256, 32, axis=1, seed=1)
    assert gain(model, x, test, GRIDS[name], None) > 2.0


CONVOLUTIONS = {  # made in the test, after its seed
    "1d": lambda: nn.Conv1d(8, 6, 3, padding=1),
    "strided": lambda: nn.Conv2d(8, 6, 3, stride=2, padding=1, bias=False),
    "reflect": lambda: nn.Conv2d(8, 6, (1, 3), padding="same", dilation=(1, 2), padding_mode="reflect"),
    "grouped": lambda: nn.Conv2d(8, 16, 3, groups=4),
    "3d": lambda: nn.Conv3d(8, 4, 2, padding=(0, 1, 0)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_loses_less(name: str) -> None:
    model = nn.Sequential(CONVOLUTIONS[name]()).eval()
    dims = model[0].weight.dim() - 2
    shape = (8, 8, *((60,), (9, 9), (5, 5, 5))[dims - 1])
    x, test = correlated(*shape, axis=1), correlated(*shape, axis=1, seed=1)
    assert gain(model, x, test, INT4, fq.Spec(signed=False, symmetric=False)) > 0.5


def test_patches_are_what_a_convolution_multiplies() -> None:
    conv = nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 0), groups=2)
    x = correlated(3, 4, 9, 8, axis=1)
    patches = Patches(
        channels=4, outputs=600, groups=2, kernel=(3, 3), stride=(2, 1), dilation=(1, 1), padding=(0, 0, 1, 1)
    )
    watcher = patches.make()
    for batch in x.split(1):
        watcher(batch)
    moments = watcher.moments()
    assert moments is not None
    rows = F.unfold(x, 3, stride=(2, 1), padding=(1, 0)).transpose(1, 2).reshape(-1, 2, 18).transpose(0, 1).double()
    torch.testing.assert_close(watcher.second.double(), rows.transpose(1, 2) @ rows, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(moments[1], rows.mean(1), rtol=1e-5, atol=1e-5)
    mean = conv.weight.double().view(2, 3, 18) @ moments[1].unsqueeze(2)
    torch.testing.assert_close(mean.flatten() + conv.bias, conv(x).double().mean((0, 2, 3)), rtol=1e-4, atol=1e-4)


class Twice(nn.Module):
    """A layer that is called twice, and one without data."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.dead = nn.Linear(16, 16), nn.Linear(16, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.fc(x))) + self.dead(x * 0).sum()


def test_results_are_the_same_for_copies_pickles_states_and_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Twice().eval(), correlated(64, 16, axis=1)
    mapping = {"": fq.QConfig(activation=fq.Spec(), weight=GRIDS["int4_groups"])}

    def prepare() -> nn.Module:
        return fq.prepare_fx(model, mapping, (x,), algorithms=(GPTQ(), BiasCorrection()))

    prepared = fq.calibrate(prepare(), x.split(16))
    sizes = sum(tensor.numel() for tensor in prepared.state_dict().values())
    made = fq.convert_fx(prepared, engine="reference")
    expected = made(x)
    loaded = prepare()
    loaded.load_state_dict(prepared.state_dict())
    again = fq.calibrate(prepare(), x.split(16))
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared)), loaded, again, fq.freeze(prepared)):
        assert torch.equal(fq.convert_fx(other, engine="reference")(x), expected)
    assert torch.equal(fq.load(fq.save(made, tmp_path / "m.fq"), engine="reference")(x), expected)
    more = fq.calibrate(prepare(), 3 * x.split(16))
    assert sum(tensor.numel() for tensor in more.state_dict().values()) == sizes
    assert torch.isfinite(expected).all()


def test_another_conversion_of_the_same_data_takes_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = correlated(64, 16, axis=1)
    model = nn.Sequential(nn.Linear(16, 8)).eval()
    prepared = fq.prepare_fx(model, {"": fq.QConfig(activation=fq.Spec(), weight=INT4)}, (x,), algorithms=(GPTQ(),))
    fq.calibrate(prepared, x[:32].split(16))
    first = fq.convert_fx(prepared, engine="reference")(x)
    found: list[tuple[object, ...]] = []
    choose = gptq.try_scales
    monkeypatch.setattr(gptq, "try_scales", lambda *given: found.append(given) or choose(*given))
    assert torch.equal(fq.convert_fx(prepared, engine="reference")(x), first) and not found
    fq.calibrate(prepared, x[32:].split(16))
    fq.convert_fx(prepared, engine="reference")
    assert found


def test_wide_ops_and_wide_grids_are_left_alone_and_a_bad_damping_is_refused() -> None:
    x = correlated(8, 16, axis=1)
    for algorithm in (GPTQ(most_features=8), GPTQ(most_bits=3)):
        options = {"qconfig_mapping": {"": fq.QConfig(weight=INT4)}, "mode": "weight_only", "engine": "reference"}
        model = nn.Sequential(nn.Linear(16, 4)).eval()
        nearest, left = (fq.quantize(model, [x], algorithms=each, **options) for each in ((), (algorithm,)))
        assert torch.equal(nearest(x), left(x))
    with pytest.raises(fq.ConfigError, match="positive"):
        GPTQ(damping=0)


def test_weights_make_up_for_a_bias_of_few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 4, 1)).eval()
    with torch.no_grad():
        for layer in model[::2]:
            layer.bias *= torch.linspace(-3, 3, len(layer.bias)).exp()
    x, test = (torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def error() -> float:
        options = {"target": "xint8", "algorithms": (GPTQ(), BiasCorrection()), "engine": "reference"}
        return sqnr_db(model(test), fq.quantize(model, [x], precision="int8", **options)(test))  # type: ignore[arg-type]

    made_up = error()
    monkeypatch.setattr("fxquant.algorithms.round_by.bias_grid", lambda op, bias: None)
    assert made_up > error() + 3.0


def test_inputs_that_hardly_vary_beside_their_mean() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 8), nn.Linear(8, 4)).eval()
    data = [torch.full((6, 24), 1000.0) + 1e-4 * torch.randn(6, 24) for _ in range(3)]
    quantized = fq.quantize(model, data, algorithms=(GPTQ(most_bits=8),), engine="reference")
    with torch.no_grad():
        assert sqnr_db(model(data[0]), quantized(data[0])) > 30


class Twins(nn.Module):
    """Two weights of one size for one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) - self.other(x)


def test_integers_are_chosen_once_for_each_weight_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = correlated(64, 8, axis=1)
    prepared = fq.prepare_fx(Twins().eval(), fq.get_default_qconfig_mapping(), (x,), algorithms=(GPTQ(),))
    fq.calibrate(prepared, [x])
    chosen, choose = [], gptq.try_scales
    monkeypatch.setattr(gptq, "try_scales", lambda *given: chosen.append(given) or choose(*given))
    one, other = (fq.convert_to_reference_fx(prepared)(x) for _ in range(2))
    assert len(chosen) == 2 and torch.equal(one, other)


def test_few_samples_cost_nothing_on_others() -> None:
    """Where inputs have nothing to do with each other, the nearest integers are the best there are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)).eval()
    x, others = torch.randn(128, 128), torch.randn(512, 128)
    found = {}
    for name, algorithms in {"nearest": (), "GPTQ": (GPTQ(),)}.items():
        quantized = fq.quantize(model, [x], algorithms=algorithms, precision="int8", engine="reference")
        found[name] = sqnr_db(model(others), quantized(others))
    assert found["GPTQ"] > found["nearest"] - 0.2


def test_one_scale_for_all_may_be_wider_than_what_the_weight_alone_says() -> None:
    """Four large numbers that meet a large input; an observer of the weight cuts them off."""
    torch.manual_seed(0)
    weight = torch.randn(256, 64) * 0.1
    weight[:4, 0] = 1.1
    second = torch.eye(64).double()[None]
    second[0, 0, 0] = 1e4
    spec = fq.Spec(scale="pow2", observer="histogram")
    (scale, zero), (widest, _) = (
        find_weight_qparams(weight, each, "weight") for each in (spec, spec.with_(observer="minmax"))
    )
    _, found = gptq.choose_integers(weight, second, scale, zero, spec, 0.01)
    assert scale < widest and found == widest
