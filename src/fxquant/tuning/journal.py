"""The workspace of a search: one line of JSON for each finished trial, on the disk before the next one begins.

    trials.jsonl             a line about the run, one about the float model, then one for each trial
    statistics.safetensors   what calibration saw, so that a run that goes on needs no second one

A line that a killed process left half is dropped. A run goes on only with the same model and settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fxquant.errors import ConfigError
from fxquant.files import Json, replacing
from fxquant.tuning.plan import Plan

TRIALS, STATISTICS = "trials.jsonl", "statistics.safetensors"


class Journal:
    """Lines of a workspace; without a path they are kept in memory alone."""

    def __init__(self, path: str | Path | None, run: Json) -> None:
        try:
            self.path = None if path is None else Path(path)
        except TypeError:
            raise ConfigError(f"the workspace is {path!r:.80}. Give the path of a directory.") from None
        self.lines: list[Json] = []
        if self.path is not None:
            self._open(self.path, run)
        if not self.lines:
            self.add({"kind": "run", **run})

    def _open(self, path: Path, run: Json) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            whole = self._read(path / TRIALS)
        except OSError as error:
            raise ConfigError(f"the workspace {str(path)!r} cannot be used: {error.strerror or error}.") from error
        if not self.lines:
            return
        before = {name: value for name, value in self.lines[0].items() if name != "kind"}
        differs = [name for name in run if before.get(name) != json.loads(json.dumps(run[name]))]
        if self.lines[0].get("kind") != "run" or differs:
            raise ConfigError(
                f"the workspace {str(path)!r} is of another search: {', '.join(differs) or 'its first line'} differs. "
                "Give another path, or remove it."
            )
        try:
            os.truncate(path / TRIALS, whole)
        except OSError as error:
            raise ConfigError(f"the workspace {str(path)!r} cannot be written: {error.strerror or error}.") from error

    def _read(self, file: Path) -> int:
        """Read the lines; the length of those that are whole."""
        whole = 0
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not _is_line(found):
                raise ConfigError(f"{file} is damaged at byte {whole}. Remove it to start anew.")
            self.lines.append(found)
            whole += len(line)
        return whole

    def add(self, line: Json) -> None:
        """Append a line, and see it on the disk; one that does not get there as a whole is taken back."""
        if self.path is not None:
            try:
                _append(self.path / TRIALS, f"{json.dumps(line, sort_keys=True)}\n".encode())
            except OSError as error:
                raise ConfigError(
                    f"the workspace {str(self.path)!r} cannot be written: {error.strerror or error}. What was there "
                    "before is as it was, and the search goes on from it."
                ) from error
        self.lines.append(line)

    def find(self, kind: str) -> Json | None:
        """Return the first line of a kind."""
        return next((line for line in self.lines if line["kind"] == kind), None)

    def by_plan(self, kind: str = "trial") -> dict[str, Json]:
        """Return the trials that are done, by the key of their plan."""
        return {json.dumps(line["plan"], sort_keys=True): line for line in self.lines if line["kind"] == kind}

    def save_statistics(self, prepared: nn.Module) -> None:
        """Keep what calibration saw."""
        if self.path is None:
            return
        kept = {name: value.contiguous() for name, value in _statistics(prepared).items()}
        with replacing(self.path / STATISTICS, ConfigError) as part:
            part.write_bytes(save(kept))  # save_file has errors of its own for a full disk

    def load_statistics(self, prepared: nn.Module) -> bool:
        """Give a prepared model what calibration saw in an earlier run; False if there was none."""
        if self.path is None or not (self.path / STATISTICS).exists():
            return False
        try:
            saved = load_file(self.path / STATISTICS)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{self.path / STATISTICS} cannot be read: {error}. Remove it.") from error
        if _names(saved) != _names(_statistics(prepared)):
            raise ConfigError(f"{self.path / STATISTICS} is of another model. Give another workspace.")
        try:
            prepared.load_state_dict(saved, strict=False)
        except RuntimeError as error:
            raise ConfigError(f"{self.path / STATISTICS} does not fit the model: {error}. Remove it.") from error
        return True


def _names(statistics: Iterable[str]) -> set[str]:
    """Return what is known of every calibration: the inputs that are kept are as many as fit."""
    return {name for name in statistics if not name.rpartition(".")[2].startswith("call_")}


def _is_line(found: object) -> bool:
    """Tell whether a line is one that a search writes: its fields have the values that they are read as."""
    if not isinstance(found, dict):
        return False
    kind = found.get("kind")
    if kind == "base":
        samples = found.get("samples")
        return _is_number(found.get("value")) and (samples is None or _are_numbers(samples))
    if kind not in ("trial", "whole"):
        return kind == "run"
    plain = bool(found.get("error")) or {"score", "drop", "passed"} <= found.keys()
    return plain and _is_plan(found.get("plan")) and all(_fits(name, value) for name, value in found.items())


def _fits(name: str, value: object) -> bool:
    if name in ("passed", "complete"):
        return isinstance(value, bool)
    if name in ("low", "high", "samples"):
        return value is None or _is_number(value)
    return name not in ("score", "drop", "time", "size", "seconds") or _is_number(value)


def _is_plan(value: object) -> bool:
    try:
        return isinstance(value, dict) and Plan.from_json(value).key == json.dumps(value, sort_keys=True)
    except (AttributeError, TypeError, ValueError):
        return False


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _append(file: Path, line: bytes) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    end = os.fstat(handle).st_size
    try:
        while line:
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise
    finally:
        os.close(handle)


def _statistics(prepared: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in prepared.state_dict().items() if "statistics." in name}


def fingerprint(model: nn.Module) -> str:
    """Return a digest of a model's classes and tensors."""
    digest = hashlib.sha256()
    for path, module in model.named_modules():
        digest.update(f"{path}:{type(module).__qualname__};".encode())
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            digest.update(str(plain.dtype).encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
