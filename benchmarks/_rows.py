"""The rows of docs/results.md: read, with measured figures put into them, as text; and the short lines in README.md.

A row has one date and one setting (machine and versions): a letter in the row, spelled out below the table. What is
measured under another setting takes the place of the whole row.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

import torch
from torch import nn

KERNELS = ("torch", "native", "onnxruntime", "openvino")
COLUMNS = ("model", "method", "metric", "value", "kB", *(f"ms {name}" for name in KERNELS), "note", "measured", "on")
WORDS = ("model", "method", "metric", "note", "measured", "on")
BEGIN, END = "<!-- rows: from benchmarks/recipes.py -->", "<!-- end of rows -->"
SHORT_MODELS = ("YOLOX-Nano, COCO", "ResNet-20, CIFAR-10", "EfficientNet-Lite0")
SHORT = {
    "float": "float",
    "PTQ W8A8": "int8",
    "PTQ W8A8 power-of-two": "int8 by powers of two",
    "QAT W8A8 power-of-two": "the same trained",
    "QAT W4A4": "W4A4 trained",
    "torch.ao FX": "torch.ao FX",
    "ONNX Runtime": "ONNX Runtime",
    "NNCF": "NNCF",
}
Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was measured of one method on one model: a score, or times, or both."""

    model: str
    method: str
    metric: str = ""
    value: float | None = None
    size: int | None = None
    times: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def into(self, old: dict[str, str] | None, setting: str) -> dict[str, str]:
        """The cells of a row with these figures in the place of older ones."""
        if old is None or old["on"] != setting:
            old = dict.fromkeys(COLUMNS, "")
        found = {**old, "model": self.model, "method": self.method, "measured": date.today().isoformat(), "on": setting}
        if self.value is not None:
            size = "" if self.size is None else f"{self.size / 1e3:.0f}"
            found.update(metric=self.metric, value=f"{self.value:.2f}", kB=size, note=self.note)
        if self.times:
            found.update({f"ms {name}": f"{self.times[name]:.2f}" if name in self.times else "" for name in KERNELS})
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The rows by model and method, and the settings by their letter."""

    rows: dict[Key, dict[str, str]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def put(self, row: Row, setting: str) -> None:
        letter = next((letter for letter, known in self.settings.items() if known == setting), None)
        if letter is None:
            letter = next(each for each in "abcdefghijklmnopqrstuvwxyz" if each not in self.settings)
            self.settings[letter] = setting
        key = (row.model, row.method)
        self.rows[key] = row.into(self.rows.get(key), letter)

    def text(self, order: Iterable[Key]) -> str:
        """The table, and below it the settings that rows have."""
        known = [self.rows[key] for key in order if key in self.rows]
        used = {row["on"] for row in known}
        lines = [f"- {letter}: {setting}" for letter, setting in self.settings.items() if letter in used]
        cells = [[row[column] for column in COLUMNS] for row in known]
        return "\n".join((BEGIN, table(COLUMNS, cells), "", *lines, END))


def size_of(model: object) -> int | None:
    """Bytes of the saved state_dict; None of what is no module."""
    if not isinstance(model, nn.Module):
        return None
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def read_page(text: str) -> Page:
    """What is between the marks."""
    inside = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in inside if line.startswith("|")]
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in cells[2:]]
    settings = dict(line[2:].split(": ", 1) for line in inside if line.startswith("- "))
    return Page(rows={(row["model"], row["method"]): row for row in rows}, settings=settings)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---" if name in WORDS else "---:" for name in columns]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows))


def short_lines(page: Page) -> str:
    """One line a model of SHORT_MODELS: the methods that README shows, side by side."""
    lines = []
    for model in SHORT_MODELS:
        found = {method: page.rows[model, method] for method in SHORT if (model, method) in page.rows}
        found = {method: row for method, row in found.items() if row["value"] not in ("", "inf")}  # float beside itself
        metric = next((row["metric"] for row in found.values() if row["metric"]), "")
        scores = ", ".join(f"{SHORT[method]} {row['value']}" for method, row in found.items())
        lines += [f"- {model}, {metric}: {scores}."] if found else []
    return "\n".join((BEGIN, *lines, END))


def with_short_lines(readme: str, page: Page) -> str:
    """The text with the short lines of the page between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + short_lines(page) + rest.partition(END)[2]


def placed(order: Sequence[Key], model: str, methods: Iterable[str]) -> list[Key]:
    """The order of rows in which those of one model are as its methods are, where its first row was or at the end."""
    first = next((index for index, key in enumerate(order) if key[0] == model), len(order))
    others = [key for key in order if key[0] != model]
    return [*others[:first], *((model, method) for method in methods), *others[first:]]
