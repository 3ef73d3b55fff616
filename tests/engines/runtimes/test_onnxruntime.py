"""The ONNX Runtime engine is called like the model, agrees with the reference, and survives copying and pickling."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.onednn.pairs import overflows
from fxquant.engines.runtimes import onnxruntime
from fxquant.engines.runtimes.onnxruntime import OnnxRuntime
from fxquant.numerics.affine import sqnr_db
from runtime_agreement import check_agreement
from zoo import ZOO

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

NAMES = ("resnet", "tied_lm", "keywords_to_dict", "tuple_to_tuple")


@pytest.mark.broad
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_reference_at_any_batch(name: str) -> None:
    check_agreement(OnnxRuntime, name)


def linear() -> tuple[nn.Module, Tensor]:
    x = torch.randn(2, 8)
    return fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x


def test_inputs_that_are_not_contiguous_or_need_gradients() -> None:
    reference, _ = linear()
    engine = OnnxRuntime(reference, torch.randn(2, 8))
    x = torch.randn(8, 5, requires_grad=True)
    result = engine(x.t())
    assert not result.requires_grad
    torch.testing.assert_close(result, reference(x.t()).detach(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(engine(input=x.t()), result)


def test_a_result_is_not_overwritten_by_the_next_call() -> None:
    reference, x = linear()
    engine = OnnxRuntime(reference, x)
    first = engine(x)
    kept = first.clone()
    engine(x + 1)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("pairs", [False, True])
def test_sums_are_asked_to_be_exact_where_pairs_overflow(pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact kernels are several times slower. Fusions stay, also of weights that share a zero point."""
    monkeypatch.setattr(onnxruntime, "overflows", lambda: pairs)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), torch.randn(1, 3, 8, 8)
    reference = fq.quantize(model, [x], engine="reference")
    engine = OnnxRuntime(reference, x)
    result = engine(x)
    if pairs or not overflows():  # else this CPU loses what is not asked for
        assert sqnr_db(reference(x), result) > 40
    options = engine._session[0].get_session_options()
    with contextlib.nullcontext() if pairs else pytest.raises(RuntimeError, match="does not have"):
        options.get_session_config_entry("session.x64quantprecision")
    import onnxruntime as ort

    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_follows_the_threads_of_torch() -> None:
    reference, x = linear()
    engine = OnnxRuntime(reference, x)
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        engine(x)
        assert engine._session[0].get_session_options().intra_op_num_threads == threads
    torch.set_num_threads(before)


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).reshape(2, 2, 2)


def test_bad_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, x = linear()
    engine = OnnxRuntime(reference, x)
    with pytest.raises(fq.FxQuantError, match=r"cannot run on inputs \(2, 9\) float32"):
        engine(torch.randn(2, 9))
    with pytest.raises(fq.FxQuantError, match="float64"):
        engine(x.double())
    with pytest.raises(fq.ConfigError, match="do not fit"):
        engine(x, x)
    with pytest.raises(fq.ConfigError, match="was a tensor"):
        engine(3)
    fixed = OnnxRuntime(fq.quantize(FixedBatch().eval(), [x], engine="reference"), x)
    torch.testing.assert_close(fixed(x).shape, torch.Size((2, 2, 2)))
    assert "The batch is fixed" in str(fixed.refuses([torch.randn(4, 8)]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(fq.ConfigError, match=r"pip install 'fxquant\[onnxruntime\]'"):
        OnnxRuntime(reference, x)


def test_an_argument_fixed_by_the_example() -> None:
    entry = ZOO["keywords_to_dict"]
    kwargs = {**entry.kwargs(), "scale": 0.5}
    reference = fq.quantize(entry.build(), [kwargs], example_kwargs=kwargs, engine="reference")
    engine = OnnxRuntime(reference, (), kwargs)
    torch.testing.assert_close(engine(**kwargs)["logits"], reference(**kwargs)["logits"].detach(), rtol=1e-3, atol=1e-3)
    with pytest.raises(fq.ConfigError, match=r"fixed to 0\.5"):
        engine(**{**kwargs, "scale": 1.0})


def test_silu_is_split_for_the_runtime_and_stays_close() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 4, 3)).eval()
    x = torch.randn(4, 3, 10, 10)
    quantized = fq.quantize(model, [x], engine="reference", target="onnxruntime")
    kinds = [row.kind for row in fq.explain(quantized) if row.status == "int8"]
    assert "sigmoid" in kinds and "mul" in kinds and "silu" not in kinds
    assert sqnr_db(model(x).detach(), quantized(x).detach()) > 25


def test_auto_prepares_for_each_engine_and_keeps_one() -> None:
    x = torch.randn(4, 3, 10, 10)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 4, 3)).eval()
    for data in ([x], iter([x, x]), [{"input": x}]):
        quantized = fq.quantize(model, data, engine="auto")
        assert sqnr_db(model(x).detach(), quantized(x).detach()) > 25
    assert sqnr_db(model(x).detach(), fq.quantize(model, [x], example_inputs={"input": x}, engine="auto")(x)) > 25
