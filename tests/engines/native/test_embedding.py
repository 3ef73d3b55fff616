"""Embeddings in machine code: rows by ids, and ids that have no row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.affine import sqnr_db
from one_segment import check_one_segment

pytest.importorskip("llvmlite")

from fxquant.engines.native import shot
from fxquant.engines.native.runner import NativeRunner


class Text(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(16, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1]))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("width", [20, 33])
def test_rows_of_integers(width: int) -> None:
    check_one_segment(Text(width), torch.randint(0, 50, (2, 7)))
    check_one_segment(Text(width), torch.randint(0, 50, (2, 7), dtype=torch.int32))


def test_rows_of_floats_and_no_product() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Parameter(torch.randn(30, 5)), nn.Linear(5, 5)

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            first, second = (nn.functional.embedding(each, self.table) for each in (ids, ids[:, 0] + 1))
            return self.out(self.out(first * 2).relu()), self.out(second)

    check_one_segment(Plain(), torch.randint(0, 20, (2, 3)), outside=2)
    check_one_segment(nn.Sequential(nn.Embedding(50, 18)), torch.randint(0, 50, (2, 7)))


@pytest.mark.parametrize("warm", [0, 4])
def test_ids_without_a_row_raise_as_in_torch(warm: int) -> None:
    ids = torch.randint(0, 50, (2, 7))
    prepared = fq.prepare_fx(Text(20).eval(), fq.get_default_qconfig_mapping("x86"), (ids,))
    prepared(ids)
    reference, native = (fq.convert_fx(prepared, engine=each) for each in ("reference", fq.Native(cache=None)))
    assert isinstance(native, Region)
    runner = lowering_of(native).runner
    assert isinstance(runner, NativeRunner)
    with torch.no_grad():
        for _ in range(warm):
            native(ids)
        assert all(isinstance(each, shot.Shot) for each in runner.again._shots.values())
        for wrong in (ids + 50, ids - 60, torch.full_like(ids, 2**40), torch.where(ids == ids[0, 3], 50, ids)):
            with pytest.raises(IndexError, match="out of range"):
                native(wrong)
            assert sqnr_db(reference(ids), native(ids)) > 40


def test_changed_tables_are_seen() -> None:
    ids = torch.randint(0, 50, (2, 7))
    model = fq.quantize(nn.Sequential(nn.Embedding(50, 18)).eval(), [ids], engine="native")
    with torch.no_grad():
        before = [model(ids) for _ in range(4)][-1]
        model[0].weight_scale.mul_(2)
        assert torch.equal(model(ids), 2 * before)
        model.load_state_dict({name: value.roll(1, 0) for name, value in model.state_dict().items()})
        assert torch.equal(model(ids), 2 * model(ids) - model(ids)) and not torch.equal(model(ids), 2 * before)
