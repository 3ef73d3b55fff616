"""The batch of an example: found, doubled, and lists of that length with it."""

from __future__ import annotations

import torch

from fxquant.capture.batch import batch_size, double_batch, larger


def test_tensors_of_the_batch_size_are_doubled() -> None:
    values = {"x": torch.zeros(3, 2), "mask": torch.zeros(3), "table": torch.zeros(5, 3)}
    assert batch_size(values) == 3
    made = double_batch(values)
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == {"x": (6, 2), "mask": (6,), "table": (5, 3)}


def test_lists_of_pictures_grow_too() -> None:
    images = [torch.zeros(3, 4), torch.zeros(3, 4)]
    lengths = {len(call[0][0]) for call in larger(((images,), {}))}
    assert 4 in lengths
