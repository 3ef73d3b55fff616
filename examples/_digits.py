"""scikit-learn's 8x8 digits and a small classifier: what the examples use where `--data` is not given."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """A residual network of about 60,000 parameters."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1, self.layer2 = Residual(width), Residual(width)
        self.pool, self.linear = nn.MaxPool2d(2), nn.Linear(width * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.linear(self.layer2(self.layer1(x)).flatten(1))


def network() -> nn.Module:
    """A smaller one, for training."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,400 to train with, 397 to test with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    found = torch.cat([model(batch) for batch in images.split(200)]).argmax(1)
    return float((found == labels).float().mean())


def trained(model: nn.Module, data: TensorDataset, epochs: int) -> nn.Module:
    """The float model, trained, in eval mode."""
    images, labels = data.tensors
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(70):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
    return model.eval()
