"""Models whose code branches on `self.training`: both branches work in training, and eval's after conversion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import CaptureError
from fxquant.graph.region import Region
from zoo import conv_bn_relu

MAPPING = fq.get_default_qat_qconfig_mapping("x86")


class DropPath(nn.Module):
    """Drops whole rows, in training only."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.bernoulli(torch.full((x.shape[0], 1, 1, 1), 0.5))


class Stochastic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = conv_bn_relu(3, 4), DropPath(), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.drop(x))


class Detector(nn.Module):
    """As torchvision writes its own: losses from (images, targets) in training, a list of dicts in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 8))
        self.scores, self.boxes = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 4, 1)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        if self.training and targets is None:
            raise ValueError("targets are needed in training")
        features = self.backbone(torch.stack(images))
        scores, boxes = self.scores(features).flatten(2), self.boxes(features).flatten(2)
        if self.training:
            assert targets is not None
            found = [(score, box, target) for score, box, target in zip(scores, boxes, targets, strict=True)]
            losses = [F.cross_entropy(score.t(), target["labels"].expand(score.shape[1])) for score, _, target in found]
            return {"scores": torch.stack(losses).mean(), "boxes": boxes.abs().mean()}
        return [{"boxes": box.t(), "labels": score.argmax(0)} for score, box in zip(scores, boxes, strict=True)]


def batch(count: int, size: int = 8) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    images = [torch.randn(3, size, size) for _ in range(count)]
    return images, [{"labels": torch.tensor([index % 3])} for index in range(count)]


def test_what_is_dropped_in_training_is_kept_in_eval_mode() -> None:
    x = torch.randn(8, 3, 8, 8)
    model = Stochastic().train()
    prepared = fq.prepare_qat_fx(model, MAPPING, (x,))
    assert isinstance(prepared, Region)
    assert fq.explain(prepared).int8_share == 1.0
    torch.manual_seed(0)
    assert not torch.equal(prepared(x), prepared(x))
    prepared.eval()
    ours = prepared(x).detach()
    assert torch.equal(prepared(x), ours)
    converted = fq.convert_fx(prepared, engine="reference")
    assert torch.allclose(converted(x), ours, atol=0.05 * float(ours.abs().max()))
    assert isinstance(converted, Region)
    assert not any("drop" in node.name for node in converted.graph.nodes)  # nothing stands between conv and add


class Switch(nn.Module):
    """Another layer in each mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.train_only, self.eval_only = DropPath(), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.train_only(x) if self.training else self.eval_only(x))


def test_one_graph_that_was_asked_for_is_refused_with_the_class_that_branches() -> None:
    with pytest.raises(CaptureError, match=r"Switch branches on self\.training"):
        fq.prepare_qat_fx(Switch().train(), MAPPING, (torch.randn(2, 3, 8, 8),), method="symbolic")


@pytest.mark.parametrize("with_targets", [True, False])
def test_a_detector_trains_on_targets_and_predicts_without(with_targets: bool) -> None:
    images, targets = batch(2)
    prepared = fq.prepare_qat_fx(Detector().train(), MAPPING, (images, targets) if with_targets else (images,))
    assert fq.explain(prepared).int8_share == 1.0
    optimizer = torch.optim.SGD(prepared.parameters(), 0.05)
    history = []
    for count in (2, 3, 2, 4, 2, 2):
        losses = prepared(*batch(count))
        loss = losses["scores"] + losses["boxes"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert all(parameter.grad is not None for parameter in prepared.parameters())
    prepared.eval()
    images, _ = batch(3, size=12)
    ours = prepared(images)
    converted = fq.convert_fx(prepared)(images)
    assert len(converted) == 3
    for one, other in zip(converted, ours, strict=True):
        assert torch.allclose(one["boxes"], other["boxes"], atol=0.03 * float(other["boxes"].detach().abs().max()))
