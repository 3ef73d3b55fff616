"""Functions that an installed library wraps are looked into if they are given weights."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

LIBRARY = """
import torch
from torch.nn import functional as F

@torch.fx.wrap
def attend(x, qkv, proj):
    n, t, c = x.shape
    q, k, v = F.linear(x, qkv).reshape(n, t, 3, c).unbind(2)
    if t % 2:
        q = q * 2
    return F.linear(F.scaled_dot_product_attention(q, k, v), proj)

@torch.fx.wrap
def branch(x, weight):
    return F.linear(x, weight) if x.sum() > 0 else x
"""


@torch.fx.wrap
def our_attend(x: Tensor, qkv: Tensor, proj: Tensor) -> Tensor:
    q, k, v = F.linear(x, qkv).reshape(x.shape[0], -1, 3, x.shape[2]).unbind(2)
    return F.linear(F.scaled_dot_product_attention(q, k, v), proj)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "wrapping_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("wrapping_library")
    del sys.modules["wrapping_library"]


class Attention(nn.Module):
    def __init__(self, function: Any, outputs: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.qkv, self.proj, self.head = nn.Linear(8, outputs, False), nn.Linear(8, 8, False), nn.Linear(8, 2)


class Attends(Attention):
    def forward(self, x: Tensor) -> Tensor:
        import wrapping_library

        return self.head(wrapping_library.attend(x, self.qkv.weight, self.proj.weight))


class OwnWrap(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(our_attend(x, self.qkv.weight, self.proj.weight))


class Branches(Attention):
    def forward(self, x: Tensor) -> Tensor:
        import wrapping_library

        return self.head(wrapping_library.branch(x, self.proj.weight))


def quantize(model: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    x = torch.rand(2, 6, 8)
    quantized = fq.quantize(model.eval(), [x])
    assert sqnr_db(model(x), quantized(x)) > 25
    return quantized, {row.path: row.status for row in fq.explain(quantized) if row.is_weighted}


def test_a_function_of_a_library_is_looked_into(library: Any) -> None:
    quantized, found = quantize(Attends(library.attend))
    assert found == {"qkv": "int8", "proj": "int8", "head": "int8"}
    assert quantized(torch.randn(3, 8, 8)).shape == (3, 8, 2)  # what the code did not ask for stays free


def test_what_users_wrap_is_one_call() -> None:
    _, found = quantize(OwnWrap(our_attend))
    assert found == {"head": "int8"}


def test_what_does_not_trace_is_one_call(library: Any) -> None:
    _, found = quantize(Branches(library.branch))
    assert found == {"head": "int8"}
    assert "branch" in str([node.name for node in fq.fuse_fx(Branches(library.branch).eval()).graph.nodes])
