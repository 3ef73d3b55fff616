"""What a call does that leaves an argument out is what was looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from forge.defaults import of_defaults
from forge.files import File, forged, inputs, read, write, write_bases


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> File:
    folder = tmp_path_factory.mktemp("bases")
    write_bases(folder)
    return read(folder / "conv.fq")


@pytest.mark.parametrize("case", list(of_defaults()), ids=lambda case: case[0])
def test_defaults_of_a_file_are_refused_or_harmless(case: tuple[str, str, object], conv: File, tmp_path: Path) -> None:
    name, _, change = case
    write(forged(conv, change), tmp_path / "made.fq")  # type: ignore[arg-type]
    if "in place" in name:
        fq.load(tmp_path / "made.fq", engine="reference")(inputs("conv"))
        return
    with pytest.raises(fq.ArchiveError):
        fq.load(tmp_path / "made.fq", engine="reference")(inputs("conv"))


class Net(nn.Module):
    """Arguments with defaults of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(
        self, x: Tensor, scale: Any = 2.0, twice: bool = False, mode: str = "relu", more: Tensor | None = None
    ) -> Tensor:
        x = self.b(torch.relu(self.a(x)) if mode == "relu" else self.a(x)) * scale
        x = x if more is None else x + more
        return x * 2 if twice else x


@pytest.mark.parametrize(
    "rest",
    [(), (torch.tensor(3.0),), (torch.tensor(3.0), True), (2.0, True, "none"), (2.0, False, "relu", torch.ones(8))],
    ids=["none", "tensor", "flag", "text", "more"],
)
def test_models_with_defaults_are_saved_and_loaded(rest: tuple[object, ...], tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping("x86"), (x, *rest))
    prepared(x, *rest)
    model = fq.convert_fx(prepared, engine="reference")
    loaded = fq.load(fq.save(model, tmp_path / "model.fq"), engine="reference")
    assert torch.equal(loaded(x, *rest), model(x, *rest))
