"""Equalization leaves the float function as it is, and per-tensor scales lose less for it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, CrossLayerEqualization
from fxquant.numerics.affine import sqnr_db

CLE = (CrossLayerEqualization(), BiasCorrection())
DATA = [torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
TEST = torch.randn(32, 3, 10, 10, generator=torch.Generator().manual_seed(9))


def uneven(model: nn.Module, first: str, second: str) -> nn.Module:
    """The same function but for a clip between, with channels 1000x apart in the weights."""
    with torch.no_grad():
        maker, taker = model.get_submodule(first), model.get_submodule(second)
        factors = torch.logspace(-2, 1, len(maker.weight))
        maker.weight *= factors.view(-1, 1, 1, 1)
        maker.bias *= factors
        taker.weight /= factors.view(-1, 1, 1, 1) if taker.weight.shape[1] == 1 else factors.view(1, -1, 1, 1)
    return model.eval()


def separable(act: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 12, 3, padding=1), act(), nn.Conv2d(12, 12, 3, padding=1, groups=12), act())
    return uneven(nn.Sequential(*layers, nn.Conv2d(12, 4, 1)), "0", "2")


def padded(pad: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), pad, nn.Conv2d(12, 12, 3, groups=12), nn.ReLU())
    return uneven(nn.Sequential(*layers, nn.Conv2d(12, 4, 1)), "0", "3")


class Turned(nn.Module):
    """Each channel in the place of the one before, which a pad can do."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 1, -1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.two, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.two(F.relu(self.one(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def residual() -> nn.Module:
    torch.manual_seed(0)
    return uneven(Residual(), "one", "two")


def float_form(prepared: nn.Module) -> nn.Module:
    """What is quantized, before it is: a frozen model whose quantizers let all pass."""
    frozen = fq.freeze(prepared)
    for module in frozen.modules():
        if hasattr(module, "rounding"):
            module.rounding = False
    return frozen


class Joined(nn.Module):
    """Channels that go to a weight beside others, twice over, and to a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.side = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1)
        self.two, self.head = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(30, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        one, side = F.relu(self.one(x)), F.relu(self.side(x))
        inner = torch.cat([one, F.max_pool2d(one, 3, 1, 1)], 1)
        return self.head(torch.cat([side, inner, F.relu(self.two(one))], 1))


def joined() -> nn.Module:
    torch.manual_seed(0)
    model = uneven(Joined(), "one", "two")
    with torch.no_grad():
        for start in (6, 14):
            model.get_parameter("head.weight")[:, start : start + 8] /= torch.logspace(-2, 1, 8).view(1, -1, 1, 1)
    return model


MODELS = {
    "joined": joined,
    "padded": lambda: padded(nn.ZeroPad2d(1)),
    "relu6": lambda: separable(nn.ReLU6),
    "residual": residual,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_float_function_stays_and_powers_of_two_lose_less(name: str) -> None:
    model = MODELS[name]()
    before, after = (
        sqnr_db(
            model(TEST),
            fq.quantize(model, DATA, target="npu", algorithms=each, engine="reference", precision="int8")(TEST),
        )
        for each in ((BiasCorrection(),), CLE)
    )
    assert after > before + 1.0
    prepared = fq.prepare_fx(model, {"": fq.get_default_qconfig("npu")}, (TEST,), target="npu", algorithms=CLE[:1])
    fq.calibrate(prepared, DATA)
    torch.testing.assert_close(float_form(prepared)(DATA[0]), model(DATA[0]), rtol=1e-3, atol=1e-3)


def test_a_clip_stays_where_it_is_on_other_data_unless_weights_have_few_bits() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 12, 3, padding=1), nn.ReLU6(), nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.ReLU6())
    model = nn.Sequential(*layers, nn.Conv2d(12, 4, 1)).eval()
    prepared = fq.prepare_fx(model, {"": fq.get_default_qconfig("npu")}, (TEST,), target="npu", algorithms=CLE[:1])
    fq.calibrate(prepared, [batch / 4 for batch in DATA])  # what reaches the clip later is far below it
    torch.testing.assert_close(float_form(prepared)(8 * TEST), model(8 * TEST), rtol=1e-3, atol=1e-3)
    reasons = {row.path: row.reason for row in fq.explain(fq.convert_fx(prepared, engine="reference"))}
    assert "not equalized: data that calibration has not seen" in reasons["0"]


def test_the_decisions_say_what_was_done_and_why_not() -> None:
    made = fq.quantize(residual(), DATA, target="npu", algorithms=CLE, engine="reference", precision="int8")
    reasons = {row.path: row.reason for row in fq.explain(made) if row.is_weighted}
    assert "channels equalized with two, by" in reasons["one"]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU(), nn.Conv2d(4, 4, 1)).eval()
    with_curve = fq.quantize(model, DATA, target="npu", algorithms=CLE, engine="reference", precision="int8")
    assert not any("equalized with" in row.reason for row in fq.explain(with_curve))


@pytest.mark.parametrize("pad", [nn.ConstantPad2d(1, 0.5), Turned()], ids=["number", "channels"])
def test_pads_that_let_no_factor_pass_are_left_alone(pad: nn.Module) -> None:
    made = fq.quantize(padded(pad), DATA, target="npu", algorithms=CLE, engine="reference", precision="int8")
    assert "equalized with" not in {row.path: row.reason for row in fq.explain(made)}["0"]


def test_channels_that_stay_above_zero_are_shifted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    with torch.no_grad():
        model[0].bias += torch.tensor([30.0, 0.0, 0.0, 0.0])
    with_shift, without = (
        fq.quantize(
            model,
            DATA,
            target="npu",
            algorithms=(CrossLayerEqualization(absorb_bias=on),),
            engine="reference",
            precision="int8",
        )
        for on in (True, False)
    )
    assert any("bias of 1 channels absorbed by 2" in row.reason for row in fq.explain(with_shift))
    assert sqnr_db(model(TEST), with_shift(TEST)) > sqnr_db(model(TEST), without(TEST)) + 3


def test_weights_with_a_scale_per_channel_are_left_alone() -> None:
    prepared = fq.prepare_fx(separable(nn.ReLU), fq.get_default_qconfig_mapping("x86"), (TEST,), algorithms=CLE)
    fq.calibrate(prepared, DATA)
    assert not any("equalized" in row.reason for row in fq.explain(fq.convert_fx(prepared, engine="reference")))


def test_it_goes_along_with_copies_and_state_dicts_and_does_not_change_the_prepared_model() -> None:
    mapping = {"": fq.get_default_qconfig("npu")}
    prepared = fq.prepare_fx(separable(nn.ReLU6), mapping, (TEST,), target="npu", algorithms=CLE)
    fq.calibrate(prepared, DATA)
    first = fq.convert_fx(prepared, engine="reference")(TEST)
    fresh = fq.prepare_fx(separable(nn.ReLU6), mapping, (TEST,), target="npu", algorithms=CLE)
    fresh.load_state_dict(prepared.state_dict())
    for other in (prepared, copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared)), fresh):
        assert torch.equal(fq.convert_fx(other, engine="reference")(TEST), first)


def test_parts_of_a_model_that_does_not_trace_are_equalized_each() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = separable(nn.ReLU), separable(nn.ReLU)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)[:, :3]
            return self.two(y) if float(y.sum()) > -1e9 else y

    made = fq.quantize(Branching().eval(), DATA, target="npu", algorithms=CLE, engine="reference", precision="int8")
    paths = {row.path for row in fq.explain(made) if "channels equalized" in row.reason}
    assert {"one.0", "two.0"} <= paths
