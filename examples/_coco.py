"""The pictures and boxes of `--data DIR`, as YOLOX wants them, and COCO's average precision by pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _yolox import SIZE, YoloxNano, decode, suppress
from safetensors.torch import load_file
from torch import Tensor

FILES = ("yolox-nano.safetensors", "train2017", "train2017.json", "val2017", "val2017.json")
GREY = 114


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    """Letterboxed pictures (n, 3, 416, 416), BGR from 0 to 255, and the boxes of each: class, x0, y0, x1, y1."""

    images: Tensor
    boxes: list[list[list[float]]]

    def batches(self, size: int) -> list[Tensor]:
        return [batch.float() for batch in self.images.split(size)]


def load_pictures(data: Path, part: str, most: int | None = None) -> Pictures:
    """`part` is "train2017" or "val2017"; boxes are in pixels of the letterbox."""
    from PIL import Image

    images, boxes = [], []
    for row in json.loads((data / f"{part}.json").read_text())[:most]:
        with Image.open(data / part / row["file"]) as file:
            picture = file.convert("RGB")
        factor = SIZE / max(picture.size)
        shape = tuple(round(side * factor) for side in picture.size)
        canvas = np.full((SIZE, SIZE, 3), GREY, np.uint8)
        canvas[: shape[1], : shape[0]] = np.asarray(picture.resize(shape, Image.Resampling.BILINEAR))
        images.append(torch.from_numpy(canvas[..., ::-1].copy()).permute(2, 0, 1))
        boxes.append([[kind, *(factor * edge for edge in edges)] for kind, *edges in row["boxes"]])
    return Pictures(images=torch.stack(images), boxes=boxes)


def load_yolox(data: Path) -> YoloxNano:
    """YOLOX-Nano with its trained weights, in eval mode."""
    model = YoloxNano()
    model.load_state_dict(load_file(data / "yolox-nano.safetensors"))
    return model.eval()


@torch.no_grad()
def detect(model: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    """The detections in every picture."""
    found = []
    for batch in batches:
        found += [suppress(box, score) for box, score in zip(*decode(model(batch)), strict=True)]
    return found


def average_precision(found: Sequence[Tensor], boxes: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """(mAP@0.5:0.95, AP50) in points, by pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = [
        {"image_id": image, "category_id": int(kind), "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0}
        | {"area": (x1 - x0) * (y1 - y0)}
        for image, rows in enumerate(boxes)
        for kind, x0, y0, x1, y1 in rows
    ]
    answers = [
        {"image_id": image, "category_id": int(kind), "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score}
        for image, rows in enumerate(found)
        for x0, y0, x1, y1, score, kind in rows.tolist()
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": image} for image in range(len(boxes))],
            "categories": [{"id": kind} for kind in range(80)],
            "annotations": [{"id": index, **row} for index, row in enumerate(truth, start=1)],
        }
        coco.createIndex()
        if not answers:
            return 0.0, 0.0
        judge = COCOeval(coco, coco.loadRes(answers), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return 100.0 * float(judge.stats[0]), 100.0 * float(judge.stats[1])
