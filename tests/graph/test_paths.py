"""Paths into a module tree: joined, looked up, written, and free ones found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.graph.paths import find_module, free_path, get_attr, is_within, join_path, set_submodule


def test_empty_parts_fall_away() -> None:
    assert join_path("", "a", "", "b.c") == "a.b.c"


@pytest.mark.parametrize(
    ("path", "root", "inside"), [("a.b", "a", True), ("a", "a", True), ("ab", "a", False), ("a", "", True)]
)
def test_a_path_is_within_whole_steps(path: str, root: str, inside: bool) -> None:
    assert is_within(path, root) is inside


def test_missing_parents_are_made_and_a_parameter_gives_way() -> None:
    root = nn.Linear(2, 2)
    set_submodule(root, "a.b", nn.ReLU())
    set_submodule(root, "bias", nn.Identity())
    assert isinstance(find_module(root, "a.b"), nn.ReLU) and isinstance(root.bias, nn.Identity)
    assert find_module(root, "a.c") is None and find_module(root, "") is root


def test_attributes_are_read_and_free_paths_avoid_them() -> None:
    root = nn.Sequential(nn.BatchNorm1d(3))
    assert torch.equal(get_attr(root, "0.running_mean"), torch.zeros(3))
    assert free_path(root, "0") == "0_1" and free_path(root, "new") == "new"
