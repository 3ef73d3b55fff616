"""What the integer reference refuses, notes and keeps apart; its dump as a file that others read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.integers.steps import SIZED
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


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        (nn.Conv2d(3, 4, 3), nn.AvgPool2d(3, 2, 1), nn.Conv2d(4, 2, 1)),
        (nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 1)),
        (nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)),
        (nn.ConvTranspose2d(3, 4, 2, 2), nn.Conv2d(4, 2, 1)),
        (nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 2, 1)),
    ],
    ids=["global pool", "average pool", "resize", "max pool", "transposed", "depthwise"],
)
def test_other_sizes_give_the_bits_of_the_simulation_or_an_error(layers: tuple[nn.Module, ...], tmp_path: Path) -> None:
    """Windows of the example's sizes were summed on larger pictures, and channels beyond the weight's were left out."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 12)
    model = fq.quantize(nn.Sequential(*layers).eval(), [x], target="xint8", engine="reference", algorithms=())
    sizes = {(5, 3, 12, 12): True, (2, 3, 20, 12): None, (2, 4, 12, 12): False, (2, 6, 12, 12): False}
    written = fq.integer_reference(model)
    read = fq.integer_reference(fq.dump_integers(model, tmp_path / "dump"))
    for reference, (size, same) in itertools.product((written, read), sizes.items()):
        other = torch.randn(*size)
        if same or (same is None and not any(step.op in SIZED for step in reference.program.steps)):
            np.testing.assert_array_equal(reference(other), model(other).detach().numpy())
        else:
            with pytest.raises(fq.FxQuantError, match=r"in the example|its weight takes 3 channels"):
                reference(other)


def test_nan_is_what_the_simulation_makes_of_it() -> None:
    x = torch.randn(2, 6)
    model = fq.quantize(nn.Sequential(nn.Linear(6, 4)).eval(), [x], target="xint8", engine="reference", algorithms=())
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    np.testing.assert_array_equal(fq.integer_reference(model)(x), model(x).detach().numpy())


@pytest.mark.parametrize(
    "head",
    [
        lambda sums: sums.mean((2, 3)),
        lambda sums: sums.mean((1, 2)),
        lambda sums: nn.functional.adaptive_avg_pool2d(sums, 1).flatten(1),
        lambda sums: nn.functional.avg_pool2d(sums.relu(), 2),
        lambda sums: nn.functional.interpolate(sums, size=(20, 20), mode="bilinear"),
        lambda sums: nn.functional.interpolate(sums, scale_factor=2.0),
    ],
    ids=["mean", "mean of channels", "global pool", "average pool", "bilinear", "nearest"],
)
def test_sums_with_a_scale_for_each_channel_are_averaged_and_resized(head: Callable[[Tensor], Tensor]) -> None:
    """As at the end of classifiers and of nets for segmentation, whose output is not rounded."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return head(self.last(torch.relu(self.body(x))))

    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 12)
    model = converted(Net(), x, "generic")
    with torch.no_grad():
        expected = model(x).numpy()
    np.testing.assert_allclose(fq.integer_reference(model)(x), expected, atol=0.01 * np.abs(expected).max())
