"""The CIFAR-10 pictures and trained ResNets of `--data DIR`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

FILES = ("resnet20-cifar10.pt", "cifar10-calib-512.npz", "cifar10-train-5000.npz", "cifar10-test-2000.npz")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.stride != 1:
            shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class CifarResNet(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for index, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
            first = Block(inputs, outputs, stride=1 if inputs == outputs else 2)
            rest = [Block(outputs, outputs, stride=1) for _ in range(blocks - 1)]
            setattr(self, f"layer{index}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


def cifar_resnet(depth: int, data: Path) -> nn.Module:
    """ResNet-20 or ResNet-32 with trained weights."""
    model = CifarResNet(blocks=(depth - 2) // 6)
    model.load_state_dict(torch.load(data / f"resnet{depth}-cifar10.pt", weights_only=True))
    return model.eval()


def cifar_images(name: str, data: Path) -> tuple[Tensor, Tensor]:
    """(normalized images, labels) of one npz file."""
    with np.load(data / f"{name}.npz") as file:
        images, labels = file["images"], file["labels"]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - mean) / std, torch.from_numpy(labels)


def cifar_data(name: str, data: Path) -> TensorDataset:
    return TensorDataset(*cifar_images(name, data))
