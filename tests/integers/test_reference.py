"""What the integer reference refuses, notes and keeps apart; its dump as a file that others read."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn

import fxquant as fq
from fxquant.integers.arithmetic import divide, keep_mantissa
from fxquant.integers.scales import nearest
from zoo import ZOO


def converted(model: nn.Module, x: torch.Tensor, target: str) -> nn.Module:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(target), (x,), target=target)
    with torch.no_grad():
        prepared(x)
    return fq.convert_to_reference_fx(prepared)


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    return converted(ZOO["plain"].build(), x, "npu"), x


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


def test_the_dump_is_what_docs_say(plain: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    model, x = plain
    folder = fq.dump_integers(model, tmp_path / "a" / "dump")
    found = json.loads((folder / "program.json").read_text())
    constants = load_file(folder / found["constants"]["file"])
    convs = [step for step in found["steps"] if step["op"] in ("conv", "linear")]
    assert len(convs) == 3
    for step in convs:
        assert constants[step["constants"]["weight"]].dtype == np.int8
        assert constants[step["constants"]["bias"]].dtype == np.int32
    assert found["exact"] is True
    assert Fraction(found["inputs"][0]["scale"][0]) == Fraction(1, 2 ** found["inputs"][0]["position"][0])
    np.testing.assert_array_equal(fq.integer_reference(folder)(x), model(x).detach().numpy())


def test_a_second_dump_takes_the_place_of_the_first(plain: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    folder = fq.dump_integers(plain[0], tmp_path)
    (folder / "mine.txt").write_text("kept")
    x = torch.randn(2, 3, 16, 16)
    other = converted(ZOO["plain"].build(), x, "xint8")
    fq.dump_integers(other, folder)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors", ".txt"]
    np.testing.assert_array_equal(fq.integer_reference(folder)(x), other(x).detach().numpy())


@pytest.mark.parametrize("scale", ["1e999999999", "1/0", "-1", "x", 5])
def test_a_dump_with_a_scale_that_is_none_is_refused(
    plain: tuple[nn.Module, torch.Tensor], tmp_path: Path, scale: object
) -> None:
    model, x = plain
    fq.dump_integers(model, tmp_path, x)
    found = json.loads((tmp_path / "program.json").read_text())
    found["inputs"][0]["scale"] = [scale]
    (tmp_path / "program.json").write_text(json.dumps(found))
    with pytest.raises(fq.ArchiveError, match="not a dump"):
        fq.integer_reference(tmp_path)


def test_a_dump_that_is_damaged_is_refused(plain: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    folder = fq.dump_integers(plain[0], tmp_path)
    data = next(folder.glob("*.safetensors"))
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    with pytest.raises(fq.ArchiveError, match="constants are not those"):
        fq.integer_reference(folder)
    (folder / "program.json").write_text("{}")
    with pytest.raises(fq.ArchiveError, match="not a dump"):
        fq.integer_reference(folder)
    with pytest.raises(fq.ArchiveError, match="cannot read"):
        fq.integer_reference(tmp_path / "none")


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


def test_what_has_no_integer_form_is_named_with_its_line() -> None:
    x = torch.randn(2, 8, 16)
    model = converted(nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1), nn.Linear(16, 4)), x, "generic")
    with pytest.raises(fq.ConfigError, match=r"no integer steps for aten\.softmax"):
        fq.integer_reference(model)
    with pytest.raises(fq.StageError, match="converted"):
        fq.integer_reference(nn.Linear(2, 2))


def test_sums_that_float32_cannot_count_are_noted() -> None:
    x = torch.randn(4, 8192)
    model = converted(nn.Sequential(nn.Linear(8192, 4)), x, "npu")
    assert any("beyond the 2^24" in note for note in fq.integer_reference(model).notes)


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**20))
def test_rounded_division(value: int, divisor: int) -> None:
    exact = Fraction(value, divisor)
    values, divisors = np.array([value]), np.array([divisor])
    assert divide(values, divisors, "half_even")[0] == round(exact)
    assert divide(values, divisors, "half_up")[0] == (exact + Fraction(1, 2)) // 1
    assert divide(values, divisors, "floor")[0] == exact // 1


@given(st.integers(-(2**52), 2**52))
def test_what_float32_keeps(value: int) -> None:
    assert keep_mantissa(np.array([value]))[0] == int(np.float32(value))


@given(st.fractions(Fraction(1, 2**20), 2**10))
def test_multipliers_have_31_bits(ratio: Fraction) -> None:
    multiplier, shift = nearest(ratio)
    assert 2**30 <= multiplier < 2**31
    assert abs(multiplier - ratio * Fraction(2) ** shift) <= Fraction(1, 2)
