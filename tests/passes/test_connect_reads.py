"""Code that reads what a module holds, beside the call of the module: in float, prepared, frozen and in integers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.compat import float16_dynamic_qconfig
from fxquant.engines.table import available_engines
from fxquant.numerics.affine import sqnr_db

READS: dict[str, Callable[[Net], Tensor]] = {
    "product": lambda m: m.kept @ m.embed.weight.t(),
    "distance": lambda m: torch.cdist(m.kept, m.embed.weight.unsqueeze(0)),
    "row": lambda m: m.kept + m.embed.weight[3],
    "weight": lambda m: m.kept * m.first.weight.abs().mean((1, 2)),
    "bias": lambda m: m.kept * m.first.bias,
    "mean": lambda m: m.kept * m.norm.running_mean * m.norm.weight,
    "recurrent": lambda m: m.kept * m.rnn.weight_hh_l0.mean(),
}


class Net(nn.Module):
    """Every tensor that is read belongs to a module that some pass or algorithm would like to change."""

    kept: Tensor

    def __init__(self, read: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.first, self.norm, self.last = nn.Conv1d(8, 8, 1), nn.BatchNorm1d(8), nn.Conv1d(8, 8, 1)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.read = read
        with torch.no_grad():
            self.first.weight.mul_(torch.logspace(-2, 1, 8).view(-1, 1, 1))
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.1, 4)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids).transpose(1, 2)
        x = self.last(torch.relu(self.norm(self.first(x)))).transpose(1, 2)
        y = self.rnn(x)[0]
        view = _View(self, x)
        return y, READS[self.read](view)


class _View:
    def __init__(self, net: Net, kept: Tensor) -> None:
        self.kept = kept
        self.embed, self.first, self.norm, self.rnn = net.embed, net.first, net.norm, net.rnn


QCONFIGS = {
    "static": fq.get_default_qconfig_mapping("x86"),
    "int4": fq.int4_weight_only_qconfig,
    "float16": float16_dynamic_qconfig,
}


def made(read: str) -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net(read).eval(), torch.randint(0, 32, (4, 6))


def closest(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> float:
    assert [each.dtype for each in ours] == [each.dtype for each in theirs]
    return min(sqnr_db(b.detach(), a.detach()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("qconfig", QCONFIGS)
@pytest.mark.parametrize("read", READS)
def test_reads_get_values(read: str, qconfig: str, tmp_path: Path) -> None:
    net, ids = made(read)
    prepared = fq.prepare_fx(net, QCONFIGS[qconfig], (ids,))
    torch.testing.assert_close(prepared(ids), net(ids), rtol=0, atol=1e-5)
    quantized = fq.convert_fx(prepared, engine="reference")
    assert closest(quantized(ids), net(ids)) > (10 if qconfig == "int4" else 25)
    assert closest(fq.freeze(prepared, engine="reference")(ids), quantized(ids)) > 60
    fq.save(quantized, tmp_path / "net.fq")
    assert all(map(torch.equal, fq.load(tmp_path / "net.fq", engine="reference")(ids), quantized(ids)))


@pytest.mark.broad
@pytest.mark.parametrize("engine", [engine.name for engine in available_engines()])
@pytest.mark.parametrize("read", READS)
def test_engines_agree(read: str, engine: str) -> None:
    net, ids = made(read)
    prepared = fq.prepare_fx(net, QCONFIGS["static"], (ids,))
    prepared(ids)
    assert closest(fq.convert_fx(prepared, engine=engine)(ids), net(ids)) > 25


@pytest.mark.parametrize("read", READS)
def test_quantize_leaves_what_is_read(read: str) -> None:
    """Equalization, smoothing and corrections change tensors that nothing else reads."""
    net, ids = made(read)
    quantized = fq.quantize(net, [ids, ids.flip(0)], engine="reference")
    assert closest(quantized(ids), net(ids)) > 25


@pytest.mark.parametrize("read", READS)
def test_training(read: str) -> None:
    net, ids = made(read)
    prepared = fq.prepare_qat_fx(net.train(), fq.get_default_qat_qconfig_mapping("x86"), (ids,))
    for _ in range(3):
        sum(each.square().mean() for each in prepared(ids)).backward()
    prepared.eval()
    converted = fq.convert_fx(prepared, engine="reference")
    assert closest(fq.freeze(prepared, engine="reference")(ids), converted(ids)) > 60
    assert sqnr_db(prepared(ids)[1].detach(), converted(ids)[1]) > 20


def test_fuse_leaves_what_is_read() -> None:
    net, ids = made("mean")
    fused = fq.fuse_fx(net)
    torch.testing.assert_close(fused(ids), net(ids))


def test_a_table_that_is_read_is_stored_as_integers() -> None:
    """A head that multiplies with the table of the embedding costs no second copy of it."""
    net, ids = made("product")
    quantized = fq.convert_fx(fq.calibrate(fq.prepare_fx(net, QCONFIGS["static"], (ids,)), [ids]))
    assert quantized.state_dict()["embed.weight"].dtype in (torch.int8, torch.uint8)
    assert not any(value.shape == (32, 8) and value.is_floating_point() for value in quantized.state_dict().values())
    assert F.cosine_similarity(quantized(ids)[1].flatten(), net(ids)[1].flatten(), 0) > 0.99


class Tied(nn.Module):
    """A decoder on the table of the embedding, and a penalty on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.bare = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Parameter(torch.randn(5, 8))

    def forward(self, i: Tensor) -> tuple[Tensor, ...]:
        h = F.linear(self.body(self.table(i)), self.bare)
        penalty = (self.body.weight @ self.body.weight.t()).square().sum()
        return h, h @ self.bare @ self.table.weight.t(), penalty, self.body.bias * 2


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.norm(self.conv(x)), self.conv.weight * 1, self.norm.weight + 1, self.norm.running_mean * 1


