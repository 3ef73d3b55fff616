"""ExecuTorch programs: one delegate, nothing outside of it, and the reference's results in ExecuTorch's own runtime."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.export.executorch.fit_xnnpack import fit_xnnpack
from fxquant.export.reference import reference_of
from fxquant.graph import torch_compat
from zoo import ZOO

needs_executorch = pytest.mark.skipif(
    importlib.util.find_spec("executorch") is None, reason="needs executorch: pip install 'fxquant[executorch]'"
)


def quantized(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    x = ZOO[name].inputs()[0]
    prepared = fq.prepare_fx(ZOO[name].build(), fq.get_default_qconfig_mapping("xnnpack"), (x,), target="xnnpack")
    with torch.no_grad():
        prepared(x)
    return fq.convert_to_reference_fx(prepared), x


def run(path: Path, x: torch.Tensor) -> torch.Tensor:
    from executorch.runtime import Runtime

    outputs: Any = Runtime.get().load_program(str(path)).load_method("forward").execute([x])
    return outputs[0]


@needs_executorch
@pytest.mark.parametrize("name", ["plain", "mobilenet"])
def test_one_delegate_runs_it_all(name: str, tmp_path: Path) -> None:
    model, x = quantized(name)
    handlers = list(logging.getLogger().handlers)
    account = fq.export_executorch(model, tmp_path / "m.pte", x)
    assert (account.delegates, dict(account.outside)) == (1, {})
    assert "nothing" in str(account)
    assert logging.getLogger().handlers == handlers
    with torch.no_grad():
        expected = model(x)
    step = torch.unique(expected).diff().min()
    assert (run(account.path, x) - expected).abs().max() <= 2.5 * step


@needs_executorch
def test_what_stays_outside_is_counted(tmp_path: Path) -> None:
    x = torch.randn(2, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 4))
    quantized = fq.quantize(model.eval(), [x], engine="reference", target="xnnpack")
    account = fq.export_executorch(quantized, tmp_path / "m.pte", x)
    assert account.delegates > 1
    assert account.outside
    assert "prepare for target='xnnpack'" in str(account)


@needs_executorch
def test_unsigned_activations_are_refused_with_what_to_do(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    made = fq.quantize(model, [x], target="x86-vnni", engine="reference", algorithms=())
    with pytest.raises(fq.ConfigError, match=r"is in uint8. Quantize the model for target='xnnpack'"):
        fq.export_executorch(made, tmp_path / "m.pte", x)


def test_without_executorch_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "executorch" else found(name))
    with pytest.raises(fq.ConfigError, match=r"pip install 'fxquant\[executorch\]'"):
        fq.export_executorch(nn.Linear(2, 2), tmp_path / "m.pte", torch.randn(1, 2))
    with pytest.raises(fq.ConfigError, match="no directory"):
        fq.export_executorch(nn.Linear(2, 2), tmp_path / "none" / "m.pte", torch.randn(1, 2))


def test_the_graph_has_the_form_that_the_partitioner_takes() -> None:
    model, x = quantized("resnet")
    tree = reference_of(model, "test")
    fit_xnnpack(tree)
    nodes = [node for node in tree.graph.nodes if node.target in torch_compat.DEQUANTIZE_OPS]
    assert max(len(node.users) for node in nodes) == 1
    assert all(node.args[2] is not None for node in nodes)
    with torch.no_grad():
        assert torch.equal(tree(x), model(x))
