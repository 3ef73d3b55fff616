"""Random graphs of the ops that have an integer form, drawn by hypothesis as plain recipes and built from those."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from integers.converted import converted

Recipe = tuple[tuple[str, int, int, int], ...]  # op, operand, second operand, variant

OPS = ("conv", "depthwise", "add", "mul", "cat", "max_pool", "avg_pool", "nearest", "bilinear")
CURVES = ("relu", "relu6", "leaky_relu", "hardswish", "hardsigmoid")
SLOPES = (0.1, 0.25, 26 / 256)


def recipes(most: int = 7) -> st.SearchStrategy[Recipe]:
    number = st.integers(0, 11)
    return st.lists(st.tuples(st.sampled_from((*OPS, *CURVES)), number, number, number), min_size=1, max_size=most).map(
        tuple
    )


class Random(nn.Module):
    """The tensors of a recipe in order; the mean over all of the last of them, and a linear."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.steps: list[tuple[str, int, int, int, nn.Module | None]] = []
        shapes = [(3, 8)]
        first = ("conv", 0, 0, 3)
        for index, (name, one, two, variant) in enumerate((first, *recipe)):
            at = (
                0 if index == 0 else len(shapes) - 1 - one % min(3, len(shapes) - 1)
            )  # only a convolution reads the input
            channels, size = shapes[at]
            op, module = name, None
            same = [each for each in range(min(1, index), len(shapes)) if shapes[each] == shapes[at]]
            other = same[two % len(same)]
            if op in ("conv", "depthwise"):
                kernel, stride = (1, 3, 3)[variant % 3], 1 + (variant % 5 == 4 and size > 2)
                groups = channels if op == "depthwise" else 1
                wanted = channels if op == "depthwise" else (2, 3, 4, 6)[variant % 4]
                conv = nn.Conv2d(channels, wanted, kernel, stride, kernel // 2, groups=groups, bias=variant % 6 != 5)
                with torch.no_grad():
                    conv.weight.mul_(2.0 ** (variant % 4))
                module = self._named(index, conv)
                shapes.append((wanted, -(-size // stride)))
            elif op == "cat":
                alike = [each for each in range(1, len(shapes)) if shapes[each][1] == size]
                other = alike[two % len(alike)]
                shapes.append((min(channels + shapes[other][0], 99), size))
            elif op in ("max_pool", "avg_pool") and size > 2:
                shapes.append((channels, self._pooled(op, size, variant)))
            elif op in ("nearest", "bilinear") and size <= 8:
                shapes.append((channels, 2 * size))
            elif op in ("add", "mul", *CURVES):
                shapes.append((channels, size))
            else:
                op = "relu"
                shapes.append((channels, size))
            self.steps.append((op, at, other, variant, module))
        self.head = nn.Linear(shapes[-1][0], 5)

    def _named(self, index: int, module: nn.Module) -> nn.Module:
        self.add_module(f"step{index}", module)
        return module

    @staticmethod
    def _pooled(op: str, size: int, variant: int) -> int:
        kernel, stride, padding = Random._window(variant)
        return (size + 2 * padding - kernel) // stride + 1

    @staticmethod
    def _window(variant: int) -> tuple[int, int, int]:
        return ((2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 1, 0))[variant % 4]

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for op, at, other, variant, module in self.steps:
            found.append(self._apply_step(op, found[at], found[other], variant, module))
        return self.head(found[-1].mean((2, 3)))

    def _apply_step(self, op: str, x: Tensor, y: Tensor, variant: int, module: Any) -> Tensor:
        window = self._window(variant)
        if module is not None:
            made = module(x)
            tail = (None, F.relu, F.relu6, lambda z: F.leaky_relu(z, SLOPES[variant % 3]), None)[variant % 5]
            return made if tail is None else tail(made)
        if op == "add":
            return x + y
        if op == "mul":
            return x * y
        if op == "cat":
            return torch.cat([x, y], 1)
        if op == "max_pool":
            return F.max_pool2d(x, *window)
        if op == "avg_pool":
            return F.avg_pool2d(x, *window, count_include_pad=bool(variant % 2))
        if op == "nearest":
            return F.interpolate(x, scale_factor=2)
        if op == "bilinear":
            return F.interpolate(x, scale_factor=2, mode="bilinear")
        if op == "leaky_relu":
            return F.leaky_relu(x, SLOPES[variant % 3])
        return {"relu": F.relu, "relu6": F.relu6, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid}[op](x)


def random_model(recipe: Recipe, seed: int, target: str) -> nn.Module:
    """A random model for a target, after one batch of calibration."""
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return converted(Random(recipe, seed), x, target)