@pytest.mark.parametrize("method", ["auto", "export", "piecewise"])
@pytest.mark.parametrize("mapping", QCONFIGS)
def test_they_are_read_as_values(mapping: str, method: str) -> None:
    torch.manual_seed(0)
    model, i = Tied().eval(), torch.randint(0, 20, (2, 5))
    expected = model(i)
    prepared = fq.calibrate(fq.prepare_fx(model, QCONFIGS[mapping], (i,), method=method), [i])
    quantized = fq.convert_fx(prepared)
    found = quantized(i)
    assert torch.equal(found[3], expected[3])
    assert all((a - b).norm() < 0.3 * b.norm() for a, b in zip(found[:3], expected[:3], strict=True))
    fresh = fq.convert_fx(fq.prepare_fx(Tied().eval(), QCONFIGS[mapping], (i,), method=method))
    fresh.load_state_dict(quantized.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(fresh(i), found, strict=True))


def test_they_train_with_the_op() -> None:
    torch.manual_seed(0)
    model, i = Tied().train(), torch.randint(0, 20, (2, 5))
    trained = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (i,))
    optimizer = torch.optim.SGD(trained.parameters(), 1e-5)
    for _ in range(3):
        optimizer.zero_grad()
        sum(y.square().mean() for y in trained(i)).backward()
        optimizer.step()
    expected, quantized = trained.eval()(i), fq.convert_fx(copy.deepcopy(trained))
    assert not torch.equal(expected[2], model(i)[2])
    assert closest(quantized(i)[2:], expected[2:]) > 25


@pytest.mark.parametrize("training", [False, True], ids=["ptq", "qat"])
def test_of_folded_norms(training: bool) -> None:
    torch.manual_seed(0)
    model, x = Normed().train(training), torch.randn(2, 3, 4, 4)
    model.norm.running_mean.normal_()
    if training:
        prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (x,))
        prepared(x)
    else:
        prepared = fq.calibrate(fq.prepare_fx(model, QCONFIGS["static"], (x,)), [x])
        assert torch.equal(fq.fuse_fx(model)(x)[1], model.conv.weight)
    expected = prepared.eval()(x)
    found = fq.convert_fx(prepared)(x)
    assert all(torch.equal(a, b) for a, b in zip(found[2:], expected[2:], strict=True))
    assert closest(found[1:2], expected[1:2]) > 25
    assert (found[0] - expected[0]).norm() < 0.1 * expected[0].norm()
