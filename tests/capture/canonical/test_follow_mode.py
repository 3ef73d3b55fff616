"""Exported programs, made to follow `train()` and `eval()`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn

import fxquant as fq
from fxquant.capture.canonical.as_plain import as_plain


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm2d(3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))


def program() -> nn.Module:
    return torch.export.export(Net().eval(), (torch.rand(2, 3, 4, 4),)).module()


def kinds(model: nn.Module) -> set[type]:
    assert isinstance(model, fx.GraphModule)
    calls = [node for node in model.graph.nodes if node.op == "call_module"]
    return {type(model.get_submodule(str(node.target))) for node in calls} & {nn.BatchNorm2d, nn.Dropout}


def test_norms_and_dropouts_follow_the_mode_and_the_program_stays_as_it_was() -> None:
    given, x = program(), torch.rand(2, 3, 4, 4)
    wanted, code = given(x), given.code
    plain = as_plain(given, "test", training=False)
    assert kinds(plain) == {nn.BatchNorm2d, nn.Dropout}
    assert torch.equal(plain(x), wanted)
    assert torch.equal(given(x), wanted)
    assert torch.equal(copy.deepcopy(plain)(x), wanted)
    assert (plain.train()(x) == 0).any()
    assert given.code == code
    assert given.state_dict().keys() == plain.state_dict().keys()


def test_a_program_for_training_follows_the_mode_too() -> None:
    """It counted its batches, and normalized by them, in prepare_fx as well: the user's statistics moved."""
    model, x = Net(), torch.rand(2, 3, 4, 4)
    given = torch.export.export(model.train(), (x,)).module()
    plain = as_plain(given, "test", training=False)
    assert kinds(plain) == {nn.BatchNorm2d, nn.Dropout}
    assert torch.equal(plain(x), model.eval()(x))
    assert model.norm.num_batches_tracked == 0
    plain.train()(x)
    assert model.norm.num_batches_tracked == 1  # by the module, once


def test_what_was_frozen_in_a_program_for_training_stays_so() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.free = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.free(self.frozen(x))

    model, x = Two().train(), torch.rand(2, 3, 4, 4)
    model.frozen.eval()
    plain = as_plain(torch.export.export(model, (x,)).module(), "test", training=True)
    assert torch.equal(plain.train()(x), model(x))
    assert model.frozen.num_batches_tracked == 0
    assert torch.equal(plain.eval()(x), model.eval()(x))


def test_a_program_for_training_is_quantized_as_its_model() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        torch.rand(2, 3, 8, 8),
    )
    given = torch.export.export(model.train(), (x,)).module()
    before = copy.deepcopy(model.state_dict())
    of_program, of_model = (fq.quantize(each, [x], engine="reference") for each in (given, copy.deepcopy(model).eval()))
    assert torch.equal(of_program(x), of_model(x))
    prepared = fq.prepare_qat_fx(given, fq.get_default_qat_qconfig_mapping(), (x,))
    assert sum(row.status == "int8" for row in fq.explain(prepared)) == 3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
