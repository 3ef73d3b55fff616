"""The training loop that a file describes, for quantization-aware training without code of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fxquant.config_file.evaluation import split_batch
from fxquant.config_file.sections.quantization import Distillation, Train
from fxquant.errors import ConfigError

Loss = Callable[[Tensor, Any, Callable[[], Tensor]], Tensor]


def train(section: Train, prepared: nn.Module, float_model: nn.Module, data: Iterable[object]) -> None:
    """Train a prepared model, in place; the float model is the teacher, where there is one."""
    optimizer, loss = _optimizer(section, prepared), _loss(section)
    last = section.end_epoch if section.end_epoch is not None else section.start_epoch + section.epoch
    prepared.train()
    for _ in range(section.start_epoch, last):
        steps = 0
        for batch in itertools.islice(data, section.iteration):
            args, kwargs, labels = split_batch(batch, float_model)
            optimizer.zero_grad(set_to_none=True)
            output = prepared(*args, **kwargs)

            def teacher(args: tuple[object, ...] = args, kwargs: dict[str, object] = kwargs) -> Tensor:
                with torch.no_grad():
                    found = float_model(*args, **kwargs)
                assert isinstance(found, Tensor)
                return found

            loss(output, labels, teacher).backward()
            optimizer.step()
            steps += 1
        if not steps:
            raise ConfigError("quantization.train: the training data has no batches.")
    prepared.eval()


def _optimizer(section: Train, model: nn.Module) -> torch.optim.Optimizer:
    name, settings = section.optimizer.chosen
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "SGD":
        return torch.optim.SGD(
            parameters,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
        )
    common = {
        "lr": settings.learning_rate,
        "betas": (settings.beta_1, settings.beta_2),
        "eps": settings.epsilon,
        "amsgrad": settings.amsgrad,
    }
    if name == "Adam":
        return torch.optim.Adam(parameters, **common)
    return torch.optim.AdamW(parameters, weight_decay=settings.weight_decay, **common)


def _loss(section: Train) -> Loss:
    name, settings = section.criterion.chosen
    if name in ("CrossEntropyLoss", "SparseCategoricalCrossentropy"):
        reduction = "mean" if settings.reduction == "none" else settings.reduction
        return lambda output, labels, teacher: F.cross_entropy(output, labels, reduction=reduction)
    if name == "KnowledgeDistillationLoss":
        return _distill(settings)
    raise ConfigError(f"quantization.train.criterion: {name} is not built in. Train in code: quantizer.q_func = ...")


def _distill(settings: Distillation) -> Loss:
    """loss_weights[0] for the labels, loss_weights[1] for the teacher's outputs at a temperature."""
    own, others = settings.loss_weights
    kind, heat = settings.loss_types[1], settings.temperature

    def loss(output: Tensor, labels: Tensor, teacher: Callable[[], Tensor]) -> Tensor:
        wanted = teacher()
        if kind == "MSE":
            apart = F.mse_loss(output, wanted)
        elif kind == "KL":
            scores = F.log_softmax(wanted / heat, -1)
            apart = F.kl_div(F.log_softmax(output / heat, -1), scores, log_target=True, reduction="batchmean") * heat**2
        else:
            apart = F.cross_entropy(output / heat, (wanted / heat).softmax(-1)) * heat**2
        return own * F.cross_entropy(output, labels) + others * apart

    return loss
