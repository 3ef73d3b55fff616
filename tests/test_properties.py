"""Standing properties over the zoo: every stage keeps its promises for every model, in both captures."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import fxquant as fq
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO, build, run

pytestmark = pytest.mark.usefixtures("exported_once")
METHODS = ("symbolic", "export")
TURNS = [("static", "symbolic"), ("dynamic", "symbolic"), ("weight_only", "export")]
LOWEST_SQNR = 25.0  # dB; a broken path is far below, a sound one far above


def widen(value: Any) -> Any:
    return torch.cat([value, value, value]) if isinstance(value, Tensor) else value


def prepare(name: str, method: str = "symbolic") -> tuple[nn.Module, fq.graph.region.Region, tuple, dict]:
    model, args, kwargs = build(name)
    mapping = fq.get_default_qconfig_mapping("x86")
    return model, fq.prepare_fx(model, mapping, args, example_kwargs=kwargs, method=method), args, kwargs


def check_close(model: nn.Module, quantized: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Outputs have the dtypes of the float model's and are near to them, and those of a wider batch have its shapes."""
    for expected, actual in zip(run(model, args, kwargs), run(quantized, args, kwargs), strict=True):
        assert actual.dtype == expected.dtype
        if expected.is_floating_point():
            assert sqnr_db(expected, actual) > LOWEST_SQNR
    wide_args, wide_kwargs = tree_map(widen, (args, kwargs))
    for narrow, wide in zip(run(model, wide_args, wide_kwargs), run(quantized, wide_args, wide_kwargs), strict=True):
        assert narrow.shape == wide.shape
    assert any(row.status != "float" for row in fq.explain(quantized))


@pytest.mark.broad
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_preparing_keeps_the_outputs_and_converting_comes_close(name: str, method: str) -> None:
    model, prepared, args, kwargs = prepare(name, method)
    for expected, actual in zip(run(model, args, kwargs), run(prepared, args, kwargs), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    check_close(model, fq.convert_fx(prepared), args, kwargs)


@pytest.mark.broad
@pytest.mark.parametrize(("mode", "method"), TURNS)
@pytest.mark.parametrize("name", ZOO)
def test_quantized_is_close_to_float_and_takes_any_batch(name: str, mode: str, method: str) -> None:
    model, args, kwargs = build(name)
    before = copy.deepcopy(model.state_dict())
    quantized = fq.quantize(
        model, [args or kwargs], mode=mode, example_inputs=args, example_kwargs=kwargs, method=method
    )
    check_close(model, quantized, args, kwargs)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"quantize changed the user's {key}"


@pytest.mark.broad
@pytest.mark.parametrize("stage", ["fused", "prepared", "converted"])
@pytest.mark.parametrize("name", ZOO)
def test_every_stage_copies_and_pickles_bit_equal(name: str, stage: str) -> None:
    model, args, kwargs = build(name)
    subject = fq.fuse_fx(model)
    if stage != "fused":
        subject = prepare(name)[1]
        run(subject, args, kwargs)
    if stage == "converted":
        subject = fq.convert_fx(subject)
    expected = run(subject, args, kwargs)
    buffer = io.BytesIO()
    torch.save(subject, buffer)
    buffer.seek(0)
    twins = [copy.deepcopy(subject), pickle.loads(pickle.dumps(subject)), torch.load(buffer, weights_only=False)]
    for twin in twins:
        for left, right in zip(expected, run(twin, args, kwargs), strict=True):
            assert torch.equal(left, right)
        assert [n.name for n in twin.graph.nodes] == [n.name for n in subject.graph.nodes]
    if stage != "fused":
        assert fq.explain(twins[1]) == fq.explain(subject)
    if stage == "prepared":  # the copy has the calibration with it
        for left, right in zip(
            run(fq.convert_fx(twins[1]), args, kwargs), run(fq.convert_fx(subject), args, kwargs), strict=True
        ):
            assert torch.equal(left, right)


@pytest.mark.broad
@pytest.mark.parametrize("name", ZOO)
def test_state_dict_moves_calibration_and_weights(name: str) -> None:
    _, prepared, args, kwargs = prepare(name)
    run(prepared, args, kwargs)
    _, fresh, _, _ = prepare(name)
    fresh.load_state_dict(prepared.state_dict())
    converted, twin = fq.convert_fx(prepared), fq.convert_fx(fresh)
    for left, right in zip(run(converted, args, kwargs), run(twin, args, kwargs), strict=True):
        assert torch.equal(left, right)
    buffer = io.BytesIO()
    torch.save(converted.state_dict(), buffer)
    buffer.seek(0)
    twin.load_state_dict(torch.load(buffer, weights_only=True))
    for left, right in zip(run(converted, args, kwargs), run(twin, args, kwargs), strict=True):
        assert torch.equal(left, right)
