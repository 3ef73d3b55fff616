"""fuse_fx puts a relu beside the op in front of it, where code that was written for torch.ao looks for the two."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A relu that is called twice, one that is a function, and one whose input goes elsewhere too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.conv2, self.conv3, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.ReLU()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.conv2(x))
        y = self.conv3(x)
        return F.relu(self.fc((self.last(y) + y).mean([2, 3])))


def test_the_tutorials_comparison_of_weights_runs_as_written() -> None:
    model = Net().eval()
    prepared = fq.prepare_fx(model, {"": fq.get_default_qconfig("x86")}, (X,))
    prepared(X)
    quantized = fq.convert_fx(prepared, engine="reference")
    fused = fq.fuse_fx(model)
    after_fuse = fused.conv1[0].weight[0]
    after_quant = quantized.conv1.weight().dequantize()[0]
    assert torch.max(abs(after_fuse - after_quant)) < 0.02
    assert torch.equal(fused.conv1.weight, fused.conv1[0].weight)
    assert torch.equal(fused.conv1.bias, fused.conv1[0].bias)


def test_which_relus_join() -> None:
    model = Net().eval()
    fused = fq.fuse_fx(model)
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-5)
    assert [len(part) for part in (fused.conv1, fused.conv2, fused.fc)] == [2, 2, 2]
    assert isinstance(fused.conv3, nn.Conv2d)
    assert isinstance(fused.relu, nn.Identity), "its two calls are those of conv1 and conv2 now"
    assert isinstance(fused.last, nn.ReLU)
    assert isinstance(model.relu, nn.ReLU), "the user's model was changed"


def test_hooks_of_a_relu_go_on_being_called() -> None:
    model = Net().eval()
    seen: list[float] = []
    model.relu.register_forward_hook(lambda module, args, output: seen.append(float(output.sum())))
    fq.fuse_fx(model)(X)
    assert len(seen) == 2


def test_a_fused_model_is_quantized_like_the_float_one() -> None:
    model = Net().eval()
    rules = fq.get_default_qconfig_mapping().set_module_name("conv2", None)
    outputs = []
    for source in (model, fq.fuse_fx(model)):
        prepared = fq.prepare_fx(source, rules, (X,))
        prepared(X)
        quantized = fq.convert_fx(prepared, engine="reference")
        outputs.append(quantized(X))
        assert [row.status for row in fq.explain(quantized) if row.is_weighted] == ["int8", "float", "int8", "int8"]
    assert torch.equal(*outputs)
    assert quantized.conv1.weight().int_repr().dtype == torch.int8
