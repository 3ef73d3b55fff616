"""A RetinaNet of parts that takes a dict: losses from pictures with boxes in training, predictions from others in eval.

Its `_post_process` is wrapped: it branches on `self.training`, calls modules, and reads entries that only training has.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import InputError
from fxquant.graph.region import Region
from zoo import conv_bn_relu

CLASSES = 3


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 8, stride=2)

    def forward(self, x: Tensor) -> list[Tensor]:
        fine = self.stem(x)
        return [fine, self.down(fine)]


class Neck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.ModuleList([nn.Conv2d(8, 8, 1) for _ in range(2)])

    def forward(self, levels: list[Tensor]) -> list[Tensor]:
        fine, coarse = (conv(level) for conv, level in zip(self.lateral, levels, strict=True))
        return [fine + F.interpolate(coarse, scale_factor=2.0), coarse]


class Head(nn.Module):
    num_classes = CLASSES

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.cls, self.reg = conv_bn_relu(8, 8), nn.Conv2d(8, CLASSES, 1), nn.Conv2d(8, 4, 1)

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        towers = [self.tower(level) for level in levels]
        return [self.cls(tower) for tower in towers], [self.reg(tower) for tower in towers]


class Anchors(nn.Module):
    def forward(self, levels: list[Tensor]) -> list[Tensor]:
        grids = []
        for level in levels:
            y, x = torch.meshgrid([torch.arange(level.shape[2]), torch.arange(level.shape[3])], indexing="ij")
            grids.append(torch.stack([x, y, x + 1, y + 1], -1).reshape(-1, 4).float())
        return grids


class Targets(nn.Module):
    """Each anchor takes the class of the first box of its picture."""

    def forward(self, anchors: list[Tensor], labels: list[Tensor]) -> dict[str, Tensor]:
        count = sum(len(grid) for grid in anchors)
        wanted = torch.stack([label[0] for label in labels]).unsqueeze(1).expand(-1, count, -1)
        return {"reg": wanted[..., :4], "cls": wanted[..., 4].long()}


class Decode(nn.Module):
    """The best box of each picture; a layer of its own refines the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.refine = nn.Linear(CLASSES, CLASSES)

    def forward(
        self, anchors: list[Tensor], scores: list[Tensor], boxes: list[Tensor], shapes: list[Tensor]
    ) -> list[Tensor]:
        flat = self.refine(torch.cat([s.flatten(2).transpose(1, 2) for s in scores], 1))
        where = torch.cat([b.flatten(2).transpose(1, 2) for b in boxes], 1) + torch.cat(anchors)
        found = []
        for row, box, shape in zip(flat, where, shapes, strict=True):
            best = row.max(-1).values.argmax()
            found.append(torch.minimum(box[best], shape.repeat(2).float()))
        return found


class RetinaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.neck, self.head = Backbone(), Neck(), Head()
        self.anchors, self.targets, self.post_process = Anchors(), Targets(), Decode()
        self.loss_cls, self.loss_reg = nn.CrossEntropyLoss(), nn.SmoothL1Loss()

    def forward(self, data: dict[str, Any]) -> Any:
        levels = self.backbone(data["img"])
        levels = self.neck(levels) if self.neck else levels
        scores, boxes = self.head(levels)
        return self._post_process(data, levels, scores, boxes)

    @fq.wrap()
    def _post_process(
        self, data: dict[str, Any], levels: list[Tensor], scores: list[Tensor], boxes: list[Tensor]
    ) -> Any:
        anchors = self.anchors(levels)
        if self.training:
            flat, where = self.rearrange(scores, self.head.num_classes), self.rearrange(boxes, 4)
            pairs = zip(data["gt_bboxes"], data["gt_classes"], strict=True)
            labels = self.targets(anchors, [torch.cat([box, kind[:, None]], -1).float() for box, kind in pairs])
            return {
                "cls_loss": self.loss_cls(flat.flatten(0, 1), labels["cls"].flatten()),
                "reg_loss": self.loss_reg(where, labels["reg"]),
            }
        shapes = [torch.tensor(shape) for shape in data["resized_shape"]]
        assert "pred_bboxes" not in data, "the predictions are there already"
        data["pred_bboxes"] = self.post_process(anchors, scores, boxes, shapes)
        return data

    def rearrange(self, levels: list[Tensor], num: int) -> Tensor:
        return torch.cat([t.permute(0, 2, 3, 1).reshape(t.shape[0], -1, num) for t in levels], 1)


