"""Heads of other detectors: `python examples/detection_heads.py`. Random weights: it shows the flow, not a score.

dfl    as YOLO-NAS: each side of a box is a distribution over distances (DFL), a softmax and a sum with fixed numbers;
       all convolutions before it are int8
ssd    as SSD: an encoder that is no module caches its default boxes, and a function that `fq.wrap` leaves as written
       takes the best boxes of every picture
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from _command import options
from _yolox import intersection_over_union
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Backbone(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, width, 2), block(width, width, 2))
        self.fine, self.coarse = block(width, width, 2), block(width, 2 * width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(self.stem(x))
        return fine, self.coarse(fine)


class DflDetector(nn.Module):
    def __init__(self, width: int, classes: int = 4, bins: int = 16) -> None:
        super().__init__()
        self.backbone, self.bins, self.strides = Backbone(width), bins, (8, 16)
        self.towers = nn.ModuleList([block(width, width), block(2 * width, width)])
        self.distances = nn.ModuleList([nn.Conv2d(width, 4 * bins, 1) for _ in self.strides])
        self.scores = nn.ModuleList([nn.Conv2d(width, classes, 1) for _ in self.strides])
        self.register_buffer("project", torch.arange(bins, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(boxes in pixels, scores), one row a cell."""
        boxes, scores = [], []
        for level, features in enumerate(self.backbone(x)):
            features = self.towers[level](features)
            sides = self.distances[level](features).flatten(2).unflatten(1, (4, self.bins)).softmax(2)
            sides = (sides * self.project.reshape(1, 1, -1, 1)).sum(2) * self.strides[level]
            boxes.append(torch.cat((-sides[:, :2], sides[:, 2:]), 1))
            scores.append(self.scores[level](features).sigmoid().flatten(2))
        return torch.cat(boxes, 2).transpose(1, 2), torch.cat(scores, 2).transpose(1, 2)


class DefaultBoxes:
    """No module: it keeps its boxes on the device where it was last used."""

    def __init__(self, sizes: Sequence[int]) -> None:
        rows = []
        for size in sizes:
            centres = (torch.arange(size) + 0.5) / size
            y, x = torch.meshgrid(centres, centres, indexing="ij")
            rows.append(
                torch.stack((x, y, torch.full_like(x, 1 / size), torch.full_like(x, 1 / size)), -1).reshape(-1, 4)
            )
        self.rows = torch.cat(rows)

    def decode(self, offsets: Tensor) -> Tensor:
        self.rows = self.rows.to(offsets)
        centre = offsets[..., :2] * 0.1 * self.rows[:, 2:] + self.rows[:, :2]
        extent = (offsets[..., 2:] * 0.2).exp() * self.rows[:, 2:]
        return torch.cat((centre - extent / 2, centre + extent / 2), -1)


@fq.wrap
def best_boxes(boxes: Tensor, scores: Tensor, least: float = 0.25, most: int = 20) -> list[dict[str, Tensor]]:
    """As many as a picture has."""
    found = []
    for box, score in zip(boxes, scores, strict=True):
        value, label = score[:, 1:].max(1)
        order = value.argsort(descending=True)[: min(most, int((value > least).sum()))]
        found.append({"boxes": box[order], "scores": value[order], "labels": label[order] + 1})
    return found


class SsdDetector(nn.Module):
    def __init__(self, width: int, size: int, classes: int = 4) -> None:
        super().__init__()
        self.backbone, self.boxes = Backbone(width), DefaultBoxes((size // 8, size // 16))
        self.offsets, self.scores = (
            nn.ModuleList([nn.Conv2d(inputs, outputs, 3, padding=1) for inputs in (width, 2 * width)])
            for outputs in (4, classes)
        )

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        offsets, scores = [], []
        for level, features in enumerate(self.backbone(x)):
            offsets.append(self.offsets[level](features).flatten(2))
            scores.append(self.scores[level](features).flatten(2))
        boxes = self.boxes.decode(torch.cat(offsets, 2).transpose(1, 2))
        return best_boxes(boxes, F.softmax(torch.cat(scores, 2).transpose(1, 2), -1))


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments)
    torch.manual_seed(0)
    size, width = (64, 8) if args.quick else (160, 32)
    batches = [torch.rand(2, 3, size, size) for _ in range(4)]
    result = {}

    model: nn.Module = DflDetector(width).eval()
    quantized = fq.quantize(model, batches)
    (boxes, scores), (int8_boxes, int8_scores) = model(batches[0]), quantized(batches[0])
    result["dfl: pixels"] = float((boxes - int8_boxes).abs().mean())
    print(
        f"dfl: boxes differ by {result['dfl: pixels']:.1g} pixels, scores by {(scores - int8_scores).abs().mean():.1g}"
    )
    result["dfl: float convolutions"] = _float_convolutions(quantized)

    model = SsdDetector(width, size).eval()
    quantized = fq.quantize(model, batches, precision="int8")  # lists of boxes are not compared number by number
    result["ssd: float convolutions"] = _float_convolutions(quantized)
    result["ssd: boxes"] = _found_again(model(batches[0]), quantized(batches[0]))
    print(f"ssd: {100 * result['ssd: boxes']:.0f}% of the boxes found in float are found in int8")
    return result


def _found_again(wanted: list[dict[str, Tensor]], found: list[dict[str, Tensor]]) -> float:
    """The share of boxes that have one of their class beside them, at an overlap of half or more."""
    hits = []
    for one, other in zip(wanted, found, strict=True):
        overlap = intersection_over_union(one["boxes"], other["boxes"])
        hits.append(((overlap >= 0.5) & (one["labels"][:, None] == other["labels"])).any(1))
    return float(torch.cat(hits).float().mean())


def _float_convolutions(model: nn.Module) -> int:
    rows = [row for row in fq.explain(model) if row.kind == "conv2d"]
    print(f"     {sum(row.status == 'int8' for row in rows)} of {len(rows)} convolutions are int8")
    return sum(row.status != "int8" for row in rows)


if __name__ == "__main__":
    main()
