"""The evaluation that a file describes: a metric over the batches of a dataloader, as a function of the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.config_file.metrics.metrics import LOWER_IS_BETTER, Mean, Metric, make_metric
from fxquant.config_file.sections.evaluation import Accuracy
from fxquant.errors import ConfigError
from fxquant.flows.calibrate import as_example
from fxquant.graph.tree import is_several


def split_batch(batch: object, model: nn.Module) -> tuple[tuple[object, ...], dict[str, object], object]:
    """(args, kwargs, labels). A pair is (inputs, labels), unless forward takes both of them."""
    if is_several(batch) and len(batch) == 2 and not isinstance(batch[0], Tensor):
        inputs, labels = batch
        if isinstance(inputs, Mapping):
            return (), dict(inputs), labels
        return (tuple(inputs) if is_several(inputs) else (inputs,)), {}, labels
    args, kwargs = as_example(batch, model)
    if isinstance(batch, Mapping):
        rest: Any = batch.get("labels", batch.get("label"))
    else:
        rest = batch[len(args) :] if is_several(batch) else ()
        rest = rest[0] if len(rest) == 1 else rest or None
    return args, kwargs or {}, rest


def calibration_batches(data: Iterable[object], model: nn.Module, size: int) -> Iterator[object]:
    """Inputs alone, as `calibrate` takes them, of `size` samples."""
    seen = 0
    for batch in data:
        args, kwargs, _ = split_batch(batch, model)
        first = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
        yield kwargs or args
        seen += len(first) if first is not None and first.dim() else 1
        if seen >= size:
            return


class Batches:
    """`calibration_batches`, any number of times."""

    def __init__(self, data: Iterable[object], model: nn.Module, size: int) -> None:
        self._data, self._model, self._size = data, model, size

    def __iter__(self) -> Iterator[object]:
        return calibration_batches(self._data, self._model, self._size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Metrics over data, called with a model. A metric that is a mean over samples gives these, part by part."""

    data: Iterable[Any]
    metrics: tuple[tuple[Metric, float, bool], ...]  # each with its weight, and whether higher is better
    float_model: nn.Module
    against_float: bool = False
    batches: int | None = None
    postprocess: Callable[..., Any] | None = None

    @property
    def higher_is_better(self) -> bool:
        return len(self.metrics) > 1 or self.metrics[0][2]

    def __call__(self, model: nn.Module) -> object:
        if len(self.metrics) == 1 and getattr(self.metrics[0][0], "is_plain_mean", False):
            return self._by_sample(model)
        for metric, _, _ in self.metrics:
            metric.reset()
        for outputs, labels in self._results(model):
            for metric, _, _ in self.metrics:
                metric.update(outputs, labels)
        if len(self.metrics) == 1:
            return float(self.metrics[0][0].result())
        return sum(weight * (1 if higher else -1) * float(m.result()) for m, weight, higher in self.metrics)

    def _by_sample(self, model: nn.Module) -> Iterator[Tensor]:
        metric = self.metrics[0][0]
        assert isinstance(metric, Mean)
        for outputs, labels in self._results(model):
            yield metric.per_sample(outputs, labels).double()

    def _results(self, model: nn.Module) -> Iterator[tuple[object, object]]:
        for batch in itertools.islice(self.data, self.batches):
            args, kwargs, labels = split_batch(batch, self.float_model)
            with torch.no_grad():
                outputs = model(*args, **kwargs)
                if self.against_float:
                    labels = self.float_model(*args, **kwargs)
            if labels is None:
                raise ConfigError("the evaluation data has no labels. Give batches of (inputs, labels).")
            yield self.postprocess(outputs, labels) if self.postprocess is not None else (outputs, labels)


def metrics_of(section: Accuracy) -> tuple[tuple[Metric, float, bool], ...]:
    """Return the metrics of a file, each with its weight, and whether higher is better."""
    several = section.multi_metrics or {}
    found = section.metrics
    weights = several.get("weight") or [1 / len(found)] * len(found)
    higher = several.get("higher_is_better") or [name not in LOWER_IS_BETTER for name, _ in found]
    made = [make_metric(name, settings, "evaluation.accuracy.metric") for name, settings in found]
    return tuple(zip(made, map(float, weights), map(bool, higher), strict=True))


def postprocess_of(section: Accuracy) -> Callable[..., object] | None:
    """Return what a file does to outputs and labels before the metric sees them."""
    steps = (section.postprocess.transform or {}) if section.postprocess is not None else {}
    for name in steps:
        if name != "LabelShift":
            raise ConfigError(f"evaluation.accuracy.postprocess: {name} is not built in. Set quantizer.postprocess.")
    if not steps:
        return None
    shift = steps["LabelShift"]
    amount = int(shift.get("label_shift", 0) if isinstance(shift, Mapping) else shift or 0)
    return lambda outputs, labels: (outputs, labels - amount)
