"""One converted net for the tests of this folder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from integers.converted import converted
from zoo import ZOO


@pytest.fixture(scope="session")
def plain() -> tuple[nn.Module, torch.Tensor]:
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return converted(ZOO["plain"].build(), x, "npu"), x
