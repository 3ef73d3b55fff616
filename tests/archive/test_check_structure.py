"""Containers in a file: those of plain keys are stored, and none that would import something."""

from __future__ import annotations

import collections
import enum
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxquant as fq
from fxquant.archive.check_structure import is_plain


class Key(enum.Enum):
    ONE = 1


class TakesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": self.a(batch["x"]) + self.b(batch["y"])}


def test_a_model_that_takes_a_dict_is_saved(tmp_path: Path) -> None:
    data = [({"x": torch.randn(2, 8), "y": torch.randn(2, 8)},) for _ in range(2)]
    quantized = fq.quantize(TakesDict().eval(), data, effort="fast")
    loaded = fq.load(fq.save(quantized, tmp_path / "net.fq"))
    assert torch.equal(loaded(*data[0])["sum"], quantized(*data[0])["sum"])


@pytest.mark.parametrize(
    "value",
    [{"a": 1, 'q"\\': [2, (3,)]}, collections.OrderedDict(a=1), {1: 2}, [], 5, collections.deque([1], 4)],
    ids=repr,
)
def test_plain(value: object) -> None:
    assert is_plain(pytree.treespec_dumps(pytree.tree_structure(value)))


def dumped(kind: str, context: object) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


@pytest.mark.parametrize(
    "structure",
    [
        pytree.treespec_dumps(pytree.tree_structure({Key.ONE: 1})),
        pytree.treespec_dumps(pytree.tree_structure([collections.defaultdict(list, a=1)])),
        dumped("collections.defaultdict", "[]").replace("fault", "\\u0066ault"),
        dumped("builtins.list", '{"__enum__": true, "fqn": "os:system", "name": "x"}'),
        dumped("builtins.dict", '[{"__enum__": true}]'),
        dumped("builtins.dict", "os"),
        "[" * 100_000,
        "[1]",
        "{}",
        None,
    ],
)
def test_not_plain(structure: object) -> None:
    assert not is_plain(structure)
