"""The checkpoint of a training run: written in one piece, and checked as a whole before anything of it is used.

{"model", "optimizer", "schedule", "freezing": state_dicts, "history": scores, "best_state": of the model, "rng": bytes}
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fxquant.errors import ConfigError
from fxquant.files import replacing


class Resumable(Protocol):
    """What a checkpoint can hold: a part of a run that gives its state and takes it back."""

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state_dict: Any, /) -> object: ...


Parts = Mapping[str, Resumable]


def write_checkpoint(path: Path, parts: Parts, history: list[float], best_state: Mapping[str, object]) -> None:
    """Write the state of a run; one that is stopped meanwhile leaves the checkpoint that was there."""
    state: dict[str, object] = {name: part.state_dict() for name, part in parts.items()}
    state.update(history=history, best_state=best_state, rng=torch.get_rng_state())
    buffer = io.BytesIO()  # errors of the disk would be RuntimeErrors
    torch.save(state, buffer)
    with replacing(path, ConfigError) as part:
        part.write_bytes(buffer.getbuffer())


def resume(path: Path, parts: Parts) -> tuple[list[float], Mapping[str, Tensor]]:
    """Bring the parts of a run to the state of a checkpoint; its history and best state. An error changes nothing."""
    saved = _read(path, (*parts, "history", "best_state", "rng"))
    model, optimizer = parts["model"], parts["optimizer"]
    assert isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer)
    before = copy.deepcopy(model.state_dict())
    name = "history"
    try:
        _check_numbers(saved["history"])
        for name in ("schedule", "freezing"):
            _check_like(saved[name], parts[name].state_dict())
        name = "optimizer"
        _check_optimizer(saved[name], optimizer)
        name = "rng"
        _check_tensor(saved[name], torch.get_rng_state())
        name = "best_state"
        model.load_state_dict(saved[name])
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        model.load_state_dict(before)
        raise ConfigError(
            f"the checkpoint {str(path)!r} is of another model or run: its {name} does not fit. Give another path, or "
            f"remove it. {error}"
        ) from error
    torch.set_rng_state(saved["rng"])
    return saved["history"], saved["best_state"]


def _read(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        saved = torch.load(path, weights_only=True)
    except Exception as error:  # zip files, pickles and their contents have errors of many kinds
        raise ConfigError(
            f"the checkpoint {str(path)!r} cannot be read: it was cut short, or train_qat did not write it. Remove it "
            f"to start anew, or give another path. {error}"
        ) from error
    if not isinstance(saved, dict) or not all(key in saved for key in keys):
        raise ConfigError(f"{str(path)!r} is no checkpoint of train_qat. Give another path.")
    return saved


def _check_numbers(history: object) -> None:
    if not isinstance(history, list) or not history or not all(type(score) is float for score in history):
        raise ValueError("it is no list of scores")


def _check_like(found: object, own: object) -> None:
    """Raise unless a state has the keys, lengths and types of another."""
    if type(found) is not type(own):
        raise TypeError(f"it has a {type(found).__name__} in place of a {type(own).__name__}")
    if isinstance(found, float) and not math.isfinite(found):
        raise ValueError(f"it has {found}")
    if isinstance(found, dict) and isinstance(own, dict):
        if found.keys() != own.keys():
            raise KeyError(f"it has {sorted(map(str, found))}, not {sorted(map(str, own))}")
        for key, value in found.items():
            _check_like(value, own[key])
    elif isinstance(found, (list, tuple)) and isinstance(own, (list, tuple)):
        for one, other in zip(found, own, strict=True):
            _check_like(one, other)


def _check_optimizer(found: Mapping[str, Mapping[int, Mapping[str, object]]], optimizer: torch.optim.Optimizer) -> None:
    """Raise unless groups are like its own, and what it keeps of each parameter has the shape of that."""
    _check_like(found["param_groups"], optimizer.state_dict()["param_groups"])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, kept in found["state"].items():
        for name, value in kept.items():
            _check_tensor(value, torch.tensor(0.0) if name == "step" else parameters[index].detach())


def _check_tensor(found: object, own: Tensor) -> None:
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (own.shape, own.dtype):
        what = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"it has {what} in place of a tensor {tuple(own.shape)} {own.dtype}")
