"""Batch norms are folded where it is right, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import InputError
from fxquant.numerics.weights.fold_norm import BatchNorm
from zoo import ZOO


def randomize(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return model.eval()


PAIRS = {
    "conv1d": (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (2, 4, 9, 9)),
    "conv2d_groups": (nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8), (2, 4, 9, 9)),
    "conv3d": (nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3), (1, 2, 5, 5, 5)),
    "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6), (2, 4, 9)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (2, 4, 5, 5)),
    "conv_transpose2d_groups": (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (2, 4, 5, 5)),
    "conv_transpose3d": (nn.ConvTranspose3d(2, 4, 2, groups=2), nn.BatchNorm3d(4), (1, 2, 3, 3, 3)),
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), (5, 4)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_folding_keeps_the_outputs(pair: str) -> None:
    op, norm, shape = PAIRS[pair]
    model = randomize(nn.Sequential(op, norm))
    x = torch.randn(shape)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    assert isinstance(prepared.get_submodule("1"), nn.Identity)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pair", [name for name in PAIRS if name != "linear"])
def test_fuse_fx_folds_without_examples(pair: str) -> None:
    op, norm, shape = PAIRS[pair]
    model = randomize(nn.Sequential(op, norm))
    fused = fq.fuse_fx(model)
    x = torch.randn(shape)
    assert isinstance(fused.get_submodule("1"), nn.Identity)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert isinstance(model[1], nn.modules.batchnorm._BatchNorm), "the user's model was changed"


class Branches(nn.Module):
    """A conv whose output has another user, before or after the batch norm."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.conv, self.bn, self.before = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), before

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.before:
            z = y.abs()
            return self.bn(y) + z
        z = self.bn(y)
        return z + y.abs()


class Twice(nn.Module):
    """One conv with two batch norms, or one batch norm after two convs."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv2d(3, 3, 1)])
        self.bn = nn.ModuleList([nn.BatchNorm2d(3)])
        (self.bn if shared == "conv" else self.conv).append(
            nn.BatchNorm2d(3) if shared == "conv" else nn.Conv2d(3, 3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            x = self.bn[min(i, len(self.bn) - 1)](self.conv[min(i, len(self.conv) - 1)](x))
        return x


class TiedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bn = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.bn(self.a(x)))


class LinearOnSequences(nn.Module):
    """BatchNorm1d after a linear on (n, c, l) normalizes axis 1, not the features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bn = nn.Linear(5, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.linear(x))


KEPT = {
    "user_before": (lambda: Branches(True), (2, 3, 4, 4)),
    "user_after": (lambda: Branches(False), (2, 3, 4, 4)),
    "shared_conv": (lambda: Twice("conv"), (2, 3, 4, 4)),
    "shared_norm": (lambda: Twice("bn"), (2, 3, 4, 4)),
    "tied_weight": (TiedWeight, (2, 3, 4, 4)),
    "linear_3d": (LinearOnSequences, (2, 5, 5)),
    "no_running_stats": (
        lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
        (2, 3, 4, 4),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_would_be_wrong_is_not_folded(name: str) -> None:
    make, shape = KEPT[name]
    model = make().eval()
    if name != "no_running_stats":
        randomize(model)
    x = torch.randn(shape)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    assert any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in prepared.modules())
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)


def test_none_rule_stops_fusion() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    mapping = fq.get_default_qconfig_mapping().set_module_name("0", None)
    prepared = fq.prepare_fx(model, mapping, (torch.randn(1, 3, 4, 4),))
    assert isinstance(prepared.get_submodule("1"), nn.BatchNorm2d)
    assert isinstance(prepared.get_submodule("3"), nn.Identity)


def test_fusing_in_train_mode_is_an_error() -> None:
    with pytest.raises(fq.StageError, match="eval mode"):
        fq.fuse_fx(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).train())


def test_fused_weights_compare_with_quantized_ones_by_name() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    fused = fq.fuse_fx(model)
    quantized = fq.quantize(fused, [torch.randn(2, 3, 8, 8)], engine="reference", effort="fast")  # to the nearest
    weight, scale = quantized.get_buffer("0.0.weight"), quantized.get_parameter("0.0.weight_scale")
    error = (weight * scale.reshape(-1, 1, 1, 1) - fused.get_parameter("0.0.weight")).abs()
    assert (error <= scale.reshape(-1, 1, 1, 1) / 2 + 1e-7).all()


def test_half_precision_is_folded_in_high_precision() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).to(torch.bfloat16)
    fused = fq.fuse_fx(model)
    assert fused.get_parameter("0.weight").dtype == torch.bfloat16


class NormAndActivation(nn.BatchNorm2d):
    """A norm that holds the activation after it, as some libraries write them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


def test_a_folded_norm_keeps_its_children() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(3, 4, 1), NormAndActivation(4), nn.Conv2d(4, 4, 1)))
    x = torch.randn(2, 3, 4, 4)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    assert isinstance(prepared.get_submodule("1"), nn.Identity)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in ZOO if any(isinstance(m, BatchNorm) for m in ZOO[name].build().modules())]
)
def test_fuse_fx_folds_what_prepare_fx_folds(name: str) -> None:
    entry = ZOO[name]
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    fused = fq.fuse_fx(model)
    mapping = fq.get_default_qconfig_mapping("x86")
    prepared = fq.prepare_fx(model, mapping, args, example_kwargs=kwargs)
    kept = [{path for path, m in each.named_modules() if isinstance(m, BatchNorm)} for each in (fused, prepared)]
    assert kept[0] == kept[1]


def test_fuse_leaves_the_norm_of_another_axis() -> None:
    model, x = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(4)).eval(), torch.randn(2, 4, 8)
    fused = fq.fuse_fx(model)
    assert isinstance(fused.get_submodule("1"), nn.BatchNorm1d) and torch.equal(fused(x), model(x))


def test_a_fused_linear_refuses_inputs_that_its_batch_norm_would_read_otherwise() -> None:
    model = ZOO["linear_batch_norm"].build()
    fused = fq.fuse_fx(model)
    assert isinstance(fused.bn, nn.Identity)
    torch.testing.assert_close(fused(*ZOO["linear_batch_norm"].inputs()), model(*ZOO["linear_batch_norm"].inputs()))
    with pytest.raises(InputError, match="depends on"):
        fused(torch.randn(2, 32, 16))
