"""Classification recipes: CIFAR-10 ResNets after calibration and after training, EfficientNet-Lite0 after calibration.

Training has the float network as teacher: labels would say little, for it was trained on these very pictures. Which
learning rates are used is chosen on pictures of the training set that are held out; the test pictures are seen once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from _models import LITE, cifar_images, cifar_resnet, efficientnet_lite0, pictures
from _peers import nncf_static, onnxruntime_file, onnxruntime_runner, openvino_runner, run, torch_ao_static
from _rows import Row, size_of
from fxquant.numerics.affine import sqnr_db

HELD_OUT = 1000
_U8 = fq.Spec(signed=False, symmetric=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """Grids for calibration and for training, and the target that has them."""

    post: fq.QConfig
    training: fq.QConfig | None = None
    target: str | None = None


def _weights(bits: int) -> fq.Spec:
    return fq.Spec(bits=bits, granularity="per_channel")


SCHEMES = {
    "W8A8": Scheme(post=fq.QConfig(activation=_U8, weight=_weights(8))),
    "W8A8 power-of-two": Scheme(
        post=fq.QConfig(activation=fq.Spec(scale="pow2"), weight=fq.Spec(scale="pow2")),
        training=fq.QConfig(activation=fq.Spec(learn="tqt"), weight=fq.Spec(learn="tqt")),
        target="npu",
    ),
    "W4A8": Scheme(
        post=fq.QConfig(activation=_U8, weight=_weights(4)),
        training=fq.QConfig(activation=_U8.with_(learn="lsq"), weight=_weights(4).with_(learn="lsq")),
    ),
    "W4A4": Scheme(
        post=fq.QConfig(activation=_U8.with_(bits=4), weight=_weights(4)),
        training=fq.QConfig(activation=_U8.with_(bits=4, learn="lsq"), weight=_weights(4).with_(learn="lsq")),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A way to train. Batch norms keep their statistics with `freeze_norms`."""

    lr: float
    range_lr: float
    epochs: int
    freeze_norms: bool

    def __str__(self) -> str:
        return f"{self.epochs} epochs, Adam {self.lr:g}, ranges {self.range_lr:g}"


CANDIDATES = {
    "W8A8 power-of-two": (
        Recipe(lr=1e-5, range_lr=1e-4, epochs=1, freeze_norms=True),
        Recipe(lr=1e-4, range_lr=1e-3, epochs=1, freeze_norms=True),
    ),
    "W4A8": (Recipe(lr=3e-4, range_lr=1e-3, epochs=1, freeze_norms=False),),
    "W4A4": (Recipe(lr=1e-3, range_lr=1e-3, epochs=3, freeze_norms=False),),
}


def calibrated(model: nn.Module, scheme: Scheme, batches: Sequence[Tensor]) -> nn.Module:
    target = {} if scheme.target is None else {"target": scheme.target}
    return fq.calibrate(fq.prepare_fx(model, {"": scheme.post}, (batches[0],), **target), batches)


def trained(model: nn.Module, post: nn.Module, scheme: Scheme, recipe: Recipe, images: Tensor) -> nn.Module:
    """The prepared model after training on these pictures, in eval mode."""
    target = {} if scheme.target is None else {"target": scheme.target}
    prepared = fq.prepare_qat_fx(copy.deepcopy(model).train(), {"": scheme.training}, (images[:2],), **target)
    prepared.load_state_dict(post.state_dict())
    if recipe.freeze_norms:
        fq.freeze_bn_stats(prepared)
    batches = augmented(images, 50, recipe.epochs)
    optimizer = torch.optim.Adam(fq.parameter_groups(prepared, recipe.lr, recipe.range_lr, 0.0))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 * (1 + math.cos(math.pi * i / len(batches))))
    for batch in batches:
        with torch.no_grad():
            wanted = F.log_softmax(model(batch), 1)
        optimizer.zero_grad()
        divergence(prepared(batch), wanted).backward()
        optimizer.step()
        schedule.step()
    return prepared.eval()


def divergence(output: Tensor, wanted: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(output, 1), wanted, log_target=True, reduction="batchmean")


