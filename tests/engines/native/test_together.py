"""Rows of a batch in pieces, each of a size that has code."""

from __future__ import annotations

import itertools

import torch

from fxquant.engines.native.together import together


def test_pieces_hold_every_row_once_and_few_more() -> None:
    for batch in range(4, 200):
        x = torch.randn(batch, 3)
        rows = together([x, 2.0], batch, False)
        assert rows is not None
        pieces = [piece.inputs[0] for piece in rows.pieces]
        assert all(isinstance(each, torch.Tensor) and each.shape[1] in (8, 16, 32, 64) for each in pieces)
        joined = torch.cat([each.flatten(0, 1) for each in pieces if isinstance(each, torch.Tensor)])
        assert torch.equal(joined[:batch], x) and not joined[batch:].any() and len(joined) <= batch + 8
        assert len(pieces) <= 4 and all(piece.inputs[1] == 2.0 for piece in rows.pieces)
        assert all(one.end == other.first for one, other in itertools.pairwise(rows.pieces))
        made = [each * 1 for each in pieces if isinstance(each, torch.Tensor)]
        out = rows.apart(made)
        assert isinstance(out, torch.Tensor) and torch.equal(out, x)
        nested = rows.apart([{"y": [each, 7]} for each in made])
        assert isinstance(nested, dict) and torch.equal(nested["y"][0], x) and nested["y"][1] == 7
