"""How biases are stored."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from zoo import ZOO


def _quantized(model: nn.Module, target: str, spread: float = 1.0) -> nn.Module:
    """`spread`: how far apart the channels of depthwise inputs are, which decides whether each has a scale."""
    x = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        for path, module in model.named_modules():
            if path.endswith("expand.1") and isinstance(module, nn.BatchNorm2d):
                assert module.weight is not None
                module.weight.mul_(torch.logspace(0, -spread, len(module.weight)))
    return fq.quantize(model, [x], target=target, engine="reference", precision="int8")


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["alike", "apart"])
def test_depthwise_convolutions_have_int32_biases_as_all_others(target: str, spread: float) -> None:
    """As the file has them: with float ones here, one value in a thousand was a step off there."""
    quantized = _quantized(ZOO["mobilenet"].build().eval(), target, spread)
    kept = quantized.state_dict()
    biases = {name: kept[name] for name in kept if name.endswith(".bias")}
    assert biases and {bias.dtype for bias in biases.values()} == {torch.int32}
    for name in biases:
        assert kept[f"{name}_scale"].shape == biases[name].shape


def test_a_sum_over_channels_with_scales_of_their_own_keeps_its_bias() -> None:
    by_channel = fq.Spec(granularity="per_channel", axis=1, observer="minmax")
    qconfig = fq.QConfig(activation=fq.Spec(), input=by_channel, weight=fq.Spec(), bias="int32")
    model = nn.Sequential(nn.Conv2d(3, 3, 1)).eval()
    x = torch.randn(4, 3, 8, 8)
    quantized = fq.quantize(model, [x], qconfig_mapping=qconfig, engine="reference", precision="int8")
    assert all(value.dtype != torch.int32 for name, value in quantized.state_dict().items() if name.endswith("bias"))
