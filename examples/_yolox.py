"""YOLOX-Nano (arXiv 2107.08430) with its batch norms folded, and what belongs to its outputs.

In train mode it gives the raw maps of its three levels, which is what a loss wants; in eval mode one row a cell, with
scores between 0 and 1. What depends on the mode is in a module without weights, so that all others are in one graph.
Boxes are decoded outside of the model: exp and a grid of cells are nothing for int8.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 416
STRIDES = (8, 16, 32)


class ConvSilu(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


class Separable(nn.Module):
    """A depthwise 3x3 and a pointwise convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.depth = ConvSilu(inputs, inputs, 3, stride, groups=inputs)
        self.point = ConvSilu(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(self.depth(x))


class Bottleneck(nn.Module):
    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.one, self.two = ConvSilu(width, width), Separable(width, width)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x))
        return x + y if self.shortcut else y


class Csp(nn.Module):
    """Two halves, one of them through bottlenecks, joined again."""

    def __init__(self, inputs: int, outputs: int, blocks: int = 1, shortcut: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.left, self.right, self.out = ConvSilu(inputs, half), ConvSilu(inputs, half), ConvSilu(outputs, outputs)
        self.blocks = nn.Sequential(*[Bottleneck(half, shortcut) for _ in range(blocks)])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat((self.blocks(self.left(x)), self.right(x)), 1))


class Pyramid(nn.Module):
    """Poolings of several sizes side by side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cut, self.out = ConvSilu(inputs, inputs // 2), ConvSilu(2 * inputs, outputs)
        self.pools = nn.ModuleList([nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x)
        return self.out(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Rows(nn.Module):
    """The maps as they are in train mode; in eval mode one row a cell, with objectness and classes as scores."""

    def forward(self, maps: list[tuple[Tensor, Tensor, Tensor]]) -> list[tuple[Tensor, Tensor, Tensor]] | Tensor:
        if self.training:
            return maps
        rows = [torch.cat((box, thing.sigmoid(), kind.sigmoid()), 1).flatten(2) for box, thing, kind in maps]
        return torch.cat(rows, 2).transpose(1, 2)


class YoloxNano(nn.Module):
    def __init__(self, classes: int = 80, width: int = 16) -> None:
        super().__init__()
        w2, w4, w8, w16 = 2 * width, 4 * width, 8 * width, 16 * width
        self.stem = ConvSilu(12, width, 3)
        self.dark2 = nn.Sequential(Separable(width, w2, 2), Csp(w2, w2))
        self.dark3 = nn.Sequential(Separable(w2, w4, 2), Csp(w4, w4, 3))
        self.dark4 = nn.Sequential(Separable(w4, w8, 2), Csp(w8, w8, 3))
        self.dark5 = nn.Sequential(Separable(w8, w16, 2), Pyramid(w16, w16), Csp(w16, w16, shortcut=False))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral, self.p4 = ConvSilu(w16, w8), Csp(w16, w8, shortcut=False)
        self.reduce, self.p3 = ConvSilu(w8, w4), Csp(w8, w4, shortcut=False)
        self.down4, self.n4 = Separable(w4, w4, 2), Csp(w8, w8, shortcut=False)
        self.down5, self.n5 = Separable(w8, w8, 2), Csp(w16, w16, shortcut=False)
        self.stems = nn.ModuleList([ConvSilu(inputs, w4) for inputs in (w4, w8, w16)])
        self.cls, self.reg = (
            nn.ModuleList([nn.Sequential(Separable(w4, w4), Separable(w4, w4)) for _ in STRIDES]) for _ in range(2)
        )
        self.cls_out, self.reg_out, self.obj_out = (
            nn.ModuleList([nn.Conv2d(w4, outputs, 1) for _ in STRIDES]) for outputs in (classes, 4, 1)
        )
        self.rows = Rows()

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]] | Tensor:
        maps = []
        for level, features in enumerate(self._features(x)):
            features = self.stems[level](features)
            kinds, boxes = self.cls[level](features), self.reg[level](features)
            maps.append((self.reg_out[level](boxes), self.obj_out[level](boxes), self.cls_out[level](kinds)))
        return self.rows(maps)

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the three levels, after the way down and the way up."""
        corners = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        c3 = self.dark3(self.dark2(self.stem(torch.cat(corners, 1))))
        c4 = self.dark4(c3)
        f5 = self.lateral(self.dark5(c4))
        f4 = self.reduce(self.p4(torch.cat((self.up(f5), c4), 1)))
        o3 = self.p3(torch.cat((self.up(f4), c3), 1))
        o4 = self.n4(torch.cat((self.down4(o3), f4), 1))
        return o3, o4, self.n5(torch.cat((self.down5(o4), f5), 1))


def decode(rows: Tensor, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Rows (pictures, cells, 5 + classes) as corners of boxes in pixels and scores of the classes."""
    cells, strides = [], []
    for stride in STRIDES:
        place = torch.arange(size // stride, dtype=rows.dtype)
        y, x = torch.meshgrid(place, place, indexing="ij")
        cells.append(torch.stack((x, y), -1).reshape(-1, 2))
        strides.append(torch.full((len(cells[-1]), 1), float(stride)))
    stride = torch.cat(strides)
    centre, extent = (rows[..., :2] + torch.cat(cells)) * stride, rows[..., 2:4].exp() * stride
    return torch.cat((centre - extent / 2, centre + extent / 2), -1), rows[..., 4:5] * rows[..., 5:]


def suppress(boxes: Tensor, scores: Tensor, *, least: float = 0.01, overlap: float = 0.65, most: int = 100) -> Tensor:
    """The detections of one picture as rows (x0, y0, x1, y1, score, class), the best first."""
    cell, kind = (scores > least).nonzero(as_tuple=True)
    score, order = scores[cell, kind].sort(descending=True, stable=True)
    score, order = score[:1000], order[:1000]
    box, kind = boxes[cell[order]], kind[order]
    apart = box + 4096.0 * kind.unsqueeze(1)  # classes do not suppress each other
    above = intersection_over_union(apart, apart) > overlap
    alive = torch.ones(len(box), dtype=torch.bool)
    for index in range(len(box)):
        if alive[index]:
            alive[index + 1 :] &= ~above[index, index + 1 :]
    return torch.cat((box, score.unsqueeze(1), kind.unsqueeze(1)), 1)[alive][:most]


def intersection_over_union(a: Tensor, b: Tensor) -> Tensor:
    corner, other = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (other - corner).clamp_min(0).prod(-1)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(-1) for x in (a, b))
    return shared / (area_a[:, None] + area_b[None] - shared).clamp_min(1e-9)
