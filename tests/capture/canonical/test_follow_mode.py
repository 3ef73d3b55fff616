"""Programs that were exported in eval mode, made to follow `train()`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn

from fxquant.capture.canonical.as_plain import as_plain


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm2d(3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))


def program(training: bool) -> nn.Module:
    return torch.export.export(Net().train(training), (torch.rand(2, 3, 4, 4),)).module()


def kinds(model: nn.Module) -> set[type]:
    assert isinstance(model, fx.GraphModule)
    calls = [node for node in model.graph.nodes if node.op == "call_module"]
    return {type(model.get_submodule(str(node.target))) for node in calls} & {nn.BatchNorm2d, nn.Dropout}


def test_norms_and_dropouts_follow_the_mode_and_the_program_stays_as_it_was() -> None:
    given, x = program(False), torch.rand(2, 3, 4, 4)
    wanted, code = given(x), given.code
    plain = as_plain(given, "test", training=False)
    assert kinds(plain) == {nn.BatchNorm2d, nn.Dropout}
    assert torch.equal(plain(x), wanted)
    assert torch.equal(given(x), wanted)
    assert torch.equal(copy.deepcopy(plain)(x), wanted)
    assert (plain.train()(x) == 0).any()
    assert given.code == code
    assert given.state_dict().keys() == plain.state_dict().keys()


def test_a_program_for_training_is_left_as_it_is() -> None:
    assert not kinds(as_plain(program(True), "test", training=True))