def augmented(images: Tensor, batch: int, epochs: int) -> list[Tensor]:
    """Shuffled batches of flips and shifts by up to four pixels, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    padded = F.pad(images, (4, 4, 4, 4))
    found = []
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=generator).split(batch):
            top, left = torch.randint(0, 9, (2,), generator=generator).tolist()
            crop = padded[index, :, top : top + 32, left : left + 32]
            flip = torch.rand(len(index), generator=generator) < 0.5
            found.append(torch.where(flip.reshape(-1, 1, 1, 1), crop.flip(3), crop))
    return found


def choose(model: nn.Module, post: nn.Module, name: str, images: Tensor) -> tuple[Recipe, nn.Module]:
    """The recipe that comes closest to the teacher on held-out training pictures, and what it trained."""
    held_out, rest = images[:HELD_OUT], images[HELD_OUT:]
    wanted = F.log_softmax(run(model, list(held_out.split(250))), 1)
    best: tuple[float, Recipe, nn.Module] | None = None
    for recipe in CANDIDATES[name]:
        prepared = trained(model, post, SCHEMES[name], recipe, rest)
        loss = float(divergence(run(prepared, list(held_out.split(250))), wanted))
        if best is None or loss < best[0]:
            best = (loss, recipe, prepared)
    assert best is not None
    return best[1], best[2]


class Cifar:
    """The rows of one ResNet. Each method gives a row; calibration is shared."""

    def __init__(self, depth: int, data: Path) -> None:
        self.name, self.model = f"ResNet-{depth}, CIFAR-10", cifar_resnet(depth, data)
        self.calibration = list(cifar_images("cifar10-calib-512", data)[0].split(64))
        self.train = cifar_images("cifar10-train-5000", data)[0]
        self.images, self.labels = cifar_images("cifar10-test-2000", data)
        self.posts: dict[str, nn.Module] = {}

    def methods(self) -> dict[str, Callable[[], Row]]:
        found: dict[str, Callable[[], Row]] = {"float": lambda: self.row("float", self.model)}
        for name, scheme in SCHEMES.items():
            found[f"PTQ {name}"] = lambda name=name: self.row(f"PTQ {name}", self.converted(self.post(name)))
            if scheme.training is not None:
                found[f"QAT {name}"] = lambda name=name: self.qat(name)
        example = self.calibration
        found["torch.ao FX"] = lambda: self.row("torch.ao FX", torch_ao_static(self.model, example))
        found["ONNX Runtime"] = lambda: self.row(
            "ONNX Runtime", onnxruntime_runner(onnxruntime_file(self.model, example))
        )
        found["NNCF"] = lambda: self.row("NNCF", openvino_runner(nncf_static(self.model, example), 2))
        return found

    def post(self, name: str) -> nn.Module:
        if name not in self.posts:
            self.posts[name] = calibrated(self.model, SCHEMES[name], self.calibration)
        return self.posts[name]

    def converted(self, prepared: nn.Module) -> nn.Module:
        return fq.convert_fx(prepared, engine="reference")

    def qat(self, name: str) -> Row:
        recipe, prepared = choose(self.model, self.post(name), name, self.train)
        return self.row(f"QAT {name}", self.converted(prepared), f"{recipe}")

    def row(self, method: str, model: Callable[[Tensor], Tensor], note: str = "") -> Row:
        output = run(model, list(self.images.split(250)))
        top1 = 100.0 * float((output.argmax(1) == self.labels).double().mean())
        return Row(model=self.name, method=method, metric="top-1", value=top1, size=size_of(model), note=note)


class Lite:
    """EfficientNet-Lite0 on natural pictures: there are no labels, so the metric is the outputs' SQNR."""

    name = "EfficientNet-Lite0"

    def __init__(self) -> None:
        self.model = efficientnet_lite0()
        options = {"batches": 4, "batch_size": 16, "statistics": LITE, "seed": 0}
        self.calibration, self.evaluation = pictures("calibration", **options), pictures("evaluation", **options)
        self.wanted = run(self.model, self.evaluation)

    def methods(self) -> dict[str, Callable[[], Row]]:
        found: dict[str, Callable[[], Row]] = {}
        for name in ("W8A8", "W8A8 power-of-two", "W4A8"):
            found[f"PTQ {name}"] = lambda name=name: self.row(
                f"PTQ {name}",
                fq.convert_fx(calibrated(self.model, SCHEMES[name], self.calibration), engine="reference"),
            )
        found["torch.ao FX"] = lambda: self.row("torch.ao FX", torch_ao_static(self.model, self.calibration))
        found["ONNX Runtime"] = lambda: self.row(
            "ONNX Runtime", onnxruntime_runner(onnxruntime_file(self.model, self.calibration))
        )
        return found

    def row(self, method: str, model: Callable[[Tensor], Tensor]) -> Row:
        output = run(model, self.evaluation)
        same = 100.0 * float((output.argmax(1) == self.wanted.argmax(1)).double().mean())
        value = sqnr_db(self.wanted, output)
        note = f"the class of float in {same:.0f}%"
        return Row(model=self.name, method=method, metric="SQNR dB", value=value, size=size_of(model), note=note)
