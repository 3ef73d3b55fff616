"""The rows of docs/results.md: read, put in the place of older ones, written."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch
from torch import nn

ENGINES = ("onednn", "native", "onnxruntime", "openvino")
COLUMNS = ("model", "method", "metric", "value", "kB", *(f"ms {engine}" for engine in ENGINES), "note", "measured")
BEGIN, END = "<!-- rows: from benchmarks/recipes.py -->", "<!-- end of rows -->"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One method on one model. A size or latency that was not measured is None."""

    model: str
    method: str
    metric: str
    value: float
    size: int | None = None
    latency: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def cells(self) -> list[str]:
        size = "" if self.size is None else f"{self.size / 1e3:.0f}"
        times = [f"{self.latency[engine]:.2f}" if engine in self.latency else "" for engine in ENGINES]
        value = f"{self.value:.2f}"
        return [self.model, self.method, self.metric, value, size, *times, self.note, date.today().isoformat()]


def size_of(model: object) -> int | None:
    """Bytes of the saved state_dict; None of what is no module."""
    if not isinstance(model, nn.Module):
        return None
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def read_rows(text: str) -> dict[tuple[str, str], list[str]]:
    """The cells of a table between the marks, by model and method."""
    inside = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in inside.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {(row[0], row[1]): row for row in cells}


def table(rows: Iterable[list[str]]) -> str:
    rule = ["---" if name in ("model", "method", "metric", "note", "measured") else "---:" for name in COLUMNS]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (list(COLUMNS), rule, *rows))


def write_rows(path: Path, rows: Iterable[Row], order: list[tuple[str, str]], head: str) -> None:
    """Put rows into the file, in the place of older ones of the same model and method."""
    found = read_rows(path.read_text()) if path.exists() else {}
    found.update({(row.model, row.method): row.cells() for row in rows})
    known = [found[key] for key in order if key in found]
    path.write_text(f"{head}\n{BEGIN}\n{table(known)}\n{END}\n")
