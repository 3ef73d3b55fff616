"""A detector whose wrapped `_post_process` branches on `self.training`: it trains, converts, predicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from zoo import conv_bn_relu


class Head(nn.Module):
    """Scores and boxes, shared by all levels."""

    def __init__(self, channels: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.tower = nn.Sequential(conv_bn_relu(channels, channels), conv_bn_relu(channels, channels))
        self.scores = nn.Conv2d(channels, classes, 3, padding=1)
        self.boxes = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        towers = [self.tower(level) for level in levels]
        return [self.scores(t) for t in towers], [self.boxes(t) for t in towers]


class RetinaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8, stride=2)
        self.down = conv_bn_relu(8, 8, stride=2)
        self.lateral = nn.Conv2d(8, 8, 1)
        self.head = Head()

    def forward(self, x: Tensor, targets: Tensor) -> Any:
        fine = self.stem(x)
        coarse = self.down(fine)
        levels = [self.lateral(fine) + F.interpolate(coarse, scale_factor=2.0), coarse]
        scores, boxes = self.head(levels)
        return self._post_process(scores, boxes, targets)

    @fq.wrap
    def _post_process(self, scores: list[Tensor], boxes: list[Tensor], targets: Tensor) -> Any:
        flat = torch.cat([s.flatten(2).transpose(1, 2) for s in scores], 1)
        where = torch.cat([b.flatten(2).transpose(1, 2) for b in boxes], 1)
        if self.training:
            wanted = F.one_hot(targets, flat.shape[-1]).float().unsqueeze(1).expand_as(flat)
            return {
                "classification": F.binary_cross_entropy_with_logits(flat, wanted),
                "regression": where.abs().mean(),
            }
        best, label = flat.sigmoid().max(-1)
        return [
            {"boxes": b[s > 0.5], "scores": s[s > 0.5], "labels": c[s > 0.5]}
            for b, s, c in zip(where, best, label, strict=True)
        ]


@pytest.mark.parametrize("learn", ["ste", "lsq", "tqt"])
def test_it_trains_converts_and_predicts_with_its_head_quantized(learn: str) -> None:
    qconfig = {
        "ste": fq.get_default_qat_qconfig("x86"),
        "lsq": fq.QConfig(
            activation=fq.Spec(signed=False, symmetric=False, learn="lsq"),
            weight=fq.Spec(granularity="per_channel", learn="lsq"),
        ),
        "tqt": fq.QConfig(activation=fq.Spec(learn="tqt"), weight=fq.Spec(learn="tqt")),
    }[learn]
    x, targets = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 0])
    prepared = fq.prepare_qat_fx(RetinaNet().train(), {"": qconfig}, (x, targets))
    quantized = {row.path for row in fq.explain(prepared) if row.status == "int8"}
    head = {"head.tower.0.0", "head.tower.1.0", "head.scores", "head.boxes"}
    assert head <= quantized
    optimizer = torch.optim.Adam(prepared.parameters(), 5e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        found = prepared(x, targets)
        assert set(found) == {"classification", "regression"}
        loss = sum(found.values())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    prepared.eval()
    # torch's int8 kernels take unsigned activations; the plain graph runs any grid
    converted = fq.convert_fx(prepared, engine="reference" if learn == "tqt" else "onednn")
    assert head <= {row.path for row in fq.explain(converted) if row.status == "int8"}
    with torch.no_grad():
        ours, theirs = converted(x, targets), prepared(x, targets)
    for mine, other in zip(ours, theirs, strict=True):
        assert set(mine) == {"boxes", "scores", "labels"}
        assert len(other["scores"]) > 0
        assert abs(len(mine["scores"]) - len(other["scores"])) <= 0.1 * len(other["scores"]) + 1
