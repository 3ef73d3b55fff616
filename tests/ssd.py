"""A detector in the form of the SSD-ResNet34 that Neural Compressor's FX guide quantizes.

The encoder is a plain object that caches its default boxes on the inputs' device, and the decoding of each picture is a
function that `torch.fx.wrap` leaves as written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Encoder:
    def __init__(self, sizes: tuple[int, ...]) -> None:
        boxes = []
        for size in sizes:
            centers = (torch.arange(size) + 0.5) / size
            y, x = torch.meshgrid(centers, centers, indexing="ij")
            for scale in (1.0, 2.0):
                side = torch.full_like(x, scale / size)
                boxes.append(torch.stack((x, y, side, side), -1).reshape(-1, 4))
        self.dboxes = torch.cat(boxes)
        self.scale_xy, self.scale_wh = 0.1, 0.2

    def scale_back_batch(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        self.dboxes = self.dboxes.to(boxes)
        boxes = boxes.permute(0, 2, 1)
        scores = scores.permute(0, 2, 1)
        xy = boxes[:, :, :2] * self.scale_xy * self.dboxes[:, 2:] + self.dboxes[:, :2]
        wh = (boxes[:, :, 2:] * self.scale_wh).exp() * self.dboxes[:, 2:]
        return torch.cat((xy - 0.5 * wh, xy + 0.5 * wh), -1), F.softmax(scores, dim=-1)


def decode_single(boxes: Tensor, probabilities: Tensor, criteria: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    found: list[Tensor] = []
    labels: list[Tensor] = []
    scores: list[Tensor] = []
    for label, score in enumerate(probabilities.split(1, 1)):
        if label == 0:
            continue
        score = score.squeeze(1)
        mask = score > criteria
        if not mask.any():
            continue
        found.append(boxes[mask])
        scores.append(score[mask])
        labels.append(torch.full((int(mask.sum()),), label))
    if not found:
        return torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0)
    all_scores = torch.cat(scores)
    order = all_scores.argsort(descending=True)[:most]
    return torch.cat(found)[order], torch.cat(labels)[order], all_scores[order]


@torch.fx.wrap
def bboxes_labels_scores(bboxes: Tensor, probs: Tensor, criteria: float = 0.45, max_output: int = 200) -> list[Any]:
    boxes, labels, scores = [], [], []
    for bbox, prob in zip(bboxes.split(1, 0), probs.split(1, 0), strict=True):
        box, label, score = decode_single(bbox.squeeze(0), prob.squeeze(0), criteria, max_output)
        boxes.append(box)
        labels.append(label)
        scores.append(score)
    return [boxes, labels, scores]


class Ssd(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.extra = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(inplace=True))
        self.loc = nn.ModuleList((nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)))
        self.conf = nn.ModuleList(nn.Conv2d(c, 2 * classes, 3, padding=1) for c in (8, 16))
        self.encoder = Encoder((8, 4))

    def bbox_view(self, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
        locs, confs = [], []
        for source, loc, conf in zip(sources, self.loc, self.conf, strict=True):
            locs.append(loc(source).view(source.size(0), 4, -1))
            confs.append(conf(source).view(source.size(0), self.classes, -1))
        return torch.cat(locs, 2).contiguous(), torch.cat(confs, 2).contiguous()

    def forward(self, x: Tensor) -> Any:
        first = self.stem(x)
        locs, confs = self.bbox_view([first, self.extra(first)])
        bboxes, probs = self.encoder.scale_back_batch(locs, confs)
        return bboxes_labels_scores(bboxes, probs)


def detect(model: nn.Module, x: Tensor) -> int:
    """How many boxes the model finds in a batch."""
    with torch.no_grad():
        return sum(len(boxes) for boxes in model(x)[0])
