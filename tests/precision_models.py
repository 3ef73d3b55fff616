"""Models of which int8 makes nothing, and one whose regions stand in code that runs as written."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Does not trace: regions inside of code that runs as written."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(x) if float(x.sum()) > 1e9 else self.two(-x)


class Collapsing(nn.Module):
    """The first eight inputs are tiny beside the ninth, and all that the answer depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(9, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.first.weight[:, :8] *= 3000.0
            self.first.weight[:, 8] *= 0.01

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))


def collapsing() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    data = [torch.cat((torch.randn(32, 8) * 1e-3, torch.rand(32, 1) * 30), 1) for _ in range(3)]
    return Collapsing().eval(), data


class Exponential(nn.Module):
    """Its first layer reads numbers of very different size, whose range is no better found from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(torch.exp(3 * x))))


class DeadInputs(nn.Module):
    """The second layer has huge weights for channels that are always zero: no grid fits them and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 32), nn.Linear(32, 8)
        with torch.no_grad():
            self.first.weight[3:7], self.first.bias[3:7] = 0.0, -1.0
            self.head.weight[:, 3:7] *= 1e4

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)))


class Uneven(nn.Module):
    """Most of its answer depends on 64 inputs that lie on one grid with a far larger one, which hardly counts.

    Int8 does well, by 25 dB, and one tensor makes nearly all of the error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(65, 256), nn.Linear(256, 8)
        self.between = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        with torch.no_grad():
            self.first.weight[:, 64] *= 0.01

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(torch.relu(self.first(x))))


def uneven() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = Uneven().eval()
    return model, [torch.cat((torch.randn(256, 64) * 0.5, torch.rand(256, 1) * 60), 1) for _ in range(2)]
