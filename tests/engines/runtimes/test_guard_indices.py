"""Indices that are data: a runtime answers, or refuses, as the reference does, and reads nothing out of bounds."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.runtimes.regions import RegionRunner
from fxquant.graph.region import Region, lowering_of

pytest.importorskip("onnxscript")

IDS = torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
FIRST = {
    "vocabulary": 10,
    "negative": -1,
    "below": -11,
    "far": 10**9,
    "more than 32 bits": 2**32 + 1,
    "lowest": -(2**63),
    "zero": 0,
}


class Net(nn.Module):
    """What `read` gives by ids, and two products."""

    def __init__(self, read: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read = read
        self.embed, self.table = nn.Embedding(10, 8), nn.Parameter(torch.randn(10, 8))
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(self.read(self, ids))))


def rows(ids: Tensor) -> Tensor:
    return ids[:1].expand(8, 5).t()


READS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "embedding": lambda net, ids: net.embed(ids),
    "moved": lambda net, ids: F.embedding(ids.t().contiguous().int(), net.table),
    "index": lambda net, ids: net.table[ids],
    "index of two": lambda net, ids: net.table[ids, ids.clamp(0, 7)][..., None].expand(-1, -1, 8),
    "take": lambda net, ids: net.table.take(ids * 8)[..., None].expand(-1, -1, 8),
    "gather": lambda net, ids: net.table.gather(0, rows(ids)),
    "take_along_dim": lambda net, ids: torch.take_along_dim(net.table, rows(ids), 0),
    "scatter": lambda net, ids: torch.zeros(10, 8).scatter(0, rows(ids), net.table[:5]),
    "index_add": lambda net, ids: torch.zeros(10, 8).index_add(0, ids[0], net.table[:5]),
    "index_put": lambda net, ids: torch.index_put(net.table, (ids[0],), net.table[:5], True),
    "one_hot": lambda net, ids: F.one_hot(ids, 10).float() @ net.table,
    "bag": lambda net, ids: F.embedding_bag(ids, net.table, mode="sum"),
    "computed": lambda net, ids: net.embed(ids + 1 - 1),
    "floats": lambda net, ids: net.embed((ids.float() * 1.5).long()),
    "positions": lambda net, ids: net.embed(torch.cumsum((ids != 1).long(), 1)),
    "remainder": lambda net, ids: net.embed(ids % 7),
    "remainder by data": lambda net, ids: net.embed((7 % (ids + 0)).clamp(0, 9)),
    "quotient": lambda net, ids: net.embed(torch.div(ids, 3, rounding_mode="trunc").clamp(0, 9)),
    "rounded down": lambda net, ids: net.embed(torch.div(ids * 2**25, ids.clamp(min=2), rounding_mode="floor") % 9),
    "hashed": lambda net, ids: net.embed((ids * 1000000007 + 12345) % 10),
    "of samples": lambda net, ids: net.embed(ids)[torch.arange(ids.shape[0]), ids.argmax(-1)],
    "last": lambda net, ids: net.embed(ids)[:, -1],
}


def made(read: str, engine: str) -> tuple[nn.Module, nn.Module]:
    """(reference, on the engine)"""
    prepared = fq.prepare_fx(Net(READS[read]).eval(), fq.get_default_qconfig_mapping("x86"), (IDS,), target="x86")
    prepared(IDS)
    return fq.convert_fx(copy.deepcopy(prepared), engine="reference"), fq.convert_fx(prepared, engine=engine)


def outcome(model: nn.Module, ids: Tensor) -> Tensor | type[Exception]:
    try:
        with torch.no_grad():
            out: Tensor = model(ids)
            return out
    except Exception as error:
        return type(error)


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("read", READS)
def test_indices_out_of_bounds_do_as_in_the_reference(read: str, engine: str) -> None:
    pytest.importorskip(engine)
    if engine == "openvino" and read in ("hashed", "rounded down"):
        with pytest.raises(fq.FxQuantError, match="more bits than the runtime computes in"):
            made(read, engine)
        return
    reference, model = made(read, engine)
    for name, first in {"example": 1, **FIRST}.items():
        ids = IDS.clone()
        ids[0, 0] = first
        expected, found = outcome(reference, ids), outcome(model, ids)
        if isinstance(expected, Tensor) and isinstance(found, Tensor):
            torch.testing.assert_close(found, expected, atol=0.05 * float(expected.abs().max()), rtol=0)
        else:
            assert found is expected, name
    assert isinstance(model, Region)
    runner = lowering_of(model).runner
    assert isinstance(runner, RegionRunner) and runner.engine == engine  # and stays there


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_indices_of_an_input_cost_the_graph_nothing(engine: str) -> None:
    pytest.importorskip(engine)
    _, model = made("embedding", engine)
    assert isinstance(model, Region)
    runner = lowering_of(model).runner
    assert isinstance(runner, RegionRunner) and runner.runtime is not None
    assert runner.runtime.limits == ((0, 9),) and not runner.runtime.counted
    empty = outcome(model, IDS[:0])
    assert isinstance(empty, Tensor) and empty.shape == (0, 5, 4)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("size", [3, 8, 10**6])
def test_edges_that_are_cut_off_and_repeated_are_torchs(engine: str, size: int) -> None:
    """OpenVINO cut first, and wrote past the end of memory."""
    pytest.importorskip(engine)

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.pad(self.b(self.a(x)), [size, -size, 0, 0], mode="replicate")

    x = torch.randn(2, 3, 12, 12)
    prepared = fq.prepare_fx(Cut().eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    expected = fq.convert_fx(prepared, engine="reference")(x)
    with pytest.raises(fq.FxQuantError, match="Pad"):
        fq.convert_fx(prepared, engine=engine)
    assert expected.shape == (2, 4, 8, 8)


def test_indices_whose_dtype_the_export_does_not_say() -> None:
    """Bags of as many as there are samples, as in recommendation nets."""
    pytest.importorskip("openvino")

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.dense, self.out = nn.EmbeddingBag(10, 8, mode="sum"), nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
            made: Tensor = self.out(self.dense(x) + self.bag(ids, offsets))
            return made

    torch.manual_seed(0)
    batch = torch.randn(4, 6), torch.randint(0, 10, (12,)), torch.arange(0, 12, 3)
    reference, model = (fq.quantize(Bags().eval(), [batch], engine=engine) for engine in ("reference", "openvino"))
    reference.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(*batch), reference(*batch), atol=1e-3, rtol=0)
