"""The metrics that a file can name.

A metric takes batches of outputs and labels and gives a number. Those that are means over samples also give what each
sample adds (`per_sample`), which lets tuning compare models sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fxquant.config_file.metrics.average_precision import Array, as_arrays, mean_average_precision, read_thresholds
from fxquant.config_file.sections.evaluation import MeanPrecision
from fxquant.errors import ConfigError


@runtime_checkable
class Metric(Protocol):
    """What a metric of the user's own has, too."""

    def reset(self) -> None: ...

    def update(self, preds: object, labels: object) -> None: ...

    def result(self) -> float: ...


def make_metric(name: str, settings: object, where: str) -> Metric:
    """Return a metric by its name in a file."""
    if name not in METRICS:
        raise ConfigError(
            f"{where}: the metric {name} is not built in. Set quantizer.eval_func or quantizer.metric in code, or use "
            "one of " + ", ".join(METRICS) + "."
        )
    return METRICS[name](settings)


class Mean:
    """The mean of what `per_sample(outputs, labels)` gives, passed through `last`."""

    def __init__(self, per_sample: Callable[[object, object], Tensor], last: Callable[[float], float] = float) -> None:
        self.per_sample = per_sample
        self.is_plain_mean = last is float
        self._last = last
        self.reset()

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, preds: object, labels: object) -> None:
        values = self.per_sample(preds, labels).double()
        self._total += float(values.sum())
        self._count += values.numel()

    def result(self) -> float:
        return self._last(self._total / max(self._count, 1))


def _tensor(value: object) -> Tensor:
    """Return the first output, as a tensor."""
    if isinstance(value, dict):
        value = next(iter(value.values()))
    while isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
        value = value[0]
    return torch.as_tensor(value).detach()


def _topk(k: int) -> Callable[[object, object], Tensor]:
    def correct(preds: object, labels: object) -> Tensor:
        scores, wanted = _tensor(preds), _classes(_tensor(labels))
        top = scores.flatten(1).topk(min(k, scores.shape[1]), dim=1).indices
        return (top == wanted[:, None]).any(1)

    return correct


def _classes(values: Tensor) -> Tensor:
    """Classes from scores, one-hot rows, or classes."""
    return values.flatten(1).argmax(1) if values.dim() > 1 and values.shape[1] > 1 else values.reshape(-1)


def _right(preds: object, labels: object) -> Tensor:
    return _classes(_tensor(preds)) == _classes(_tensor(labels))


def _apart(power: int) -> Callable[[object, object], Tensor]:
    def apart(preds: object, labels: object) -> Tensor:
        one, other = _tensor(preds).double(), _tensor(labels).double()
        if one.shape != other.shape:
            if one.numel() != other.numel():
                raise ConfigError(
                    f"the metric compares outputs of shape {tuple(one.shape)} with labels of {tuple(other.shape)}."
                )
            other = other.reshape(one.shape)
        return ((one - other).abs() ** power).flatten(1).mean(1) if one.dim() > 1 else (one - other).abs() ** power

    return apart


class F1:
    """Of class 1 if there are two classes, else the mean over the classes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._preds: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._classes = 0

    def update(self, preds: object, labels: object) -> None:
        scores = _tensor(preds)
        self._preds.append(_classes(scores))
        self._labels.append(_classes(_tensor(labels)))
        self._classes = max(self._classes, scores.shape[1] if scores.dim() > 1 else 0)

    def result(self) -> float:
        preds, labels = torch.cat(self._preds).long(), torch.cat(self._labels).long()
        classes = max(self._classes, int(labels.max()) + 1, int(preds.max()) + 1)
        wanted = [1] if classes <= 2 else labels.unique().tolist()
        found = []
        for each in wanted:
            hit = int(((preds == each) & (labels == each)).sum())
            found.append(2 * hit / max(int((preds == each).sum() + (labels == each).sum()), 1))
        return sum(found) / len(found)


class MeanIntersection:
    """Mean intersection over union of segmentation maps, over the classes that occur."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._both: dict[int, int] = {}
        self._any: dict[int, int] = {}

    def update(self, preds: object, labels: object) -> None:
        scores, wanted = _tensor(preds), _tensor(labels).long()
        given = scores.argmax(1) if scores.dim() == wanted.dim() + 1 else scores.long()
        for each in torch.cat([given.reshape(-1), wanted.reshape(-1)]).unique().tolist():
            one, other = given == each, wanted == each
            self._both[each] = self._both.get(each, 0) + int((one & other).sum())
            self._any[each] = self._any.get(each, 0) + int((one | other).sum())

    def result(self) -> float:
        return sum(self._both[each] / self._any[each] for each in self._any) / max(len(self._any), 1)


