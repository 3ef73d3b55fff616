"""`train_qat`: a small training loop for those who have none.

AdamW with a cosine schedule after a short warm-up, learned ranges at a rate of their own and without weight decay, the
best state by validation loss or metric, and a checkpoint after every epoch from which a run goes on bit-equal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

from fxquant.config.check_fields import check_arguments
from fxquant.errors import CalibrationError, ConfigError, StageError
from fxquant.flows.calibrate import run_batch
from fxquant.flows.checkpoint import Resumable, resume, write_checkpoint
from fxquant.flows.freezing import FreezeSchedule
from fxquant.graph.check_model import refuse_other
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.numerics.distributed.agree import agree_on_mean, world_size
from fxquant.numerics.learned.table import RANGES
from fxquant.numerics.observers.watcher import Watcher
from fxquant.progress import count_batches

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What `train_qat` gives: the model with its best state, that state's score, and the score of every epoch."""

    model: nn.Module = field(repr=False)
    best: float
    history: tuple[float, ...]


def train_qat(
    prepared: nn.Module,
    data: Iterable[Sequence[object]],
    loss: Loss = nn.functional.cross_entropy,
    *,
    epochs: int = 2,
    lr: float = 1e-3,
    range_lr: float | None = None,
    weight_decay: float = 1e-4,
    evaluate: Callable[[nn.Module], float] | None = None,
    observers_until: float = 0.8,
    bn_stats_until: float | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train a model from `prepare_qat_fx` on batches `(inputs..., target)`, with `loss(output, target)`.

    `evaluate(model)` gives a score in eval mode, the higher the better; without it the negative mean loss counts.
    It takes `epochs` passes over `data` with AdamW: at the rate `lr`, which goes down along a cosine, `range_lr` for
    learned ranges (the same by default), and `weight_decay`. `progress` shows a bar, in a terminal. Observers are
    frozen after the share `observers_until` of all steps, batch norm statistics after `bn_stats_until`.
    With `checkpoint`, the run is saved there after each epoch, and goes on from there if the file exists. Each rank of
    torch.distributed is to give its own share of the data and a model in DistributedDataParallel.

    Example:
        >>> labelled = [(x, torch.tensor([0, 1])) for x in loader]
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> result = fq.train_qat(prepared, labelled, epochs=1, progress=False)
    """
    if not any(stage_of(region) is Stage.PREPARED for _, region in regions(prepared)):
        raise StageError("train_qat needs a model from prepare_qat_fx.")
    if any(isinstance(module, Watcher) for module in prepared.modules()):
        raise StageError("train_qat needs a model from prepare_qat_fx; one from prepare_fx rounds nothing in training.")
    if epochs < 1 or lr <= 0:
        raise ConfigError(f"train_qat(epochs={epochs}, lr={lr}): expected at least one epoch and a positive rate.")
    batches = data if isinstance(data, Sized) and count_batches(data) is not None else list(data)
    if not len(batches):
        raise CalibrationError("train_qat got no batches. Give an iterable of (inputs, target).")
    total = epochs * len(batches)
    optimizer = torch.optim.AdamW(parameter_groups(prepared, lr, range_lr or lr, weight_decay))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _cosine(step, total))
    bn_stats = None if bn_stats_until is None else int(bn_stats_until * total)
    freezing = FreezeSchedule(prepared, observers=int(observers_until * total), bn_stats=bn_stats)
    run = _Run(prepared, optimizer, schedule, freezing, None if checkpoint is None else Path(checkpoint))
    run.resume()
    with Progress(disable=not progress) as bar:
        task = bar.add_task("training", total=total, completed=len(run.history) * len(batches))
        for epoch in range(len(run.history), epochs):
            losses = []
            for value in run.train_epoch(batches, loss):
                losses.append(value)
                bar.update(task, advance=1, description=f"epoch {epoch + 1}/{epochs}, loss {value:.4f}")
            prepared.eval()
            score = evaluate(prepared) if evaluate is not None else -sum(losses) / len(losses)
            # all ranks keep the same epoch
            run.finish_epoch(agree_on_mean(torch.tensor(score, dtype=torch.float64)).item())
    prepared.load_state_dict(run.best_state)
    return TrainResult(model=prepared.eval(), best=max(run.history), history=tuple(run.history))


def parameter_groups(model: nn.Module, lr: float, range_lr: float, weight_decay: float) -> list[dict[str, object]]:
    """Groups for an optimizer: weights at the rate `lr`; vectors, which do not decay; and learned ranges.

    `weight_decay` is that of the weights, `range_lr` the rate of the ranges.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> groups = fq.parameter_groups(prepared, lr=1e-3, range_lr=1e-2, weight_decay=1e-4)
        >>> optimizer = torch.optim.AdamW(groups)
    """
    refuse_other(model, "parameter_groups")
    check_arguments(parameter_groups, at_least=0, lr=lr, range_lr=range_lr, weight_decay=weight_decay)
    weights: list[Tensor] = []
    vectors: list[Tensor] = []
    ranges: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.rpartition(".")[2] in RANGES and ("weight_fq." in name or "quantizers" in name):
            ranges.append(parameter)
        else:
            (weights if parameter.dim() > 1 else vectors).append(parameter)
    return [
        {"params": weights, "lr": lr, "weight_decay": weight_decay},
        {"params": vectors, "lr": lr, "weight_decay": 0.0},
        {"params": ranges, "lr": range_lr, "weight_decay": 0.0},
    ]


def _cosine(step: int, total: int) -> float:
    warmup = max(1, total // 20)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


class _Run:
    """The state of a run: what a checkpoint holds."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        freezing: FreezeSchedule,
        path: Path | None,
    ) -> None:
        self.model, self.optimizer, self.schedule, self.freezing = model, optimizer, schedule, freezing
        self.parts: dict[str, Resumable] = {
            "model": model,
            "optimizer": optimizer,
            "schedule": schedule,
            "freezing": freezing,
        }
        self.path = path
        self.history: list[float] = []
        self.best_state: Mapping[str, Any] = {}

    def resume(self) -> None:
        if self.path is None or not self.path.exists():
            return
        self.history, self.best_state = resume(self.path, self.parts)

    def train_epoch(self, batches: Iterable[Sequence[object]], loss: Loss) -> Iterator[float]:
        """Take a step with each batch, and give its loss."""
        self.model.train()
        for batch in batches:
            *inputs, target = batch
            self.optimizer.zero_grad(set_to_none=True)
            value = loss(run_batch(self.model, inputs), target)
            value.backward()
            self.optimizer.step()
            self.schedule.step()
            self.freezing.step()
            yield value.item()

    def finish_epoch(self, score: float) -> None:
        if not self.history or score > max(self.history):
            self.best_state = copy.deepcopy(self.parts["model"].state_dict())
        self.history.append(score)
        if self.path is None or _rank() != 0:
            return
        write_checkpoint(self.path, self.parts, self.history, self.best_state)


def _rank() -> int:
    return torch.distributed.get_rank() if world_size() > 1 else 0
