"""Mean average precision of a detector, as COCO counts it.

For each class and IoU threshold, detections by falling score match the box they overlap most, each box once; what lies
on a crowd does not count. Precision, made falling, is read at equal steps of recall (101 as COCO, 11 as VOC 2007, or
where it changes, as VOC 2010), and averaged: over recall, thresholds and the classes that have boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MAX_DETECTIONS = 100  # of a picture, as COCO has it


def mean_average_precision(
    detections: Sequence[dict[str, Array]],
    truths: Sequence[dict[str, Array]],
    thresholds: Sequence[float],
    points: int = 101,
) -> float:
    """From `boxes`, `scores`, `labels` and `boxes`, `labels`, `crowd` (or none) of each picture."""
    classes = sorted({int(label) for truth in truths for label in np.asarray(truth["labels"])[~_crowd(truth)]})
    found = [_of_class(detections, truths, label, thresholds, points) for label in classes]
    return float(np.mean(found)) if found else 0.0


def _crowd(truth: dict[str, Array]) -> Array:
    return np.asarray(truth.get("crowd", np.zeros(len(truth["labels"]))), dtype=bool)


def _of_class(
    detections: Sequence[dict[str, Array]],
    truths: Sequence[dict[str, Array]],
    label: int,
    thresholds: Sequence[float],
    points: int,
) -> float:
    scores: list[Array] = []
    hits: list[Array] = []
    ignored: list[Array] = []
    boxes = 0
    for detection, truth in zip(detections, truths, strict=True):
        of_class = np.asarray(detection["labels"]) == label
        order = np.argsort(-np.asarray(detection["scores"])[of_class], kind="stable")[:MAX_DETECTIONS]
        mine = np.asarray(truth["labels"]) == label
        crowd = _crowd(truth)[mine]
        boxes += int((~crowd).sum())
        given = np.asarray(detection["boxes"], dtype=np.float64).reshape(-1, 4)[of_class][order]
        overlap = iou(given, np.asarray(truth["boxes"], dtype=np.float64).reshape(-1, 4)[mine], crowd)
        hit, skip = _match(overlap, crowd, thresholds)
        scores.append(np.asarray(detection["scores"])[of_class][order])
        hits.append(hit)
        ignored.append(skip)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hit, skip = np.concatenate(hits, 1)[:, order], np.concatenate(ignored, 1)[:, order]
    return float(np.mean([_area(hit[i][~skip[i]], boxes, points) for i in range(len(thresholds))]))


def iou(boxes: Array, others: Array, crowd: Array) -> Array:
    """Intersection over union; over the box itself where the other is a crowd."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    inside = np.clip(high - low, 0, None).prod(-1)
    own, other = (np.clip(each[:, 2:] - each[:, :2], 0, None).prod(-1) for each in (boxes, others))
    union = np.where(crowd[None], own[:, None], own[:, None] + other[None] - inside)
    return np.asarray(inside / np.maximum(union, 1e-12))


def _match(overlap: Array, crowd: Array, thresholds: Sequence[float]) -> tuple[Array, Array]:
    """(hits, ignored) by threshold and detection."""
    hits = np.zeros((len(thresholds), len(overlap)), dtype=bool)
    ignored = np.zeros_like(hits)
    for t, threshold in enumerate(thresholds):
        free = np.ones(overlap.shape[1], dtype=bool)
        for d, row in enumerate(overlap):
            best = _best(row, free & ~crowd, threshold)
            if best is not None:
                free[best] = False
                hits[t, d] = True
            else:
                ignored[t, d] = _best(row, crowd, threshold) is not None
    return hits, ignored


def _best(row: Array, allowed: Array, threshold: float) -> int | None:
    candidates = np.where(allowed, row, -1.0)
    # of equal overlaps COCO takes the last
    best = len(row) - 1 - int(np.argmax(candidates[::-1])) if len(row) else -1
    return best if best >= 0 and candidates[best] >= min(threshold, 1 - 1e-10) else None


def _area(hits: Array, boxes: int, points: int) -> float:
    if not boxes or not len(hits):
        return 0.0
    true, false = np.cumsum(hits), np.cumsum(~hits)
    recall = true / boxes
    precision = np.maximum.accumulate((true / (true + false))[::-1])[::-1]
    if points == 0:
        return float(np.sum(np.diff(np.concatenate([[0.0], recall])) * precision))
    at = np.searchsorted(recall, np.linspace(0, 1, points), side="left")
    return float(np.mean(np.concatenate([precision, [0.0]])[np.minimum(at, len(precision))]))


def read_thresholds(text: str | float) -> list[float]:
    """'0.5', or '0.5:0.05:0.95' for a range with both ends."""
    parts = [float(part) for part in str(text).split(":")]
    if len(parts) == 3:
        low, step, high = parts
        return [low + step * i for i in range(round((high - low) / step) + 1)]
    return parts


def as_arrays(items: Iterable[object]) -> list[Array]:
    return [np.asarray(item.detach().cpu() if hasattr(item, "detach") else item) for item in items]
