"""Training with the float network as teacher: labels would say little, for it was trained on these very pictures.

For the same reason it is nearly certain of all of them, so that its probabilities say little, too: they are softened.
Which of several recipes is taken, or whether the calibrated model stays as it is, is chosen on pictures that were held
out of training; test pictures are seen once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from _peers import run

TEMPERATURE = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A way to train: Adam with a falling rate. Batch norms keep their statistics with `freeze_norms`."""

    lr: float
    range_lr: float
    epochs: int
    freeze_norms: bool

    def __str__(self) -> str:
        norms = ", norms frozen" if self.freeze_norms else ""
        return f"{self.epochs} epochs, Adam {self.lr:g}, ranges {self.range_lr:g}{norms}"


def divergence(output: Tensor, wanted: Tensor) -> Tensor:
    """Of softened probabilities."""
    mine, theirs = (F.log_softmax(logits / TEMPERATURE, 1) for logits in (output, wanted))
    return F.kl_div(mine, theirs, log_target=True, reduction="batchmean")


def distill(
    prepared: nn.Module, teacher: nn.Module, recipe: Recipe, batches: Sequence[Tensor], file: Path | None = None
) -> None:
    """Train it on these batches; it ends in eval mode. With a file, the run is kept there and goes on from there."""
    optimizer = torch.optim.Adam(fq.parameter_groups(prepared, recipe.lr, recipe.range_lr, 0.0))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 * (1 + math.cos(math.pi * i / len(batches))))
    parts = {"model": prepared, "optimizer": optimizer, "schedule": schedule}
    done = 0
    if file is not None and file.exists():
        saved = torch.load(file)
        done = saved["done"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for batch in batches[done:]:
        with torch.no_grad():
            wanted = teacher(batch)
        optimizer.zero_grad()
        divergence(prepared(batch), wanted).backward()
        optimizer.step()
        schedule.step()
        done += 1
        if file is not None and (done % 20 == 0 or done == len(batches)):
            torch.save({"done": done, **{name: part.state_dict() for name, part in parts.items()}}, file)
    prepared.eval()


def choose(
    make: Callable[[Recipe], nn.Module],
    teacher: nn.Module,
    recipes: Sequence[Recipe],
    training: Callable[[int], Sequence[Tensor]],
    held_out: Sequence[Tensor],
    files: Path | None = None,
    calibrated: nn.Module | None = None,
) -> tuple[str, nn.Module]:
    """The recipe that ends nearest to the teacher on held-out pictures, and what it trained.

    `make(recipe)` gives a model to train, `training(epochs)` the batches. Runs are kept in the directory `files`. If no
    recipe comes nearer than `calibrated`, that is taken.
    """
    wanted = run(teacher, held_out)

    def judged(name: str, model: nn.Module) -> tuple[float, str, nn.Module]:
        loss = float(divergence(run(model, held_out), wanted))
        print(f"    {name}: {loss:.5f} from the teacher on held-out pictures", flush=True)
        return loss, name, model

    found = [] if calibrated is None else [judged("as calibrated", calibrated)]
    for recipe in recipes:
        prepared = make(recipe)
        file = None if files is None else files / f"{recipe}.pt".replace(" ", "_")
        distill(prepared, teacher, recipe, training(recipe.epochs), file)
        found.append(judged(str(recipe), prepared))
    return min(found, key=lambda each: each[0])[1:]
