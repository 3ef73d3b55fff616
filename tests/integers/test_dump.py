"""Programs as files."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import fxquant as fq
from integers.converted import converted
from zoo import ZOO


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
