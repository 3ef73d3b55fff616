"""A model that is made inside of inference mode runs as one that is made outside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq
from zoo import ZOO


def quantized(net: nn.Module, x: torch.Tensor, path: Path) -> nn.Module:
    return fq.quantize(net, [x], effort="fast", precision="int8")


def converted(net: nn.Module, x: torch.Tensor, path: Path) -> nn.Module:
    return fq.convert_fx(fq.calibrate(fq.prepare_fx(net, fq.get_default_qconfig_mapping(), (x,)), [x]))


def loaded(net: nn.Module, x: torch.Tensor, path: Path) -> nn.Module:
    return fq.load(fq.save(quantized(net, x, path), path))


@pytest.mark.parametrize("make", [quantized, converted, loaded])
def test_tensors_count_writes_wherever_a_model_is_made(make: object, tmp_path: Path) -> None:
    net, x = ZOO["resnet"].build().eval(), torch.randn(2, 3, 16, 16)
    assert callable(make)
    outside = make(net, x, tmp_path / "a.fq")
    with torch.inference_mode():
        inside = make(net, x, tmp_path / "b.fq")
        assert torch.equal(inside(x), outside(x))
        assert torch.is_inference_mode_enabled()
    assert not any(tensor.is_inference() for tensor in inside.state_dict().values())
    assert torch.equal(inside(x), outside(x))
