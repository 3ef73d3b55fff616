"""Exports take a model of any stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fxquant as fq
from exact_session import exact_session
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO

onnx = pytest.importorskip("onnx")


pytest.importorskip("onnxruntime")


pytest.importorskip("onnxscript")


def run(path: Path, **feed: Tensor) -> list[Tensor]:
    session = exact_session(path)
    return [torch.from_numpy(np.asarray(a)) for a in session.run(None, {k: v.numpy() for k, v in feed.items()})]


@pytest.mark.parametrize("stage", ["prepared", "frozen", "trained"])
def test_any_stage_is_converted_on_the_way(stage: str, tmp_path: Path) -> None:
    x = ZOO["plain"].inputs()[0]
    mapping = fq.get_default_qconfig_mapping("onnxruntime")
    if stage == "trained":
        model = fq.prepare_qat_fx(
            ZOO["plain"].build().train(), fq.get_default_qat_qconfig_mapping("onnxruntime"), (x,), target="onnxruntime"
        )
        model(x).sum().backward()
        model.eval()
    else:
        model = fq.prepare_fx(ZOO["plain"].build(), mapping, (x,), target="onnxruntime")
        model(x)
        model = fq.freeze(model) if stage == "frozen" else model
    path = fq.export_onnx(model, tmp_path / "m.onnx", x)
    expected = fq.convert_to_reference_fx(model)(x)
    assert sqnr_db(expected, run(path, x=x)[0]) > 45
    assert model(x).shape == expected.shape  # it goes on as it was
