"""The OpenVINO engine is called like the model, agrees with the reference, and survives copying and pickling."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

import fxquant as fq
from fxquant.engines.openvino import OpenVinoModule
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO, EncoderBlock

for package in ("onnx", "onnxscript", "openvino"):
    pytest.importorskip(package)

NAMES = ("resnet", "encoder_block", "keywords_to_dict")


def repeat(count: int, x: Tensor) -> Tensor:
    return torch.cat([x] * count)


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_reference_at_any_batch(name: str) -> None:
    entry = ZOO[name]
    args, kwargs = entry.inputs(), entry.kwargs()
    reference = fq.quantize(
        entry.build(), [args or kwargs], example_inputs=args, example_kwargs=kwargs, engine="reference"
    )
    engine = OpenVinoModule(reference, args, kwargs)
    for twin in (engine, copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        for count in (1, 3):
            more, more_kwargs = tree_map(partial(repeat, count), (args, kwargs))
            expected, spec = tree_flatten(reference(*more, **more_kwargs))
            actual, actual_spec = tree_flatten(twin(*more, **more_kwargs))
            assert actual_spec == spec
            for left, right in zip(expected, actual, strict=True):
                assert left.shape == right.shape
                assert sqnr_db(left.detach(), right) > 50


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
