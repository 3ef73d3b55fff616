"""The mean of an int8 op's output is that of the float op, whatever its weight lost by rounding."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq

COARSE = fq.QConfig(
    activation=fq.Spec(signed=False, symmetric=False),
    weight=fq.Spec(bits=3, granularity="per_channel", observer="minmax"),
)
OPS = {
    "linear": (nn.Linear(6, 5), (64, 6)),
    "linear_of_sequences": (nn.Linear(6, 5), (16, 7, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3), (16, 4, 12)),
    "conv2d": (nn.Conv2d(4, 6, 3), (16, 4, 9, 9)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), (16, 4, 9, 9)),
    "conv3d": (nn.Conv3d(2, 3, 3), (8, 2, 5, 5, 5)),
}


def shifted(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Data whose mean is far from zero, so that a lost weight moves the output."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 1.0


MODES = {
    "static": COARSE.activation,
    "dynamic": fq.Spec(dynamic=True, signed=False, symmetric=False),
    "weight_only": None,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPS)
def test_the_mean_of_the_output_is_kept(name: str, mode: str) -> None:
    torch.manual_seed(0)
    op, shape = OPS[name]
    model = nn.Sequential(copy.deepcopy(op)).eval()
    x = shifted(shape)
    qconfig = fq.QConfig(activation=MODES[mode], weight=COARSE.weight)
    error = fq.quantize(model, [x], mode=mode, qconfig_mapping={"": qconfig}, engine="reference")(x) - model(x)
    channels = -1 if name.startswith("linear") else 1
    others = [dim for dim in range(error.dim()) if dim != channels % error.dim()]
    assert error.abs().mean() > 0.005, "three bits lose something"
    assert error.mean(others).abs().max() < 0.02


def test_a_bias_is_not_invented() -> None:
    model = nn.Sequential(nn.Linear(6, 5, bias=False)).eval()
    prepared = fq.prepare_fx(model, {"": COARSE}, (shifted((4, 6)),))
    fq.calibrate(prepared, [shifted((4, 6))])
    assert "0.bias" not in fq.convert_fx(prepared).state_dict()


def test_a_module_called_twice_is_corrected_once_for_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([self.fc(x), self.fc(y)])

    torch.manual_seed(0)
    model = Twice().eval()
    x, y = shifted((64, 6), 1), 3 * shifted((64, 6), 2)
    prepared = fq.prepare_fx(model, {"": COARSE}, (x, y))
    fq.calibrate(prepared, [(x, y)])
    error = fq.convert_fx(prepared, engine="reference")(x, y) - model(x, y)
    assert error.mean(0).abs().max() < 0.05


def test_nothing_of_it_is_left_after_convert_and_it_survives_copies_before() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = shifted((2, 3, 9, 9))
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    fq.calibrate(prepared, [x])
    expected = fq.convert_fx(prepared, engine="reference")
    for copied in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert torch.equal(fq.convert_fx(copied, engine="reference")(x), expected(x))
    fresh = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    fresh.load_state_dict(prepared.state_dict())
    assert torch.equal(fq.convert_fx(fresh, engine="reference")(x), expected(x))
    assert not any("mean" in name for name, _ in expected.named_modules())


def test_large_batches_are_sampled_and_the_means_still_agree() -> None:
    from fxquant.numerics.observers.channel_mean import ChannelMean

    x = shifted((8, 4, 256, 256))
    watcher = ChannelMean(4, 1)
    for _ in range(8):
        watcher(x)
    mean = watcher.mean()
    assert mean is not None
    torch.testing.assert_close(mean, x.mean((0, 2, 3)), rtol=1e-3, atol=1e-3)
