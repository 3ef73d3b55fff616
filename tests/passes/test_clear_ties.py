"""Where a target asks for it, a file gives the same integers in every runtime."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.config.spec import Spec
from fxquant.numerics.affine import sqnr_db
from fxquant.targets import by_name


class Net(nn.Module):
    """A chain of sums, a product, depthwise and plain convolutions, means of a picture; int8 up to the last linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.one, self.two = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.gate, self.head = nn.Conv2d(16, 16, 1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        x = x + self.one(F.relu6(self.deep(x)))
        x = F.relu(x + self.two(x))
        x = x * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(x, 1)))
        return self.head(x.mean((2, 3)))


def calibrated(target: fq.Target, model: nn.Module | None = None) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = (model or Net()).eval()
    x = torch.randn(16, 3, 12, 12)
    prepared = fq.prepare_fx(model, {"": target.qconfig}, (x[:2],), target=target)
    prepared(x)
    return prepared, x


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_runtimes_give_the_bits_of_the_reference(name: str, tmp_path: Path) -> None:
    from exact_session import exact_session

    prepared, _ = calibrated(by_name(name))
    made = fq.convert_to_reference_fx(prepared)
    inputs = 1.5 * torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = made(inputs).numpy()
    path = fq.export_onnx(made, tmp_path / "net.onnx", inputs)
    found = [exact_session(path).run(None, {"x": inputs.numpy()})[0]]
    if name == "openvino":
        openvino = pytest.importorskip("openvino")
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        found.append(openvino.Core().compile_model(str(path), "CPU", settings)([inputs.numpy()])[0])
    for each in found:  # one step anywhere before the last product would be 1e-3
        np.testing.assert_allclose(each, wanted, atol=1e-5 * float(np.abs(wanted).max()))


def test_it_costs_next_to_nothing() -> None:
    losses = []
    for clear in (False, True):
        prepared, x = calibrated(dataclasses.replace(by_name("onnxruntime"), clear_ties=clear))
        made = fq.convert_to_reference_fx(prepared)
        torch.manual_seed(0)
        with torch.no_grad():
            losses.append(sqnr_db(Net().eval()(x), made(x)))
    assert losses[1] > losses[0] - 0.5


def test_scales_move_by_a_hair_and_the_integers_of_weights_do_not() -> None:
    states = []
    for clear in (False, True):
        prepared, _ = calibrated(dataclasses.replace(by_name("openvino"), clear_ties=clear))
        states.append(fq.convert_to_reference_fx(prepared).state_dict())
    before, after = states
    assert before.keys() == after.keys()
    moved = {name for name in before if name.endswith("scale") and not torch.equal(before[name], after[name])}
    assert moved
    assert all(float((after[name] / before[name] - 1).abs().max()) <= 0.0401 for name in moved)
    for name in ("stem", "deep", "one", "two", "gate", "head"):
        assert torch.equal(before[f"{name}.weight"], after[f"{name}.weight"])


def test_a_frozen_model_converts_to_its_own_bits() -> None:
    prepared, x = calibrated(by_name("onnxruntime"))
    frozen = fq.freeze(copy.deepcopy(prepared))
    with torch.no_grad():
        wanted = frozen(x)
        straight, later = (fq.convert_to_reference_fx(each)(x) for each in (prepared, frozen))
    assert torch.equal(straight, later)
    assert sqnr_db(wanted, later) > 60


def test_ranges_that_the_user_gives_stay() -> None:
    given = Spec(signed=False, symmetric=False, observer="fixed", range=(-3.0, 3.0))
    states = []
    for clear in (False, True):
        target = dataclasses.replace(by_name("onnxruntime"), activation=given, clear_ties=clear)
        states.append(fq.convert_to_reference_fx(calibrated(target)[0]).state_dict())
    names = [name for name in states[0] if name.startswith("quantizers.") and name.endswith(".scale")]
    assert names
    assert all(torch.equal(states[0][name], states[1][name]) for name in names)


def test_what_was_trained_keeps_its_scales() -> None:
    states = []
    for clear in (False, True):
        target = dataclasses.replace(by_name("openvino"), clear_ties=clear)
        torch.manual_seed(0)
        x = torch.randn(8, 3, 12, 12)
        mapping = fq.get_default_qat_qconfig_mapping("openvino")
        trained = fq.prepare_qat_fx(Net().train(), mapping, (x,), target=target)
        trained(x)
        states.append(fq.convert_to_reference_fx(trained.eval()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
