"""What the integer reference refuses, notes and keeps apart; its dump as a file that others read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fxquant as fq
from integers.converted import converted
from zoo import ZOO


@pytest.mark.broad
@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
@pytest.mark.parametrize("target", ["npu", "xint8"])
def test_networks_of_the_zoo_have_the_bits_of_the_simulation(name: str, target: str) -> None:
    x = ZOO[name].inputs()[0]
    model = converted(ZOO[name].build(), x, target)
    with torch.no_grad():
        expected = model(2 * x).numpy()
    np.testing.assert_array_equal(fq.integer_reference(model)(2 * x), expected)


@pytest.mark.parametrize("target", ["generic", "bpu"])
def test_float_scales_are_within_a_step(target: str) -> None:
    x = ZOO["resnet"].inputs()[0]
    model = converted(ZOO["resnet"].build(), x, target)
    reference = fq.integer_reference(model)
    with torch.no_grad():
        expected = model(x).numpy()
    assert any("M * 2^-n" in note for note in reference.notes)
    assert np.abs(reference(x) - expected).max() < 0.02 * np.abs(expected).max()


def test_a_layer_that_ends_in_a_grid_differs_by_ties_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 8, 8)
    mapping = fq.get_default_qconfig_mapping("generic")
    custom = fq.PrepareCustomConfig().set_output_quantized_indexes([0])
    prepared = fq.prepare_fx(
        nn.Sequential(nn.Conv2d(3, 8, 3)).eval(), mapping, (x,), prepare_custom_config=custom, target="generic"
    )
    prepared(x)
    model = fq.convert_to_reference_fx(prepared)
    reference = fq.integer_reference(model)
    port = reference.program.outputs[0]
    steps = np.asarray(model(x)).astype(np.int64) - (reference(x) / float(port.scale[0])).round() - port.zero_point
    assert np.abs(steps).max() <= 1
    assert (steps != 0).mean() < 0.001


def test_integers_go_in_as_they_are(plain: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = plain
    reference = fq.integer_reference(model)
    scale = float(reference.program.inputs[0].scale[0])
    q = np.clip(np.rint(x.numpy() / scale), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(reference(q), reference(x))
    assert reference.tensors(q)["features.0.0" if "features.0.0" in reference.tensors(q) else "x_q"].ndim == 4
    with pytest.raises(fq.ConfigError, match="takes integers"):
        reference.run(x.numpy())
    with pytest.raises(fq.ConfigError, match="outside of its grid"):
        reference.run(np.full(x.shape, 300))
    with pytest.raises(fq.ConfigError, match="give each of these once"):
        reference(x, x)