class Labelled(nn.Module):
    """The same without wrap: `forward` branches on the mode, or on whether there are labels."""

    def __init__(self, by_mode: bool) -> None:
        super().__init__()
        self.by_mode, self.features, self.head = by_mode, conv_bn_relu(3, 8), nn.Conv2d(8, CLASSES, 1)

    def forward(self, data: dict[str, Any]) -> Any:
        scores = self.head(self.features(data["img"])).mean((2, 3))
        if self.training if self.by_mode else "gt_classes" in data:
            return {"loss": F.cross_entropy(scores, torch.cat([kind[:1] for kind in data["gt_classes"]]))}
        return {"scores": scores}


def sample(count: int, with_boxes: bool, size: int = 16) -> dict[str, Any]:
    data: dict[str, Any] = {"img": torch.randn(count, 3, size, size), "resized_shape": [(size, size)] * count}
    if with_boxes:
        data["gt_bboxes"] = [torch.rand(1 + index, 4) * size for index in range(count)]
        data["gt_classes"] = [torch.randint(CLASSES, (1 + index,)) for index in range(count)]
    return data


def close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=0.1 * float(b.abs().max())) for a, b in zip(ours, theirs, strict=True))


def train(prepared: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
    for step in range(steps):
        losses = prepared(sample(2 + step % 2, True))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()


def test_post_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = RetinaNet().eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (sample(2, False),))
    assert isinstance(prepared, Region)
    for count in (2, 3):
        prepared(sample(count, count == 3))
    quantized = fq.convert_fx(prepared)
    int8 = {row.path for row in fq.explain(quantized) if row.status == "int8"}
    assert {"backbone.stem.0", "neck.lateral.0", "head.tower.0", "head.reg", "post_process.refine"} <= int8
    data = sample(3, False)
    found = quantized(dict(data))
    assert list(found) == [*data, "pred_bboxes"]
    assert len(found["pred_bboxes"]) == 3
    again = fq.load(fq.save(quantized, tmp_path / "model.fq"), RetinaNet())
    assert all(map(torch.equal, again(dict(data))["pred_bboxes"], found["pred_bboxes"]))


def test_training() -> None:
    torch.manual_seed(0)
    prepared = fq.prepare_qat_fx(RetinaNet().train(), fq.get_default_qat_qconfig_mapping("x86"), (sample(2, True),))
    assert isinstance(prepared, Region)
    assert fq.explain(prepared).int8_share == 1.0
    train(prepared)
    prepared.eval()
    data = sample(3, False)
    ours = prepared(dict(data))["pred_bboxes"]
    theirs = fq.convert_fx(prepared)(dict(data))["pred_bboxes"]
    assert len(ours) == 3
    assert close(theirs, [box.detach() for box in ours])
    with pytest.raises(InputError, match="'data' has no 'img'"):
        prepared({"image": data["img"]})


@pytest.mark.parametrize("by_mode", [True, False])
def test_labels_in_training_only_without_wrap(by_mode: bool) -> None:
    torch.manual_seed(0)
    mapping = fq.get_default_qat_qconfig_mapping("x86")
    prepared = fq.prepare_qat_fx(Labelled(by_mode).train(), mapping, (sample(2, True),))
    assert fq.explain(prepared).int8_share == 1.0
    train(prepared)
    prepared.eval()
    data = sample(2, False)
    converted = fq.convert_fx(prepared)
    assert close([converted(data)["scores"]], [prepared(data)["scores"].detach()])


def test_labels_that_eval_does_not_read_may_be_in_the_calibration_data() -> None:
    prepared = fq.prepare_fx(Labelled(True).eval(), fq.get_default_qconfig_mapping("x86"), (sample(2, False),))
    for with_boxes in (True, False):
        prepared(sample(3, with_boxes))
    data = sample(3, True)
    theirs = fq.convert_fx(prepared)(data)["scores"]
    for engine in ("onnxruntime", "openvino"):
        if importlib.util.find_spec(engine) is not None:
            converted = fq.convert_fx(prepared, engine=engine)  # type: ignore[arg-type]
            assert close([converted(data)["scores"]], [theirs])
