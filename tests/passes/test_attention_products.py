"""Attention as two products and a softmax: exact in float, int8 in ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.targets import by_name


class Heads(nn.Module):
    """Self-attention; `options` of the call."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.qkv, self.out, self.options = nn.Linear(16, 48), nn.Linear(16, 16), options

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(query, key, value, **self.options)  # type: ignore[arg-type]
        return self.out(made.transpose(1, 2).flatten(2))


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


def prepared(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return fq.prepare_fx(model.eval(), fq.templates.calibration, (X,), target="onnxruntime", algorithms=())


@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.2}, {"attn_mask": torch.randn(6, 6)}], ids=["plain", "scale", "mask"]
)
def test_it_is_exact(options: dict[str, object]) -> None:
    model = Heads(**options)
    made = prepared(model)
    rows = fq.explain(made)
    assert [row.status for row in rows if row.kind == "matmul"] == ["int8", "int8"]
    assert "split_ops: two products and a softmax" in " ".join(row.reason for row in rows)
    with torch.no_grad():
        torch.testing.assert_close(made(X), model(X))


class Padded(Heads):
    """Self-attention with a mask of keys, of -inf or of booleans."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        self.options = {"attn_mask": mask}
        return super().forward(x)


def padding(like: Tensor) -> Tensor:
    mask = like.new_zeros(2, 1, 1, 6)
    mask[1, ..., 4:] = -torch.inf
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
@pytest.mark.parametrize("engine", ["reference", "onednn", "native", "onnxruntime", "openvino"])
def test_queries_without_a_key_give_nothing(engine: str, dtype: torch.dtype) -> None:
    """As torch's attention does, in calibration and on every engine; a softmax gives NaN, or the mean of all values."""
    pytest.importorskip(
        {"native": "llvmlite"}.get(engine, engine) if engine not in ("reference", "onednn") else "torch"
    )
    torch.manual_seed(0)
    model, mask = Padded().eval(), padding(X)
    closed = mask.clone()
    closed[0] = -torch.inf
    masks = [each if dtype == torch.float32 else each == 0 for each in (mask, closed)]
    quantized = fq.quantize(model, [(X, each) for each in masks], engine=engine)
    with torch.no_grad():
        for each in masks:
            assert sqnr_db(model(X, each), quantized(X, each)) > 25


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": torch.ones(6, 6) > 0}], ids=["causal", "bool"])
def test_what_cuts_values_off_stays_one_op(options: dict[str, object]) -> None:
    kinds = Counter(row.kind for row in fq.explain(prepared(Heads(**options))))
    assert kinds["attention"] == 1 and not kinds["matmul"]


def test_onnx_runtime_multiplies_integers(tmp_path: Path) -> None:
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = Heads()
    quantized = fq.convert_fx(fq.calibrate(prepared(model), [X]), engine="reference")
    assert fq.check_target(quantized, "onnxruntime") == ()
    options = ort.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 4, str(tmp_path / "made.onnx")
    session = ort.InferenceSession(fq.export_onnx(quantized, tmp_path / "m.onnx", X), options)
    ops = Counter(node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node)
    assert ops["MatMulIntegerToFloat"] + ops["QLinearMatMul"] == 2 and not ops["MatMul"]
    with torch.no_grad():
        found = torch.from_numpy(session.run(None, {"x": X.numpy()})[0])
        assert sqnr_db(quantized(X), found) > 40 and sqnr_db(model(X), quantized(X)) > 25


def test_calibration_sees_attention_whole_and_watches_what_is_inside_beside_it() -> None:
    torch.manual_seed(0)
    model = Heads(attn_mask=torch.randn(6, 6)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (X,))
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))
    watched = "statistics.scaled_dot_product_attention:probabilities_histogram"
    quantizers = [
        module
        for module in decide(prepared, target=by_name("onnxruntime")).modules()
        if isinstance(module, FakeQuant) and module.observer is not None
    ]
    high = prepared.get_submodule(watched).observer.high
    assert 0.2 < high < 1 and any(torch.equal(each.observer.high, high) for each in quantizers)
    assert "matmul" not in {row.kind for row in fq.explain(decide(prepared, target=by_name("x86")))}


def test_it_trains() -> None:
    torch.manual_seed(0)
    made = fq.prepare_qat_fx(
        Heads().train(), fq.get_default_qat_qconfig_mapping("onnxruntime"), (X,), target="onnxruntime"
    )
    made(X).sum().backward()
    converted = fq.convert_fx(made.eval(), engine="reference")
    assert [row.status for row in fq.explain(converted) if row.kind == "matmul"] == ["int8", "int8"]
