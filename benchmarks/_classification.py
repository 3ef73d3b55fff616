"""Classification recipes: CIFAR-10 ResNets and EfficientNet-Lite0, after calibration and after training.

CIFAR-10 has labels, so its score is top-1. For Lite0 there are only photographs, so its score is the outputs' SQNR.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from _distill import Recipe, choose
from _models import LITE, cifar_images, cifar_resnet, efficientnet_lite0, pictures
from _peers import (
    nncf_static,
    onnxruntime_file,
    onnxruntime_runner,
    openvino_runner,
    run,
    torch_ao_converted,
    torch_ao_static,
    torch_ao_training,
)
from _rows import Row, size_of
from _schemes import SCHEMES
from fxquant.numerics.affine import sqnr_db

HELD_OUT = 1000
# Where 8 bits lose little, small steps, of which held-out pictures choose; fewer bits are worth longer ones. Norms keep
# their statistics of real pictures.
SMALL = tuple(Recipe(lr=lr, range_lr=1e-3, epochs=2, freeze_norms=True) for lr in (1e-5, 3e-5, 1e-4))
MIDDLE = (Recipe(lr=3e-4, range_lr=1e-3, epochs=2, freeze_norms=True),)
LARGE = (Recipe(lr=1e-3, range_lr=1e-3, epochs=4, freeze_norms=True),)
RECIPES = {
    "W8A8": SMALL,
    "W8A8 power-of-two": SMALL,
    "W8A8 power-of-two, signed": SMALL,
    "W4A8": MIDDLE,
    "W4A8 power-of-two": MIDDLE,
    "W4A4": LARGE,
    "W4A4 power-of-two": LARGE,
}
LITE_RECIPES = {
    "W8A8 power-of-two": (Recipe(lr=1e-5, range_lr=1e-3, epochs=1, freeze_norms=True),),
    "W4A4": (Recipe(lr=1e-4, range_lr=1e-3, epochs=2, freeze_norms=True),),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Batches to calibrate and to test with, batches of so many epochs to train on, and those held out of them."""

    calibration: Sequence[Tensor]
    test: Sequence[Tensor]
    training: Callable[[int], Sequence[Tensor]]
    held_out: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How good outputs for the test batches are."""

    metric: str
    of: Callable[[Tensor], float]
    note: Callable[[Tensor], str] = lambda output: ""


class Classifier:
    """The rows of one network. Each method gives a row; calibrations are shared."""

    def __init__(
        self, name: str, model: nn.Module, data: Data, score: Score, recipes: Mapping[str, Sequence[Recipe]]
    ) -> None:
        self.name, self.model, self.data, self.score, self.recipes = name, model, data, score, recipes
        self.calibration = data.calibration
        self.runs: Path | None = None  # where training is kept, so that it can go on
        self.calibrated = functools.cache(lambda scheme: SCHEMES[scheme].prepared(model, data.calibration))
        self.frozen = functools.cache(lambda scheme: fq.freeze(self.calibrated(scheme)))

    def methods(self) -> dict[str, Callable[[], Row]]:
        found: dict[str, Callable[[], Row]] = {"float": lambda: self.row("float", self.model)}
        for scheme in SCHEMES:
            found[f"PTQ {scheme}"] = functools.partial(self.after_calibration, scheme)
            if scheme in self.recipes:
                found[f"QAT {scheme}"] = functools.partial(self.after_training, scheme)
        for name, make in self.peers().items():
            found[name] = lambda name=name, make=make: self.row(name, make())
        if "W8A8" in self.recipes:
            found["torch.ao FX, QAT"] = self.torch_ao_after_training
        return found

    def peers(self) -> dict[str, Callable[[], Callable[[Tensor], Tensor]]]:
        size = len(self.data.test[0])
        same = [batch for batch in torch.cat(list(self.calibration)).split(size) if len(batch) == size]
        return {
            "torch.ao FX": lambda: torch_ao_static(self.model, self.calibration),
            "ONNX Runtime": lambda: onnxruntime_runner(onnxruntime_file(self.model, self.calibration)),
            "NNCF": lambda: openvino_runner(nncf_static(self.model, same), torch.get_num_threads()),  # one size only
        }

    def timed(self) -> tuple[nn.Module, str]:
        """What goes on to the engines to be timed, and the row that its times belong to."""
        return self.calibrated("W8A8"), "PTQ W8A8"

    def after_calibration(self, scheme: str) -> Row:
        return self.row(f"PTQ {scheme}", fq.convert_fx(self.frozen(scheme), engine="reference"))

    def after_training(self, scheme: str) -> Row:
        def make(recipe: Recipe) -> nn.Module:
            example = self.calibration[0][:2]
            prepared = SCHEMES[scheme].training_from(copy.deepcopy(self.model), self.frozen(scheme), example)
            if recipe.freeze_norms:
                fq.freeze_bn_stats(prepared)
            return prepared

        recipe, prepared = self.trained(make, scheme, scheme, self.frozen(scheme))
        return self.row(f"QAT {scheme}", fq.convert_fx(prepared, engine="reference"), recipe)

    def torch_ao_after_training(self) -> Row:
        from torch.ao.nn.intrinsic.qat import freeze_bn_stats

        def make(recipe: Recipe) -> nn.Module:
            prepared = torch_ao_training(self.model, self.calibration[0])
            return prepared.apply(freeze_bn_stats) if recipe.freeze_norms else prepared

        recipe, prepared = self.trained(make, "W8A8", "torch.ao")
        return self.row("torch.ao FX, QAT", torch_ao_converted(prepared), recipe)

    def trained(
        self, make: Callable[[Recipe], nn.Module], scheme: str, what: str, calibrated: nn.Module | None = None
    ) -> tuple[str, nn.Module]:
        files = None
        if self.runs is not None:
            files = self.runs / f"{self.name} {what}".replace(" ", "_")
            files.mkdir(parents=True, exist_ok=True)
        data = self.data
        return choose(make, self.model, self.recipes[scheme], data.training, data.held_out, files, calibrated)

    def row(self, method: str, model: Callable[[Tensor], Tensor], note: str = "") -> Row:
        output = run(model, self.data.test)
        return Row(
            model=self.name,
            method=method,
            metric=self.score.metric,
            value=self.score.of(output),
            size=size_of(model),
            note="; ".join(part for part in (self.score.note(output), note) if part),
        )


def cifar(depth: int, data: Path) -> Classifier:
    """A ResNet on CIFAR-10: top-1. It is trained on 4,000 pictures; 1,000 choose the recipe."""
    images, labels = cifar_images("cifar10-test-2000", data)
    teach = cifar_images("cifar10-train-5000", data)[0]
    given = Data(
        calibration=cifar_images("cifar10-calib-512", data)[0].split(64),
        test=images.split(250),
        training=lambda epochs: augmented(teach[HELD_OUT:], 50, epochs),
        held_out=teach[:HELD_OUT].split(250),
    )
    top1 = Score(metric="top-1", of=lambda output: 100.0 * float((output.argmax(1) == labels).double().mean()))
    return Classifier(f"ResNet-{depth}, CIFAR-10", cifar_resnet(depth, data), given, top1, RECIPES)


def augmented(images: Tensor, batch: int, epochs: int) -> list[Tensor]:
    """Shuffled batches of flips and shifts by up to four pixels, half of them mixed with others; from a fixed seed.

    Of a mixture the teacher is unsure, as it is of new pictures.
    """
    generator = torch.Generator().manual_seed(0)
    padded = F.pad(images, (4, 4, 4, 4))
    found = []
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=generator).split(batch):
            top, left = torch.randint(0, 9, (2,), generator=generator).tolist()
            crop = padded[index, :, top : top + 32, left : left + 32]
            flip = torch.rand(len(index), generator=generator) < 0.5
            crop = torch.where(flip.reshape(-1, 1, 1, 1), crop.flip(3), crop)
            share = (torch.rand(len(index), generator=generator) - 0.5).clamp_min(0).reshape(-1, 1, 1, 1)
            found.append(torch.lerp(crop, crop.roll(1, 0), share))
    return found


def lite0() -> Classifier:
    """EfficientNet-Lite0 on crops of photographs, halves of them for testing: there are no labels."""
    model = efficientnet_lite0()
    # blocks that are left out at random would make the training graph another; a short training needs none of that
    model._global_params = model._global_params._replace(drop_connect_rate=0.0)
    crops = functools.partial(pictures, batch_size=16, statistics=LITE)
    given = Data(
        calibration=crops("calibration", batches=4, seed=0),
        test=crops("evaluation", batches=4, seed=0),
        training=lambda epochs: crops("calibration", batches=20 * epochs, seed=1),
        held_out=crops("calibration", batches=2, seed=2),
    )
    wanted = run(model, given.test)

    def same_class(output: Tensor) -> str:
        return f"the class of float in {100.0 * float((output.argmax(1) == wanted.argmax(1)).double().mean()):.0f}%"

    score = Score(metric="SQNR dB", of=lambda output: sqnr_db(wanted, output), note=same_class)
    return Classifier("EfficientNet-Lite0", model, given, score, LITE_RECIPES)
