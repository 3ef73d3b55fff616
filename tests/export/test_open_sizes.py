"""Which sizes of the inputs stay open, and what is said of those that cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import ConfigError
from fxquant.export.open_sizes import open_sizes


class Net(nn.Module):
    def forward(self, image: Tensor, scale: float = 1.0) -> Tensor:
        return image * scale


def opened(image: Tensor, **options: Any) -> Any:
    options = {"dynamic_batch": False, "dynamic_shapes": None, **options}
    return open_sizes(Net(), ((image,), {}), "export", **options)


def test_a_batch_of_one_is_doubled_and_open() -> None:
    example, shapes = opened(torch.zeros(1, 3), dynamic_batch=True)
    assert tuple(example[0][0].shape) == (2, 3) and list(shapes["image"]) == [0]


def test_a_name_leaves_the_bounds_to_torch_and_a_dim_has_its_own() -> None:
    dim = torch.export.Dim("side", min=4, max=64)
    _, shapes = opened(torch.zeros(2, 8, 8), dynamic_shapes={"image": {1: "rows", -1: dim}})
    assert shapes["image"] == {1: torch.export.Dim.DYNAMIC, 2: dim}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["n"], "give names by argument and axis"),
        ({"image": [1]}, "give names by argument and axis"),
        ({"scale": {0: "n"}}, "is no tensor argument"),
        ({"image": {3: "n"}}, "no axis 3"),
        ({"image": {1: "n"}}, "is 1"),
        ({"image": {0: 3.5}}, r"is 3\.5\. Give a name"),
    ],
)
def test_what_cannot_be_open_is_named(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        opened(torch.zeros(2, 1), dynamic_shapes=asked)
