"""The networks that benchmarks/export.py exports, with batches to calibrate and to compare on.

What has no trained weights in reach gets a simple task, so that classes are told apart by margins: classifiers of
pictures are trained for a minute (which photograph); of the rest the last layer is fitted by least squares (which group
of words, how bright). Ties between random logits would say nothing about a runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from _models import LITE, cifar_images, cifar_resnet, efficientnet_lite0, import_timm, pictures, random_network

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _coco import load_pictures, load_yolox
from _yolox import YoloxNano

TIMM = {"resnet18": 1e-3, "mobilenetv2_100": 3e-3, "vit_tiny_patch16_224": 5e-4}  # rates of training
CIFAR = {"cifar_resnet20": 20, "cifar_resnet32": 32}
NETWORKS = (*TIMM, *CIFAR, "efficientnet_lite0", "yolox_nano", "unet", "lstm_tagger", "bert_tiny")
PHOTOGRAPHS, GROUPS, STEPS = 7, 10, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A network. Outputs are compared where the reference is at least so sure of its first class."""

    model: nn.Module
    calibration: Sequence[Tensor]
    test: Sequence[Tensor]
    least: float = -float("inf")


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = _block(3, 16), _block(16, 32), _block(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.back2, self.back1 = _block(64, 32), _block(32, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(F.max_pool2d(one, 2))
        three = self.three(F.max_pool2d(two, 2))
        two = self.back2(torch.cat([two, self.up2(three)], 1))
        return self.head(self.back1(torch.cat([one, self.up1(two)], 1)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


class Tagger(nn.Module):
    """Embedding, LSTM in both directions, a class for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, GROUPS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class Scores(nn.Module):
    """The scores of a detector: of each cell, how sure it is of each class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        rows = self.model(x)
        return rows[..., 4:5] * rows[..., 5:]


class First(nn.Module):
    """The first of what a model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)[0]


def case(name: str, data: Path, inputs: int) -> Case:
    """A network, and at least so many inputs to compare on (COCO: a tenth, each of thousands of cells)."""
    torch.manual_seed(0)
    if name == "efficientnet_lite0":  # its own weights
        crops, test = (_crops(part, count, 128, LITE) for part, count in (("calibration", 64), ("evaluation", inputs)))
        return Case(model=efficientnet_lite0(), calibration=crops, test=test)
    if name in CIFAR:
        crops, test = (
            list(cifar_images(part, data)[0].split(64)) for part in ("cifar10-calib-512", "cifar10-test-2000")
        )
        return Case(model=cifar_resnet(CIFAR[name], data), calibration=crops, test=test)
    if name == "yolox_nano":
        return _detector(data / "coco", inputs // 10)
    if name in ("lstm_tagger", "bert_tiny"):
        return _text(name, inputs)
    if name in TIMM:
        return _classifier(name, inputs)
    model, crops = UNet().eval(), _crops("calibration", 20 * PHOTOGRAPHS, 64)
    fit(model, model.head, crops, [_brightness(x) for x in crops])
    return Case(model=model, calibration=crops[:4], test=_crops("evaluation", 28, 64))


def _classifier(name: str, inputs: int) -> Case:
    """A network of timm that names the photograph of a crop, at 64 pixels: a tenth of the time, the same kernels."""
    import_timm()
    options = {"img_size": 64} if name.startswith("vit") else {}
    model = random_network(name, **options)
    model.reset_classifier(PHOTOGRAPHS)
    crops = _crops("calibration", 80 * PHOTOGRAPHS, 64)
    train(model, crops, [torch.arange(len(x)) % PHOTOGRAPHS for x in crops], TIMM[name])
    return Case(model=model, calibration=crops[:4], test=_crops("evaluation", inputs, 64))


def train(
    model: nn.Module, batches: Sequence[Tensor], labels: Sequence[Tensor], rate: float, steps: int = STEPS
) -> None:
    """Train a classifier: one cycle of AdamW."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 0.1
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for step in range(steps):
        at = step % len(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(batches[at]), labels[at]).backward()
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def fit(model: nn.Module, head: nn.Module, batches: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
    """Set a last layer (a linear, or a convolution of 1x1) to what tells the labels apart with the least squares."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    for batch in batches:
        model(batch)
    hook.remove()
    features = torch.cat([x.movedim(1, -1) if isinstance(head, nn.Conv2d) else x for x in seen]).flatten(0, -2).double()
    features = F.pad(features, (0, 1), value=1.0)
    wanted = 2 * F.one_hot(torch.cat([each.flatten() for each in labels]), len(head.bias)).double() - 1
    square = features.T @ features
    ridge = 1e-3 * square.diagonal().mean() * torch.eye(len(square))
    found = torch.linalg.solve(square + ridge, features.T @ wanted).T.float()
    head.weight.copy_(found[:, :-1].reshape(head.weight.shape))
    head.bias.copy_(found[:, -1])


def _crops(part: str, count: int, size: int, *statistics: object) -> list[Tensor]:
    """In batches of 14, each photograph twice."""
    options = {"statistics": statistics[0]} if statistics else {}
    return pictures(part, batches=-(-count // 14), batch_size=14, size=size, seed=0, **options)


def _brightness(images: Tensor) -> Tensor:
    """Four classes of pixels: how bright it is around them."""
    around = F.avg_pool2d(images.mean(1, keepdim=True), 5, 1, 2).squeeze(1)
    return torch.bucketize(around, torch.tensor((-1.0, 0.0, 1.0)))


def _detector(coco: Path, pictures_: int) -> Case:
    if not coco.is_dir():
        generator = torch.Generator().manual_seed(1)
        batches = [255 * torch.rand(2, 3, 416, 416, generator=generator) for _ in range(12)]
        return Case(model=Scores(YoloxNano()).eval(), calibration=batches[:4], test=batches[4:])
    calibration = [batch.float() for batch in load_pictures(coco, "train2017", 16).images.split(4)]
    test = load_pictures(coco, "val2017", min(pictures_, 128) // 4 * 4).batches(4)
    return Case(model=Scores(load_yolox(coco)).eval(), calibration=calibration, test=test, least=0.05)


def _text(name: str, inputs: int) -> Case:
    """Words come in groups of ten: the tagger names the group of each, BERT that of a sentence."""
    generator = torch.Generator().manual_seed(1)
    of_words = name == "lstm_tagger"
    count = -(-inputs // (24 if of_words else 1) // 20) + 16
    groups = [torch.randint(0, GROUPS, (20, 24 if of_words else 1), generator=generator) for _ in range(count)]
    tokens = [10 * group + torch.randint(0, 10, (20, 24), generator=generator) for group in groups]
    if of_words:
        model: nn.Module = Tagger().eval()
        fit(model, model.head, tokens[:16], groups[:16])
    else:
        import_timm()  # makes torchvision importable, which transformers looks for
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        config = BertConfig(vocab_size=1000, num_labels=GROUPS, return_dict=False, **sizes)
        model = First(BertForSequenceClassification(config)).eval()
        fit(model, model.model.classifier, tokens[:16], groups[:16])
    return Case(model=model, calibration=tokens[:4], test=tokens[16:])
