"""Calls that are stored as another word of the language: models that have them are saved, and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq


class Net(nn.Module):
    def __init__(self, tail: Callable[[Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tail, self.a, self.b = tail, nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> object:
        return self.tail(self.b(self.a(x).relu()))


TAILS: dict[str, Callable[[Tensor], object]] = {
    "max": lambda y: (y.max(1).values, torch.max(y, 0).indices, y.max()),
    "others": lambda y: (y.topk(2).indices, torch.sort(y).values, y.aminmax().max, torch.linalg.qr(y).R),
    "svd": lambda y: torch.linalg.svd(y).S,
    "shifts": lambda y: (y.long() << 2, (y * 100).int() >> 1),
    "type": lambda y: (y.type(torch.int64), (y > 0).type(y.dtype), y.type(dtype=torch.float64)),
    "complex": lambda y: (torch.fft.fft(y) * 1j).real + torch.exp(complex(0.5, 2) * y).imag,
}


def converted(tail: Callable[[Tensor], object], x: Tensor) -> nn.Module:
    prepared = fq.prepare_fx(Net(tail).eval(), fq.get_default_qconfig_mapping("x86"), (x,), method="symbolic")
    prepared(x)
    return fq.convert_fx(prepared, engine="reference")


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_saves_and_loads(tail: Callable[[Tensor], object], tmp_path: Path) -> None:
    x = torch.randn(8, 8)
    model = converted(tail, x)
    loaded = fq.load(fq.save(model, tmp_path / "model.fq"), engine="reference")
    for given in (x, x * 2):
        pairs = zip(tree_leaves(model(given)), tree_leaves(loaded(given)), strict=True)
        assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    """Its size is read from values, which no file may do. A file that was there stays."""
    x = torch.randn(8, 8)
    path = fq.save(converted(TAILS["max"], x), tmp_path / "model.fq")
    before = path.read_bytes()
    model = converted(lambda y: nn.functional.one_hot(y.argmax(1)), x)
    with pytest.raises(fq.ArchiveError, match=r"cannot be saved, as no file of it could be loaded.*'one_hot'"):
        fq.save(model, path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
