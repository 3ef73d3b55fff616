"""The batch of an example: found, doubled, and lists of that length with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.capture.batch import batch_size, double_batch, fixes_batch, larger
from fxquant.capture.capture import capture
from fxquant.capture.recording import Recording
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.region import Region


def test_tensors_of_the_batch_size_are_doubled() -> None:
    values = {"x": torch.zeros(3, 2), "mask": torch.zeros(3), "table": torch.zeros(5, 3)}
    assert batch_size(values) == 3
    made = double_batch(values)
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == {"x": (6, 2), "mask": (6,), "table": (5, 3)}


def test_lists_of_pictures_grow_too() -> None:
    images = [torch.zeros(3, 4), torch.zeros(3, 4)]
    lengths = {len(call[0][0]) for call in larger(((images,), {}))}
    assert 4 in lengths


class _Bags(nn.Module):
    """Bags of ids for each of its tables, beside dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))

    def forward(self, dense: Tensor, *lists: list[Tensor]) -> Tensor:
        return dense + sum(table(*bags) for table, *bags in zip(self.tables, *lists))  # noqa: B905


def test_a_list_for_each_table_is_no_batch() -> None:
    """The model takes longer lists, since it does not look at their end."""
    model = _Bags().eval()
    assert isinstance(capture(model, (torch.ones(4, 8), [torch.ones(4, 2, dtype=torch.long)] * 3)), Region)


def test_what_is_read_of_memory_that_nobody_wrote_tells_nothing() -> None:
    """Offsets that are not sorted, as doubled ones, leave rows of a sum unwritten."""
    offsets = [torch.arange(0, 12, 3)] * 3
    recording = Recording(_Bags().eval(), (torch.ones(4, 8), [torch.arange(12)] * 3, offsets), {})
    for value in range(5):
        used = [torch.full((8, 8), float(value)) for _ in range(50)]
        del used
        assert not fixes_batch(recording, clone_tree(recording.model))
    assert not torch.get_deterministic_debug_mode()
