"""The OpenVINO engine is called like the model, agrees with the reference, and survives copying and pickling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines.openvino import OpenVinoModule
from runtime_agreement import check_agreement
from zoo import EncoderBlock

for package in ("onnx", "onnxscript", "openvino"):
    pytest.importorskip(package)

NAMES = ("resnet", "encoder_block", "keywords_to_dict")


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_reference_at_any_batch(name: str) -> None:
    check_agreement(OpenVinoModule, name)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_float_parts_stay_float(mode: str) -> None:
    """OpenVINO would quantize more activations by itself, and compute in bfloat16 where the CPU has it."""
    x = torch.randn(2, 8, 64)
    reference = fq.quantize(EncoderBlock(64).eval(), example_inputs=(x,), mode=mode, engine="reference")
    torch.testing.assert_close(OpenVinoModule(reference, x)(x), reference(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_result_is_not_overwritten_by_the_next_call() -> None:
    x = torch.randn(2, 8)
    engine = OpenVinoModule(fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x)
    first = engine(x)
    kept = first.clone()
    engine(x + 1)
    assert torch.equal(first, kept)


def test_follows_the_threads_of_torch() -> None:
    x = torch.randn(2, 8)
    engine = OpenVinoModule(fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x)
    engine(x)
    compiled = engine._session.at([x.numpy()]).get_compiled_model()
    assert compiled.get_property("INFERENCE_NUM_THREADS") == torch.get_num_threads()


def test_many_shapes_share_one_compiled_model() -> None:
    x = torch.randn(2, 8)
    reference = fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference")
    engine = OpenVinoModule(reference, x)
    for batch in range(1, 10):
        rows = torch.randn(batch, 8)
        torch.testing.assert_close(engine(rows), reference(rows).detach(), rtol=1e-4, atol=1e-4)
    assert len(engine._session.made) == 5


def test_bad_calls() -> None:
    x = torch.randn(2, 8)
    engine = OpenVinoModule(fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x)
    with pytest.raises(fq.FxQuantError, match=r"cannot run on inputs \(2, 9\) float32"):
        engine(torch.randn(2, 9))
    with pytest.raises(fq.ConfigError, match="do not fit"):
        engine(x, x)
