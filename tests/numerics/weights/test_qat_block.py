"""`QatBlock`: the batch norm taken in, names kept, and the converted arithmetic in eval mode."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.config.spec import Spec
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant

EXACT = Spec(bits=16, granularity="per_channel", observer="minmax", learn="ste")  # rounds next to nothing
COARSE = Spec(bits=3, granularity="per_channel", observer="minmax", learn="ste")

Case = tuple[Callable[[], nn.Module], Callable[[], nn.Module], Callable[[], Tensor], int]
CASES: dict[str, Case] = {
    "conv": (lambda: nn.Conv2d(3, 4, 3, bias=False), lambda: nn.BatchNorm2d(4), lambda: torch.randn(8, 3, 6, 6), 0),
    "conv with bias": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        lambda: nn.BatchNorm2d(4),
        lambda: torch.randn(8, 3, 6, 6),
        0,
    ),
    "grouped": (lambda: nn.Conv1d(4, 4, 3, groups=2), lambda: nn.BatchNorm1d(4), lambda: torch.randn(8, 4, 9), 0),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
        lambda: nn.BatchNorm2d(6),
        lambda: torch.randn(8, 4, 5, 5),
        1,
    ),
    "linear": (lambda: nn.Linear(5, 4), lambda: nn.BatchNorm1d(4), lambda: torch.randn(8, 5), 0),
    "no affine": (
        lambda: nn.Conv2d(3, 4, 1),
        lambda: nn.BatchNorm2d(4, affine=False),
        lambda: torch.randn(8, 3, 6, 6),
        0,
    ),
}
cases = pytest.mark.parametrize("name", CASES)


def build(name: str, spec: Spec) -> tuple[nn.Module, nn.Module, QatBlock, Tensor]:
    make_op, make_norm, make_x, axis = CASES[name]
    op, norm = make_op(), make_norm()
    with torch.no_grad():
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
    spec = spec.with_(axis=axis)
    return op, norm, QatBlock(op, WeightFakeQuant(spec, "w", op.weight.shape), norm), make_x()


@cases
def test_without_rounding_it_trains_as_the_two_modules_do(name: str) -> None:
    op, norm, block, x = build(name, EXACT)
    twin = copy.deepcopy(nn.Sequential(op, norm))
    g = torch.randn_like(twin(x))
    twin = copy.deepcopy(nn.Sequential(op, norm))
    y, expected = block(x), twin(x)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_var, twin[1].running_var, rtol=1e-3, atol=1e-3)
    y.backward(g), expected.backward(g)
    ours = [*op.parameters(), *norm.parameters()]
    for mine, theirs in zip(ours, twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-2)


@cases
def test_training_rounds_the_weight_as_folded_with_running_statistics(name: str) -> None:
    op, norm, block, x = build(name, COARSE)
    gain = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight.detach())
    shape = [1] * op.weight.dim()
    if isinstance(op, nn.ConvTranspose2d):
        factor = gain.reshape(2, 1, 3).expand(2, 2, 3).reshape(4, 3, 1, 1)
    else:
        shape[0] = -1
        factor = gain.reshape(shape)
    expected = copy.deepcopy(op)
    expected.weight.data = block.weight_fq(op.weight * factor).detach() / factor
    torch.testing.assert_close(block(x), copy.deepcopy(norm)(expected(x)), rtol=1e-4, atol=1e-4)


@cases
def test_eval_mode_is_the_op_on_the_stored_integers(name: str) -> None:
    _, norm, block, x = build(name, COARSE)
    norm.eval(), block.eval()
    y = block(x)
    block.merge_norm()
    q, scale, _ = block.weight_fq.quantize(block.weight)
    plain = block.plain()
    axis = block.weight_fq.spec.axis
    plain.weight.data = q.float() * scale.reshape([-1 if d == axis else 1 for d in range(q.dim())])
    assert torch.equal(block(x), y)
    torch.testing.assert_close(plain(x), y)


def test_a_gamma_of_zero_trains() -> None:
    _, norm, block, x = build("conv", COARSE)
    with torch.no_grad():
        norm.weight.zero_()
    block(x).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in (*block.parameters(), *norm.parameters()))


@cases
def test_it_looks_like_the_op_and_copies_with_its_norm(name: str) -> None:
    op, norm, block, x = build(name, COARSE)
    assert isinstance(block, type(op)) and block.weight is op.weight
    assert set(block.state_dict()) == set(op.state_dict())
    model = nn.ModuleDict({"norm": norm, "op": block}).eval()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin["op"].norm is twin["norm"] and twin["norm"] is not norm
        assert torch.equal(twin["op"](x), block(x))


def test_an_embedding_and_a_transposed_conv_with_an_output_size() -> None:
    embedding = nn.Embedding(9, 4, padding_idx=0)
    block = QatBlock(embedding, WeightFakeQuant(COARSE, "w", embedding.weight.shape))
    ids = torch.tensor([[0, 3], [5, 8]])
    assert torch.equal(block(ids), F.embedding(ids, block.weight_fq(embedding.weight)))
    op = nn.ConvTranspose2d(2, 2, 3, stride=2)
    block = QatBlock(op, WeightFakeQuant(EXACT.with_(axis=1), "w", op.weight.shape))
    x = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(block(x, [10, 10]), op(x, [10, 10]), rtol=1e-3, atol=1e-3)


def test_autocast_runs_the_op_in_half_precision_on_rounded_float_weights() -> None:
    _, _, block, x = build("conv", COARSE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    y.float().sum().backward()
    assert torch.isfinite(block.weight.grad).all()
