"""What was trained or calibrated, `freeze`, the converted graph and its engines compute the same.

Measured in steps of an 8-bit grid over each output, at the element that differs most: 0.01 from the trained model to
the frozen one and to the QDQ graph, which are the same arithmetic, and 1 to oneDNN and to machine code. Machine code
looks smooth activations of large tensors up in tables: see tests/engines/native/test_words.py.

A form that is still open follows the engine, and engines ask for different ones: oneDNN for weights up to 64 on CPUs
without VNNI, runtimes for other groups on every CPU. So what is compared was frozen for one engine.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq
from fxquant.engines.table import as_engine
from fxquant.errors import ConfigError
from zoo import ZOO


class RepBlock(nn.Module):
    """Three branches that can be merged into one convolution after training, and a norm after their sum."""

    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout))
        self.narrow, self.alpha = nn.Conv2d(cin, cout, 1, stride), nn.Parameter(torch.ones(1))
        self.same = nn.Identity() if cin == cout and stride == 1 else None
        self.norm, self.act = nn.BatchNorm2d(cout), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        same = 0.0 if self.same is None else self.same(x)
        return self.act(self.norm(self.wide(x) + self.alpha * self.narrow(x) + same))


class ConvNorm(nn.Sequential):
    def __init__(self, cin: int, cout: int, kernel: int = 1, stride: int = 1) -> None:
        conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Pools(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = ConvNorm(channels, 8), ConvNorm(24, channels)
        self.pools = nn.ModuleList([nn.MaxPool2d(size, 1, size // 2) for size in (3, 5)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class YoloNas(nn.Module):
    """Its parts: merged branches, pooling pyramid, a neck with upsampling and concatenation, a head for all levels."""

    bins = 4

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fine, self.coarse = RepBlock(3, 8, 2), RepBlock(8, 8), RepBlock(8, 16, 2)
        self.pools, self.reduce, self.up = Pools(16), ConvNorm(16, 8), nn.Upsample(scale_factor=2.0)
        self.join, self.down, self.join_down = RepBlock(16, 16), ConvNorm(16, 8, 3, 2), RepBlock(16, 16)
        self.tower, self.scores, self.boxes = ConvNorm(16, 16, 3), nn.Conv2d(16, 3, 1), nn.Conv2d(16, 4 * self.bins, 1)
        self.register_buffer("projection", torch.arange(self.bins).float().reshape(1, -1, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(self.stem(x))
        coarse = self.reduce(self.pools(self.coarse(fine)))
        upper = self.join(torch.cat([self.up(coarse), fine], 1))
        lower = self.join_down(torch.cat([self.down(upper), coarse], 1))
        scores, boxes = [], []
        for level in (upper, lower):
            tower = self.tower(level)
            bins = self.boxes(tower).reshape(x.shape[0], 4, self.bins, -1).permute(0, 2, 3, 1)
            boxes.append(F.conv2d(F.softmax(bins, 1), self.projection).squeeze(1))
            scores.append(self.scores(tower).flatten(2))
        return torch.cat(scores, 2).sigmoid(), torch.cat(boxes, 1)


def call(model: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    with torch.no_grad():
        return [t for t in tree_leaves(model(*args, **kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]


def differ(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference of an element, in steps of an 8-bit grid over the range of its output."""
    return max(float((a - b).abs().max()) / step_of(b) for a, b in zip(ours, theirs, strict=True))


def step_of(output: Tensor) -> float:
    return float(output.max() - output.min()) / 255 or 1.0


def prepare(model: nn.Module, args: Any, kwargs: Any, training: bool) -> nn.Module:
    if not training:
        prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), args, example_kwargs=kwargs)
        call(prepared, args, kwargs)
        return prepared
    mapping = fq.get_default_qat_qconfig_mapping("x86")
    prepared = fq.prepare_qat_fx(model.train(), mapping, args, example_kwargs=kwargs)
    optimizer = torch.optim.SGD(prepared.parameters(), 1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        found = [t for t in tree_leaves(prepared(*args, **kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]
        sum((t - 1).square().mean() for t in found).backward()
        optimizer.step()
    return prepared.eval()


MODELS: dict[str, Any] = {**{name: entry.build for name, entry in ZOO.items()}, "yolo_nas": YoloNas}


@pytest.mark.broad
@pytest.mark.parametrize("training", [True, False], ids=["training", "calibration"])
@pytest.mark.parametrize("name", MODELS)
def test_stages_agree(name: str, training: bool) -> None:
    torch.manual_seed(0)
    args = ZOO[name].inputs() if name in ZOO else (torch.randn(2, 3, 32, 32),)
    kwargs = ZOO[name].kwargs() if name in ZOO else {}
    prepared = prepare(MODELS[name](), args, kwargs, training)
    fixed = fq.freeze(prepared)
    frozen = call(fixed, args, kwargs)
    if training:
        assert differ(call(prepared, args, kwargs), frozen) < 0.01
    assert differ(call(fq.convert_fx(prepared, engine="reference"), args, kwargs), frozen) < 0.01
    assert differ(call(fq.convert_fx(fixed, engine="onednn"), args, kwargs), frozen) < 1.0
    assert differ(call(fq.convert_fx(prepared), args, kwargs), frozen) < 1.0


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "onnxruntime", "openvino"])
@pytest.mark.parametrize("name", ["functional_conv", "vision_transformer"])
def test_what_is_frozen_for_an_engine_has_its_form(name: str, engine: str) -> None:
    """It is that of a model which was prepared for the engine's target, and of its own conversion."""
    torch.manual_seed(0)
    model, args = ZOO[name].build(), ZOO[name].inputs()
    prepared = prepare(model, args, {}, training=False)
    frozen = call(fq.freeze(prepared, engine=engine), args, {})
    aimed = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), args, target=as_engine(engine).target())
    call(aimed, args, {})
    assert differ(call(fq.convert_fx(aimed, engine="reference"), args, {}), frozen) < 0.01
    if engine == "onednn":
        assert differ(call(fq.convert_fx(prepared, engine=engine), args, {}), frozen) < 1.0


def test_an_engine_to_freeze_for_is_named() -> None:
    args = ZOO["functional_mlp"].inputs()
    prepared = prepare(ZOO["functional_mlp"].build(), args, {}, training=False)
    with pytest.raises(ConfigError, match="Name an engine"):
        fq.freeze(prepared, engine="auto")
    with pytest.raises(ConfigError, match="'onedn' is unknown"):
        fq.freeze(prepared, engine="onedn")