class AveragePrecision:
    """mAP. Outputs are a list of {boxes, scores, labels} by picture, or a tuple of batches of these three."""

    def __init__(self, settings: MeanPrecision) -> None:
        key = settings.map_key or ""
        self._thresholds = read_thresholds("0.5" if key.endswith("50IOU") else settings.iou_thrs)
        self._points = settings.map_points
        places = settings.output_index_mapping or {}
        defaults = {"boxes": 0, "scores": 1, "classes": 2, "num_detections": -1}
        own = {name: getattr(settings, name) for name in defaults if getattr(settings, name) is not None}
        self._places = {**defaults, **own, **places}
        self.reset()

    def reset(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._truths: list[dict[str, Any]] = []

    def update(self, preds: object, labels: object) -> None:
        rows = [labels] if isinstance(labels, dict) else labels
        if not isinstance(rows, (list, tuple)):
            raise ConfigError(f"mAP needs a list of {{boxes, labels}} by picture, and got a {type(labels).__name__}.")
        found = [self._of_picture(each) for each in self._split(preds)]
        truths = [
            {name: as_arrays([each[name]])[0] for name in ("boxes", "labels", "crowd") if name in each} for each in rows
        ]
        if len(found) != len(truths):
            raise ConfigError(f"mAP got detections of {len(found)} pictures and labels of {len(truths)}.")
        self._found += found
        self._truths += truths

    def _split(self, preds: object) -> Sequence[Mapping[str, object]]:
        """Detections by picture."""
        if isinstance(preds, dict):
            return [preds]
        if isinstance(preds, (list, tuple)) and preds and all(isinstance(each, dict) for each in preds):
            return list(preds)
        at = self._places
        if not isinstance(preds, (list, tuple)) or len(preds) <= max(at.values()):
            raise ConfigError(
                "mAP needs a list of {boxes, scores, labels} by picture, or a tuple of boxes, scores and classes: "
                "give the detector its decoding and non-maximum suppression, or set quantizer.eval_func."
            )
        parts = zip(preds[at["boxes"]], preds[at["scores"]], preds[at["classes"]], strict=True)
        made = [{"boxes": boxes, "scores": scores, "labels": classes} for boxes, scores, classes in parts]
        if at["num_detections"] >= 0:
            counts = [int(count) for count in preds[at["num_detections"]]]
            made = [
                {name: value[:count] for name, value in each.items()} for each, count in zip(made, counts, strict=True)
            ]
        return made

    def _of_picture(self, preds: Mapping[str, object]) -> dict[str, Array]:
        boxes, scores, labels = as_arrays(preds[name] for name in ("boxes", "scores", "labels"))
        return {"boxes": boxes.reshape(-1, 4), "scores": scores, "labels": labels}

    def result(self) -> float:
        return mean_average_precision(self._found, self._truths, self._thresholds, self._points)


METRICS: dict[str, Callable[[Any], Metric]] = {
    "topk": lambda k: Mean(_topk(k)),
    "Accuracy": lambda settings: Mean(_right),
    "F1": lambda settings: F1(),
    "MSE": lambda settings: Mean(_apart(2)),
    "RMSE": lambda settings: Mean(_apart(2), lambda value: value**0.5),
    "MAE": lambda settings: Mean(_apart(1)),
    "mIOU": lambda settings: MeanIntersection(),
    "mAP": AveragePrecision,
    "COCOmAP": AveragePrecision,
    "COCOmAPv2": AveragePrecision,
    "VOCmAP": AveragePrecision,
}
LOWER_IS_BETTER = ("MSE", "RMSE", "MAE")
