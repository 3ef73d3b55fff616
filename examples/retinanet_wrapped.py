"""A detector whose wrapped `_post_process` branches on `self.training`: `python examples/retinanet_wrapped.py`.

In train mode it returns losses, in eval mode a list of boxes of any length. Neither traces, and neither has to:
`fq.wrap` leaves the method as it is written, as one call in the graph. All convolutions before it are quantized, the
head, which all levels share, included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from _command import options
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Head(nn.Module):
    """Scores and boxes, with the same weights on all levels."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.tower = nn.Sequential(block(width, width), block(width, width))
        self.scores, self.boxes = nn.Conv2d(width, classes, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        towers = [self.tower(level) for level in levels]
        return [self.scores(tower) for tower in towers], [self.boxes(tower) for tower in towers]


class RetinaNet(nn.Module):
    def __init__(self, width: int = 16, classes: int = 2) -> None:
        super().__init__()
        self.stem, self.fine, self.coarse = block(3, width, 2), block(width, width, 2), block(width, width, 2)
        self.lateral = nn.Conv2d(width, width, 1)
        self.head = Head(width, classes)

    def forward(self, images: Tensor, targets: Tensor) -> Any:
        fine = self.fine(self.stem(images))
        coarse = self.coarse(fine)
        levels = [self.lateral(fine) + F.interpolate(coarse, scale_factor=2.0), coarse]
        return self._post_process(*self.head(levels), targets)

    @fq.wrap
    def _post_process(self, scores: list[Tensor], boxes: list[Tensor], targets: Tensor) -> Any:
        """`targets`: one row a picture, class, x0, y0, x1, y1, from 0 to 1."""
        score = torch.cat([level.flatten(2) for level in scores], 2).transpose(1, 2)
        box = torch.cat([level.flatten(2) for level in boxes], 2).transpose(1, 2).sigmoid()
        if self.training:
            cells = torch.cat([centres(level) for level in boxes])
            inside = (cells > targets[:, None, 1:3]).all(-1) & (cells < targets[:, None, 3:]).all(-1)
            wanted = F.one_hot(targets[:, 0].long(), score.shape[-1]).float().unsqueeze(1) * inside.unsqueeze(-1)
            error = (box - targets[:, None, 1:]).abs().sum(-1)
            return {
                "classification": F.binary_cross_entropy_with_logits(score, wanted, pos_weight=torch.tensor(8.0)),
                "regression": (error * inside).sum() / inside.sum().clamp_min(1),
            }
        best, label = score.sigmoid().max(-1)
        return [
            {"boxes": b[s > 0.5], "scores": s[s > 0.5], "labels": c[s > 0.5]}
            for b, s, c in zip(box, best, label, strict=True)
        ]


def centres(level: Tensor) -> Tensor:
    """Of the cells of a map, (x, y) from 0 to 1."""
    height, width = level.shape[-2:]
    y, x = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
    return torch.stack((x, y), -1).reshape(-1, 2)


def squares(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures with a bright or a dark square on noise, and where it is."""
    images = torch.rand(count, 3, size, size, generator=generator)
    targets = torch.zeros(count, 5)
    for index in range(count):
        side, x, y, kind = (
            int(torch.randint(low, high, (), generator=generator))
            for low, high in ((size // 3, size // 2), (0, size // 2), (0, size // 2), (0, 2))
        )
        images[index, :, y : y + side, x : x + side] = 3.0 * kind - 1.0
        targets[index] = torch.tensor([kind, x / size, y / size, (x + side) / size, (y + side) / size])
    return images, targets


@torch.no_grad()
def hits(model: nn.Module, images: Tensor, targets: Tensor) -> float:
    """The share of pictures whose best box has the right class and lies within 0.1 of the right one."""
    found = model(images, targets)
    good = 0
    for boxes, target in zip(found, targets, strict=True):
        if len(boxes["scores"]):
            best = int(boxes["scores"].argmax())
            near = float((boxes["boxes"][best] - target[1:]).abs().max()) < 0.1
            good += near and int(boxes["labels"][best]) == int(target[0])
    return good / len(targets)


def train(model: nn.Module, steps: int, lr: float, size: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        sum(model(*squares(16, size, generator)).values()).backward()
        optimizer.step()
    model.eval()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments)
    torch.manual_seed(0)
    size = 32 if args.quick else 48
    model = RetinaNet(8 if args.quick else 16)
    train(model, 5 if args.quick else 200, 5e-3, size)
    test = squares(64, size, torch.Generator().manual_seed(1))
    example = tuple(part[:2] for part in test)

    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), example)
    fq.calibrate(prepared, [squares(16, size, torch.Generator().manual_seed(2))])
    post = fq.convert_fx(prepared)

    training = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping("x86"), example)
    train(training, 2 if args.quick else 30, 1e-3, size)
    trained = fq.convert_fx(training)

    models = {"float": model.eval(), "PTQ": post, "QAT": trained}
    result = {name: hits(each, *test) for name, each in models.items()}
    head = [row for row in fq.explain(trained) if row.path.startswith("head.") and row.kind == "conv2d"]
    result["int8 convolutions in the head"] = sum(row.status == "int8" for row in head)
    print(f"{result['int8 convolutions in the head']} of {len(head)} convolutions in the head are int8")
    print("right boxes: " + ", ".join(f"{name} {100 * result[name]:.0f}%" for name in models))
    return result


if __name__ == "__main__":
    main()
