"""Programs that are kept on disk: they are not read again, and anything that reading depends on is another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region, lowering_of

pytest.importorskip("llvmlite")

from fxquant.engines.native import make_program
from fxquant.engines.native.cache import Cache
from fxquant.engines.native.runner import NativeRunner


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(20, 20, 3, stride=2, groups=20)
        self.act, self.head = nn.LeakyReLU(0.2), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.b(self.act(self.a(x)))
        return {"y": self.head(y.mean((2, 3))), "x": y}


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def prepared(x: Tensor) -> nn.Module:
    torch.manual_seed(0)
    made = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    made(x)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each graph that was read."""
    seen: list[int] = []
    read = make_program.read

    def count(*args: Any) -> Any:
        seen.append(1)
        return read(*args)

    monkeypatch.setattr(make_program, "read", count)
    return seen


def make(prepared: nn.Module, place: Path, reads: list[int]) -> nn.Module:
    reads.clear()
    return fq.convert_fx(prepared, engine=fq.Native(cache=place))


def test_a_program_is_read_once(prepared: nn.Module, x: Tensor, tmp_path: Path, reads: list[int]) -> None:
    first = make(prepared, tmp_path, reads)
    assert reads
    again = make(prepared, tmp_path, reads)
    assert not reads
    with torch.no_grad():
        for batch in (1, 3):
            one, other = first(x.repeat(batch, 1, 1, 1)), again(x.repeat(batch, 1, 1, 1))
            assert all(torch.equal(one[key], other[key]) and one[key].stride() == other[key].stride() for key in one)
        assert len(fq.profile(again, x).rows) == len(fq.profile(first, x).rows)


@pytest.mark.parametrize("what", ["weight", "setting", "grid", "size", "layout", "torch"])
def test_what_reading_depends_on(
    prepared: nn.Module, x: Tensor, tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    model = make(prepared, tmp_path, reads)
    reads.clear()
    if what == "weight":
        model.a.weight[0, 0, 0, 0] += 1
    elif what == "setting":
        model.act.negative_slope = 0.1
        lowering_of(model).runner.renew()  # type: ignore[arg-type,union-attr]
    elif what == "grid":
        next(each for each in model.modules() if type(each).__name__ == "Grid").scale.mul_(2)
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "3.0")
        lowering_of(model).runner.renew()  # type: ignore[arg-type,union-attr]
    given = (
        x.repeat(1, 1, 2, 1) if what == "size" else x.to(memory_format=torch.channels_last) if what == "layout" else x
    )
    with torch.no_grad():
        model(given)
    assert reads


def test_entries_that_do_not_fit_are_not_used(prepared: nn.Module, x: Tensor, tmp_path: Path, reads: list[int]) -> None:
    model = make(prepared, tmp_path, reads)
    assert isinstance(model, Region) and isinstance(lowering_of(model).runner, NativeRunner)
    cache = Cache(tmp_path)
    found = {path.name: cache.load(path.name) for path in tmp_path.iterdir()}
    (name,) = (name for name, each in found.items() if each is not None and b'"imports"' in each[:4096])
    whole = found[name]
    assert whole is not None
    line, _, constants = whole.partition(b"\n")
    with torch.no_grad():
        expected = model(x)
    for change in ({"levels": 3}, {"sizes": {}}, {"imports": [[9] * 6]}, {"results": [[0, "no"]]}, {"code": "0" * 64}):
        cache.store(name, json.dumps({**json.loads(line), **change}).encode() + b"\n" + constants)
        again = make(prepared, tmp_path, reads)
        assert reads
        with torch.no_grad():
            assert torch.equal(again(x)["y"], expected["y"])
    for bad in (b"", b"[]", b"{}\n", b"[" * 100_000):
        cache.store(name, bad)
        make(prepared, tmp_path, reads)
        assert reads
