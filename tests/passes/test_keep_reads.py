"""What else reads the tensors of ops gets them in float, whatever quantization does to the op's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.compat import float16_dynamic_qconfig

MAPPINGS = {
    "int8": fq.get_default_qconfig_mapping("x86"),
    "int4": fq.QConfigMapping().set_global(fq.int4_weight_only_qconfig),
    "float16": fq.QConfigMapping().set_global(float16_dynamic_qconfig),
}


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
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_they_are_read_in_float(mapping: str, method: str) -> None:
    torch.manual_seed(0)
    model, i = Tied().eval(), torch.randint(0, 20, (2, 5))
    expected = model(i)
    prepared = fq.calibrate(fq.prepare_fx(model, MAPPINGS[mapping], (i,), method=method), [i])
    quantized = fq.convert_fx(prepared)
    found = quantized(i)
    assert all(torch.equal(a, b) for a, b in zip(found[2:], expected[2:], strict=True))
    assert all((a - b).norm() < 0.3 * b.norm() for a, b in zip(found[:2], expected[:2], strict=True))
    fresh = fq.convert_fx(fq.prepare_fx(Tied().eval(), MAPPINGS[mapping], (i,), method=method))
    fresh.load_state_dict(quantized.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(fresh(i), found, strict=True))


def test_they_train_with_the_op() -> None:
    torch.manual_seed(0)
    model, i = Tied().train(), torch.randint(0, 20, (2, 5))
    trained = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (i,))
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        sum(y.square().mean() for y in trained(i)).backward()
        optimizer.step()
    expected, quantized = trained.eval()(i), fq.convert_fx(copy.deepcopy(trained))
    assert not torch.equal(expected[2], model(i)[2])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(quantized(i), expected, strict=True))


@pytest.mark.parametrize("training", [False, True], ids=["ptq", "qat"])
def test_of_folded_norms(training: bool) -> None:
    torch.manual_seed(0)
    model, x = Normed().train(training), torch.randn(2, 3, 4, 4)
    model.norm.running_mean.normal_()
    if training:
        prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (x,))
        prepared(x)
    else:
        prepared = fq.calibrate(fq.prepare_fx(model, MAPPINGS["int8"], (x,)), [x])
        assert torch.equal(fq.fuse_fx(model)(x)[1], model.conv.weight)
    expected = prepared.eval()(x)
    found = fq.convert_fx(prepared)(x)
    assert all(torch.equal(a, b) for a, b in zip(found[1:], expected[1:], strict=True))
    assert (found[0] - expected[0]).norm() < 0.1 * expected[0].norm()
