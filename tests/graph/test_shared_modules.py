"""A module that stands at several paths is one module at every stage, whatever passes put in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq


class Sharing(nn.Module):
    """Layers by other names, in lists, and in a part by the name that it gives them, as a tied embedding stands."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.same, self.norm = self.conv, self.bn
        self.more = nn.ModuleList([self.fc, nn.Linear(4, 4)])
        self.part = nn.ModuleDict({"fc": self.fc, "own": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.same(x))).mean((2, 3))
        for layer in self.more:
            y = layer(y).relu()
        out: Tensor = self.part["own"](self.part["fc"](y))
        return out


def check(model: nn.Module) -> None:
    found = dict(model.named_modules(remove_duplicate=False))
    assert found["conv"] is found["same"] and found["bn"] is found["norm"]
    assert found["fc"] is found["more.0"] is found["part.fc"]


@pytest.mark.parametrize("training", [False, True])
def test_shared_modules_stay_one(training: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Sharing().train(training), torch.randn(2, 3, 6, 6)
    if training:
        prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping(), (x,))
        assert len(list(prepared.parameters())) == len(list(model.parameters()))
    else:
        check(fq.fuse_fx(model))
        prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    frozen, quantized = fq.freeze(prepared.eval()), fq.convert_fx(prepared)
    for each in (prepared, frozen, quantized):
        check(each)
    large = [name for name, tensor in quantized.state_dict().items() if tensor.is_floating_point() and tensor.dim() > 1]
    assert not large  # a float weight would be in the state_dict, and in memory, beside the integers
    loaded = fq.load(fq.save(quantized, tmp_path / "model.fq"))
    assert loaded.state_dict().keys() == quantized.state_dict().keys()
    assert torch.equal(loaded(x), quantized(x))


def test_a_path_that_the_graph_calls_by_itself_keeps_its_own_decision() -> None:
    torch.manual_seed(0)
    model, x = Sharing().eval(), torch.randn(2, 3, 6, 6)
    mapping = fq.get_default_qconfig_mapping().set_module_name("more.0", None)
    prepared = fq.prepare_fx(model, mapping, (x,), strict=False)
    quantized = fq.convert_fx(fq.calibrate(prepared, [x]), engine="reference")
    torch.testing.assert_close(quantized(x), model(x), atol=0.05, rtol=0)
