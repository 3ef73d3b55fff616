"""Calls on parameters become stock modules, at the right path, with the same numbers and keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fxquant.capture import capture
from fxquant.capture.capture import Method
from fxquant.graph.region import Region

both = pytest.mark.parametrize("method", ["symbolic", "export"])


def modules(region: Region) -> list[tuple[str, type]]:
    calls = [node for node in region.graph.nodes if node.op == "call_module"]
    return [(str(node.target), type(region.get_submodule(str(node.target)))) for node in calls]


def functions(region: Region) -> list[str]:
    return [getattr(n.target, "__name__", str(n.target)) for n in region.graph.nodes if n.op == "call_function"]


class SameConv(nn.Conv2d):
    """Pads first, as timm's Conv2dSame does."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(x, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class NormAct(nn.BatchNorm2d):
    """A batch norm with an activation inside, as in timm."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.act = nn.ReLU(inplace=True)
        self.extra = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum,
            self.eps,
        )
        return self.act(x) * self.extra


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Subclasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = SameConv(3, 4, 3, stride=2)
        self.bn = NormAct(4)
        self.norm = ChannelNorm(4, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.bn(self.conv(x)))


@both
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_subclasses_become_stock_modules_with_the_same_keys(method: Method, mode: bool) -> None:
    model = Subclasses().train(mode)
    region = capture(model, (torch.randn(2, 3, 9, 9),), method=method)
    stateful = [entry for entry in modules(region) if entry[1] is not nn.ReLU]
    assert stateful == [("conv", nn.Conv2d), ("bn", nn.BatchNorm2d), ("norm", nn.LayerNorm)]
    assert list(region.state_dict()) == list(model.state_dict())
    conv: Any = region.get_submodule("conv")
    assert (conv.stride, conv.padding) == ((2, 2), (0, 0))
    assert region.get_submodule("norm").eps == 1e-3
    assert isinstance(region.get_submodule("bn.act"), nn.ReLU)


@both
def test_lifting_without_an_example_uses_the_class_of_the_module(method: Method) -> None:
    if method == "symbolic":
        region = capture(Subclasses().eval(), None, method=method)
        assert ("bn", nn.BatchNorm2d) in modules(region)


class Conv1D(nn.Module):
    """transformers' linear layer: addmm with the weight as [in, out]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.size()[:-1] + (6,)  # noqa: RUF005
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


@both
def test_addmm_becomes_a_linear_with_the_weight_transposed(method: Method) -> None:
    model = nn.Sequential(Conv1D())
    region = capture(model, (torch.randn(2, 3, 4),), method=method)
    assert ("0", nn.Linear) in modules(region)
    weight = region.get_parameter("0.weight")
    assert weight.shape == (6, 4)
    assert weight.data_ptr() == model[0].weight.data_ptr()
    assert list(region.state_dict()) == list(model.state_dict())


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3, 3, 3))
        self.b = nn.Parameter(torch.randn(3))
        self.slope = nn.Parameter(torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.w)
        x = F.conv2d(x, self.w, self.b, padding=1)
        x = F.conv2d(x, self.w, self.b, padding="same")
        x = F.conv2d(x, self.w, self.b, padding=1)
        return F.prelu(x, self.slope)


@both
def test_one_parameter_in_several_calls(method: Method) -> None:
    region = capture(Functional(), (torch.randn(2, 3, 8, 8),), method=method)
    paths = [path for path, cls in modules(region)]
    assert paths == ["w", "w_1", "w_2", "w_1", "slope"]
    assert region.get_parameter("w.weight") is region.get_parameter("w_1.weight")
    assert "b" not in region.state_dict()
    assert not {"conv2d", "prelu"} & set(functions(region))


class AlsoRead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w) * self.w.mean()


@both
def test_other_readers_of_a_lifted_parameter_follow_it(method: Method) -> None:
    region = capture(AlsoRead(), (torch.randn(2, 4),), method=method)
    assert list(region.state_dict()) == ["w.weight"]
    assert [node.target for node in region.graph.nodes if node.op == "get_attr"] == ["w.weight"]


class Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.weight / self.weight.norm()), y) + F.layer_norm(x, (4,))


@both
def test_computed_weights_and_ops_without_state_stay_functions(method: Method) -> None:
    region = capture(Computed(), (torch.randn(4, 4), torch.randn(4, 4)), method=method)
    assert modules(region) == []
    assert "weight" in region.state_dict()


class Tied(nn.Module):
    """The head reads the embedding's weight by a function call."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.embed(ids), self.embed.weight)


@both
def test_a_weight_that_belongs_to_another_op_is_shared(method: Method) -> None:
    region = capture(Tied(), (torch.randint(0, 10, (2, 3)),), method=method)
    assert modules(region) == [("embed", nn.Embedding), ("linear", nn.Linear)]
    assert region.get_parameter("linear.weight") is region.get_parameter("embed.weight")
    assert region.get_submodule("embed").padding_idx == 0


@pytest.mark.broad
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"), (2, 4, 8)),
        (nn.Conv2d(4, 4, 3, padding="same", dilation=2), (2, 4, 8, 8)),
        (nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1, groups=2), (2, 4, 8, 8)),
        (nn.BatchNorm2d(4, track_running_stats=False), (2, 4, 8, 8)),
        (nn.BatchNorm2d(4, affine=False), (2, 4, 8, 8)),
        (nn.BatchNorm1d(4), (2, 4, 8)),
        (nn.InstanceNorm2d(4), (2, 4, 8, 8)),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 8, 8)),
        (nn.LayerNorm(8, elementwise_affine=False), (2, 4, 8)),
        (nn.LayerNorm(8, bias=False), (2, 4, 8)),
        (nn.GroupNorm(2, 4), (2, 4, 8)),
        (nn.GroupNorm(2, 4, affine=False), (2, 4, 8)),
        (nn.PReLU(4), (2, 4, 8)),
        (nn.Dropout2d(0.3), (2, 4, 8, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_export_finds_the_stock_module_again(module: nn.Module, shape: tuple[int, ...], mode: bool) -> None:
    model = nn.Sequential(module).train(mode)
    region = capture(model, (torch.randn(shape),), method="export")
    assert modules(region) == [("0", type(module))]
    assert list(region.state_dict()) == list(model.state_dict())


class NormOnInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))
        self.register_buffer("mean", torch.rand(3))
        self.register_buffer("var", torch.rand(3) + 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(x, self.mean, self.var, self.scale, self.shift, self.training)
        return F.dropout1d(x, 0.2, self.training)


@both
def test_functions_on_an_input_know_its_rank(method: Method) -> None:
    region = capture(NormOnInput().eval(), (torch.randn(2, 3, 8),), method=method)
    assert [cls for _, cls in modules(region)] == [nn.BatchNorm1d, nn.Dropout1d]


class Dropouts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.3, self.training)
        x = F.dropout2d(x, 0.2, self.training, inplace=True)
        return F.dropout(x, 0.5, training=True)


@both
def test_dropout_that_follows_the_mode_is_a_module(method: Method) -> None:
    model = nn.Sequential(Dropouts()).eval()
    region = capture(model, (torch.randn(2, 3, 4, 4),), method=method)
    assert modules(region) == [("0.dropout", nn.Dropout), ("0.dropout_1", nn.Dropout2d)]
    assert any("dropout" in name for name in functions(region))  # the one that is always on


@both
def test_a_frozen_batch_norm_stays_frozen(method: Method) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).train()
    model[1].eval()
    region = capture(model, (torch.randn(2, 3, 4, 4),), method=method)
    assert modules(region)[1] == ("1", nn.BatchNorm2d)
    assert region.training
    assert not region.get_submodule("1").training


@both
def test_a_module_at_two_paths_stays_one(method: Method) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = SameConv(3, 3, 2)
            self.b = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    model = Twice()
    region = capture(model, (torch.randn(2, 3, 8, 8),), method=method)
    assert list(region.state_dict()) == list(model.state_dict())
    assert region.get_submodule("a") is region.get_submodule("b")
    assert len({path for path, _ in modules(region)}) == 1
