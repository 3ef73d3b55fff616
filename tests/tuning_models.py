"""A small model with one layer that int8 breaks, data for it, and evaluations; importable by workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 16, 3, padding=1)
        self.c = nn.Conv2d(16, 16, 3, padding=1)
        self.d = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x))))))
        return self.d(x.mean((2, 3)))


def broken() -> nn.Module:
    """One channel of b's input is huge, and b's weights for it are as small: any grid of the tensor loses something."""
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.a.weight[0] *= 30000
        model.a.bias[0] *= 30000
        model.b.weight[:, 0] /= 30000
        model.d.weight *= 20
        model.d.bias -= model(images()).mean(0)  # no class wins everywhere
    return model


def whole() -> nn.Module:
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.d.bias -= model(images()).mean(0)
    return model


def images(count: int = 128) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def batches() -> list[Tensor]:
    return list(images(64).split(16))


class Agreement:
    """Whether a model gives the float model's class, by sample, in parts."""

    def __init__(self, model: nn.Module, count: int = 128) -> None:
        self.images = images(count)
        with torch.no_grad():
            self.labels = model(self.images).argmax(1)

    def __call__(self, model: nn.Module) -> Iterator[Tensor]:
        for x, y in zip(self.images.split(32), self.labels.split(32), strict=True):
            yield (model(x).argmax(1) == y).float()


class Share(Agreement):
    """The same as one number."""

    def __call__(self, model: nn.Module) -> float:  # type: ignore[override]
        return float(torch.cat(list(super().__call__(model))).mean())


class Dying(Share):
    """Kills its process, as often as there are files left to remove."""

    def __init__(self, model: Any, folder: Path, times: int) -> None:
        super().__init__(model)
        self.home, self.folder = os.getpid(), folder
        for number in range(times):
            (folder / f"life{number}").touch()

    def __call__(self, given: Any) -> float:
        if os.getpid() != self.home:
            for path in sorted(self.folder.glob("life*")):
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(given)
