"""`evaluation`: the metric and its data, and how speed is measured."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, TypeAdapter, field_validator, model_validator
from typing_extensions import Self

from fxquant.config_file.sections.data import Dataloader, Free
from fxquant.config_file.sections.section import Choice, Section, Several


class Difference(Section):
    """Of outputs to labels; without `compare_label`, to the outputs of the float model."""

    compare_label: bool = True


class MeanPrecision(Section):
    """The mean average precision of a detector, as COCO counts it."""

    anno_path: str | None = None
    iou_thrs: str | float = "0.5:0.05:0.95"
    map_points: Literal[0, 11, 101] = 101
    map_key: Literal["DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU"] | str | None = None
    output_index_mapping: dict[str, int] | None = None
    num_detections: int | None = None
    boxes: int | None = None
    scores: int | None = None
    classes: int | None = None


class Metric(Choice):
    """One of the metrics, with its settings."""

    topk: int | None = None
    mAP: MeanPrecision | None = None
    COCOmAP: MeanPrecision | None = None
    COCOmAPv2: MeanPrecision | None = None
    VOCmAP: MeanPrecision | None = None
    Accuracy: Free | None = None
    F1: Free | None = None
    MSE: Difference | None = None
    RMSE: Difference | None = None
    MAE: Difference | None = None
    Loss: Free | None = None
    SquadF1: Free | None = None
    BLEU: Free | None = None
    mIOU: Free | None = None
    GLUE: Free | None = None
    ROC: Free | None = None

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: object) -> object:
        """`metric: Accuracy` has no settings."""
        return {value: {}} if isinstance(value, str) else value

    @field_validator("topk")
    @classmethod
    def _top(cls, k: int | None) -> int | None:
        if k is not None and k not in (1, 5):
            raise ValueError(f"topk is {k}; expected 1 or 5")
        return k


class Postprocess(Section):
    transform: dict[Literal["LabelShift", "Collect", "SquadV1"], Any] | None = None


class Configs(Section):
    cores_per_instance: int | None = None
    num_of_instance: int = 1
    inter_num_of_threads: int | None = None
    intra_num_of_threads: int | None = None
    kmp_blocktime: int | None = None
    kmp_affinity: str | None = None


_LISTS: dict[str, TypeAdapter[Any]] = {
    "weight": TypeAdapter(Several[float]),
    "higher_is_better": TypeAdapter(Several[bool]),
}


class Accuracy(Section):
    """`multi_metrics` are several metrics with a `weight` each, and `higher_is_better`."""

    metric: Metric | None = None
    multi_metrics: dict[str, Any] | None = None
    configs: Configs | None = None
    iteration: int = -1
    dataloader: Dataloader | None = None
    postprocess: Postprocess | None = None

    @field_validator("multi_metrics")
    @classmethod
    def _lists(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Lists are written as anywhere: `weight: 0.5, 0.5`."""
        if value is None:
            return None
        return {**value, **{name: each.validate_python(value[name]) for name, each in _LISTS.items() if name in value}}

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.metric is not None and self.multi_metrics is not None:
            raise ValueError("give metric or multi_metrics, not both")
        metrics = self.metrics
        weights = (self.multi_metrics or {}).get("weight")
        higher = (self.multi_metrics or {}).get("higher_is_better")
        for name, given in (("weight", weights), ("higher_is_better", higher)):
            if given is not None and (not isinstance(given, list) or len(given) != len(metrics)):
                raise ValueError(f"multi_metrics.{name} is {given!r}; give a list with one value for each metric")
        return self

    @property
    def metrics(self) -> list[tuple[str, object]]:
        """The names and settings of all metrics."""
        if self.metric is not None:
            return [self.metric.chosen]
        several = (self.multi_metrics or {}).items()
        names = [(name, value) for name, value in several if name not in ("weight", "higher_is_better")]
        return [Metric.model_validate({name: value}).chosen for name, value in names]


class Performance(Section):
    warmup: int = 5
    iteration: int = -1
    configs: Configs = Field(default_factory=Configs)
    dataloader: Dataloader | None = None
    postprocess: Postprocess | None = None


class Evaluation(Section):
    accuracy: Accuracy | None = None
    performance: Performance | None = None
