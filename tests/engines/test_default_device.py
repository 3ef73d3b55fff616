"""torch.set_default_device is for tensors that the user's code makes. A converted model is where its tensors are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxquant as fq

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=["reference", "onednn", "native", "onnxruntime"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    pytest.importorskip({"native": "llvmlite", "onnxruntime": "onnxruntime"}.get(request.param, "torch"))
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten()),
        *(nn.Linear(288, 16), nn.LayerNorm(16), nn.Linear(16, 4)),
    )
    return fq.quantize(net.eval(), [X], engine=request.param)


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("called", [False, True])
def test_calls_give_the_same(model: nn.Module, called: bool) -> None:
    expected, fresh = model(X), copy.deepcopy(model)
    for _ in range(3 * called):
        fresh(X)
    with torch.device("meta"):
        for _ in range(3):
            assert torch.allclose(fresh(X), expected, atol=0.05)
    assert torch.equal(fresh(X), expected)


@torch.no_grad()
def test_moves_keep_the_tensors(model: nn.Module) -> None:
    expected, moved = model(X), copy.deepcopy(model)
    with torch.device("meta"):
        moved.half()
        assert all(tensor.device.type == "cpu" for tensor in (*moved.parameters(), *moved.buffers()))
        moved.float()
    assert torch.equal(moved(X), expected)
