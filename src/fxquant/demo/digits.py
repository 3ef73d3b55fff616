"""A tiny net for scikit-learn's digits, trained in seconds.

The 1797 images of 8x8 pixels ship inside scikit-learn, so nothing is downloaded. A quarter of them, stratified by
class, is held out; calibration sees training images only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batches = list[tuple[Tensor, Tensor]]

BATCH = 64


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class DigitsNet(nn.Module):
    """Three conv-bn-relu blocks, the last one with a residual add, then pooling and a linear layer (129k weights)."""

    def __init__(self, width: int = 96, classes: int = 10) -> None:
        super().__init__()
        self.stem = _block(1, width // 2)
        self.widen = _block(width // 2, width)
        self.residual = _block(width, width)
        self.shrink = nn.MaxPool2d(2)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shrink(self.widen(self.stem(x)))
        x = x + self.residual(x)
        logits: Tensor = self.head(torch.flatten(self.pool(x), 1))
        return logits


def _as_images(pixels: Tensor) -> Tensor:
    return (pixels.float() / 8.0 - 1.0).reshape(-1, 1, 8, 8)


def load_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train images, train labels, held-out images, held-out labels; pixels in [-1, 1]."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    pixels, labels = load(return_X_y=True)
    parts = train_test_split(pixels, labels, test_size=0.25, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)
    return _as_images(train_x), train_y.long(), _as_images(test_x), test_y.long()


def batches(x: Tensor, y: Tensor) -> Batches:
    return list(zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True))


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, seed: int) -> None:
    """Train in place with a one-cycle schedule; leaves the model in eval mode."""
    order = torch.Generator().manual_seed(seed)
    steps = epochs * (len(x) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    for _ in range(epochs):
        # The last, smaller batch is left out: batch norm statistics of a few images are noise.
        for index in torch.split(torch.randperm(len(x), generator=order), BATCH)[: len(x) // BATCH]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index], label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
