"""Horizon's guide for its FX flow, as it is written, with other import lines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
import fxquant.compat.horizon as horizon
from fxquant.compat.horizon.fx.fx_helper import wrap as fx_wrap
from fxquant.compat.horizon.quantization import FakeQuantState, PrepareMethod, prepare, set_fake_quantize
from fxquant.compat.horizon.quantization.qconfig_template import (
    ModuleNameQconfigSetter,
    default_calibration_qconfig_setter,
    default_qat_qconfig_setter,
    sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter,
)


@pytest.fixture
def march() -> Iterator[None]:
    horizon.march.set_march(horizon.march.March.NASH)
    yield
    fq.set_march(None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self._post_process(self.head(self.backbone(x)))

    @fx_wrap()
    def _post_process(self, scores: Tensor) -> Tensor:
        return scores if self.training else scores.softmax(1)


def test_the_march_comes_first() -> None:
    with pytest.raises(fq.ConfigError, match="set_march"):
        prepare(Net())


@pytest.mark.usefixtures("march")
def test_the_guide() -> None:
    torch.manual_seed(0)
    model = Net()
    fused = horizon.quantization.fuse_fx(Net().eval())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    qat = horizon.quantization.prepare(
        model,
        qconfig_setter=horizon.quantization.qconfig_template.default_qat_qconfig_setter,
        method=horizon.quantization.PrepareMethod.SYMBOLIC,
    )
    qat(torch.randn(2, 3, 16, 16)).sum().backward()
    assert qat.backbone[0].weight.grad is not None


@pytest.mark.usefixtures("march")
def test_calibrate_check_and_train_in_two_models_linked_by_a_state_dict() -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(8, 3, 16, 16)
    calibrated = prepare(model, x, default_calibration_qconfig_setter)
    set_fake_quantize(calibrated, FakeQuantState.CALIBRATION)
    assert torch.allclose(calibrated(x), model(x), atol=1e-5)
    set_fake_quantize(calibrated, FakeQuantState.VALIDATION)
    rounded = calibrated(x)
    assert 0 < float((rounded - model(x)).abs().max()) < 0.1

    trained = prepare(model.train(), x, (default_qat_qconfig_setter,), PrepareMethod.JIT_STRIP)
    trained.load_state_dict(calibrated.state_dict())
    set_fake_quantize(trained, FakeQuantState.QAT)
    trained(x).sum().backward()
    set_fake_quantize(trained.eval(), FakeQuantState.VALIDATION)
    converted = fq.convert_fx(trained, engine="reference")
    assert torch.allclose(converted(x), trained(x), atol=1e-2)
    grids = [q for q in converted.modules() if type(q).__name__ == "Grid"]
    assert grids and all(int(grid.zero_point) == 0 for grid in grids)


@pytest.mark.usefixtures("march")
def test_the_first_setter_that_answers_wins() -> None:
    table = [("head", "activation", 12.0), ("backbone.0", "activation", 30.0)]
    setters = (
        ModuleNameQconfigSetter({"backbone": None}),
        sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter(table, topk=1),
        default_calibration_qconfig_setter,
    )
    prepared = prepare(Net().eval(), torch.randn(2, 3, 16, 16), setters)
    rows = {row.path: row for row in fq.explain(prepared)}
    assert rows["backbone.0"].status == "float"
    assert "16" in str(rows["head"])


@pytest.mark.usefixtures("march")
def test_calibration_and_training_are_not_mixed() -> None:
    with pytest.raises(fq.ConfigError, match="mixed"):
        prepare(Net(), qconfig_setter=(default_qat_qconfig_setter, default_calibration_qconfig_setter))


@pytest.mark.usefixtures("march")
def test_words_that_are_no_members_are_refused() -> None:
    """A state of another spelling would have counted as QAT, and a method as "auto"."""
    prepared = prepare(Net(), torch.randn(2, 3, 16, 16))
    with pytest.raises(fq.ConfigError, match=r"fake_quant_state='validation'.*FakeQuantState.VALIDATION"):
        set_fake_quantize(prepared, "validation")  # type: ignore[arg-type]
    with pytest.raises(fq.ConfigError, match=r"method='symbolic'.*PrepareMethod.SYMBOLIC"):
        prepare(Net(), torch.randn(2, 3, 16, 16), method="symbolic")  # type: ignore[arg-type]
    with pytest.raises(fq.ConfigError, match="qconfigs"):
        ModuleNameQconfigSetter({"head": 8})  # type: ignore[dict-item]
    with pytest.raises(fq.CaptureError, match="prepare got a NoneType"):
        prepare(None)  # type: ignore[arg-type]
    with pytest.raises(fq.CaptureError, match="set_fake_quantize got a NoneType"):
        set_fake_quantize(None, FakeQuantState.QAT)  # type: ignore[arg-type]


@pytest.mark.usefixtures("march")
@pytest.mark.parametrize(
    ("setters", "error"),
    [
        (
            (ModuleNameQconfigSetter({"bakbone": None}), default_calibration_qconfig_setter),
            r"setter 0 \(ModuleNameQconfigSetter\) names 'bakbone'.*Closest: 'backbone'",
        ),
        (
            (sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter([("hed",)], topk=1),),
            "names 'hed'.*Closest: 'head'",
        ),
        (
            (
                default_calibration_qconfig_setter,
                sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter([("head",)], topk=1),
            ),
            "setter 0 .* answers for every op",
        ),
    ],
    ids=["module", "op", "order"],
)
def test_setters_that_would_do_nothing_are_an_error(setters: tuple[object, ...], error: str) -> None:
    with pytest.raises(fq.ConfigError, match=error):
        prepare(Net().eval(), torch.randn(2, 3, 16, 16), setters)  # type: ignore[arg-type]
