"""Files of torch.export: loaded, they are the reference bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from zoo import ZOO


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_it_loads_bit_equal(mode: str, tmp_path: Path) -> None:
    x = ZOO["mobilenet"].inputs()[0]
    model = fq.quantize(ZOO["mobilenet"].build(), [x], engine="reference", mode=mode)
    path = fq.export_pt2(model, tmp_path / "m.pt2", x, dynamic_batch=True)
    loaded = torch.export.load(path).module()
    more = torch.cat([x, x, x])
    with torch.no_grad():
        assert torch.equal(loaded(more), model(more))


def test_keyword_arguments_and_bad_paths(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return self.linear(x) * scale

    x = torch.randn(2, 4)
    model = fq.quantize(Net().eval(), [x], engine="reference")
    loaded = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", {"x": x})).module()
    with torch.no_grad():
        assert torch.equal(loaded(x, 1.0), model(x))
    with pytest.raises(fq.ConfigError, match=r"fails on the example inputs: .* Pass others\.$"):
        fq.export_pt2(model, tmp_path / "m.pt2", x[:, :2])
    with pytest.raises(fq.ConfigError, match="no directory"):
        fq.export_pt2(model, tmp_path / "none" / "m.pt2", x)
    with pytest.raises(fq.StageError, match="needs a converted model"):
        fq.export_pt2(nn.Linear(2, 2), tmp_path / "n.pt2", torch.randn(1, 2))
    assert not (tmp_path / "n.pt2").exists()


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(x) + y


def test_a_tensor_that_stands_twice_in_the_example_is_two_inputs(tmp_path: Path) -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    quantized = fq.quantize(Sum(), [(x, y)], engine="reference", effort="fast")
    exported = torch.export.load(fq.export_pt2(quantized, tmp_path / "model.pt2", (x, x))).module()
    assert torch.equal(exported(x, y), quantized(x, y))
