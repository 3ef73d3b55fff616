"""Batches from the `dataloader` section of a file: (inputs, labels), in an order that the seed fixes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch.utils.data import default_collate

from fxquant.config_file.data.datasets import Samples, open_dataset
from fxquant.config_file.data.picture import Picture
from fxquant.config_file.data.transforms import apply, check
from fxquant.config_file.sections.data import Dataloader


class Loader:
    """An iterable of batches. Every pass over it gives the same ones, also where transforms are random."""

    def __init__(self, section: Dataloader, where: str, seed: int) -> None:
        name, settings = section.dataset.chosen
        self.batch_size = section.batch_size
        self._steps = check(section.transform, where)
        self._dataset = open_dataset(name, settings, f"{where}.dataset", seed)
        self._section = section
        self._seed = seed

    @property
    def dataset(self) -> Samples:
        return self._dataset

    def __len__(self) -> int:
        whole, rest = divmod(len(self._order()), self.batch_size)
        return whole + bool(rest and self._section.last_batch == "rollover")

    def _order(self) -> list[int]:
        count = len(self._dataset)
        rng = torch.Generator().manual_seed(self._seed)
        order = torch.randperm(count, generator=rng).tolist() if self._section.shuffle else list(range(count))
        if self._section.filter is None:
            return order
        return self._balanced(order, self._section.filter.LabelBalance.size)

    def _balanced(self, order: list[int], size: int) -> list[int]:
        """Detection pictures with this many boxes."""
        kept = []
        for index in order:
            label = self._dataset[index][1]
            if isinstance(label, dict) and len(label["labels"]) == size:
                kept.append(index)
        return kept

    def __iter__(self) -> Iterator[tuple[object, object]]:
        rng = torch.Generator().manual_seed(self._seed)
        order = iter(self._order())
        while batch := list(itertools.islice(order, self.batch_size)):
            if len(batch) < self.batch_size and self._section.last_batch == "discard":
                return
            yield collate([self._sample(index, rng) for index in batch])

    def _sample(self, index: int, rng: torch.Generator) -> tuple[object, object]:
        image, label = self._dataset[index]
        if isinstance(image, tuple):
            return image, label
        boxes = label["boxes"] if isinstance(label, dict) else None
        made = apply(self._steps, Picture(image=image, boxes=boxes), rng)
        if isinstance(label, dict) and boxes is not None:
            label = {**label, "boxes": made.boxes}
        return made.as_tensor().image if not hasattr(made.image, "shape") else made.image, label


def collate(samples: list[tuple[object, object]]) -> tuple[object, object]:
    """Inputs stacked; labels too, unless they are those of detection, which stay a list."""
    labels = [label for _, label in samples]
    inputs = default_collate([image for image, _ in samples])
    if all(label is None for label in labels):
        return inputs, None
    return inputs, labels if isinstance(labels[0], dict) else default_collate(labels)
