"""Files to forge from: small converted models, opened as (header, tensors), and written with a digest that fits."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import fxquant as fq
from fxquant.archive import archive

INPUTS = {
    "conv": ((2, 3, 8, 8), torch.float32),
    "linear": ((2, 64), torch.float32),
    "tokens": ((2, 6), torch.int64),
    "sizes": ((4, 8), torch.float32),
}
X = ["node", "input_1"]  # the input of a base file, as an argument
EMPTY: list[Any] = ["dict"]
_REPORTED = ("decision", "scope", "where", "note")
_CALIBRATED = ("observer", "learn", "percentile", "momentum", "range", "min_scale", "factory")


class Tokens(nn.Module):
    """Embedding, norm, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(16, 8), nn.LayerNorm(8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        scores = torch.softmax(self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(8.0), -1)
        y = (scores @ self.v(x)).reshape(x.shape[0], -1, 8)
        return y.mean(1)


class Sizes(nn.Module):
    """Captured by export, with conditions on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x)).unflatten(0, (2, -1)).sum(0)


def inputs(name: str) -> Tensor:
    """The inputs of a base file."""
    shape, dtype = INPUTS[name]
    torch.manual_seed(0)
    return torch.randint(0, 8, shape) if dtype == torch.int64 else torch.rand(shape)


def write_bases(folder: Path) -> None:
    """Write the files that all others are forged from."""
    torch.manual_seed(0)
    int4 = fq.QConfig(weight=fq.Spec(bits=4, granularity="per_group", group_size=32, observer="minmax"))
    conv = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2, groups=2)),
        *(nn.Hardswish(), nn.Flatten(), nn.Linear(8, 4)),
    )
    models: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "conv": (conv, {}),
        "linear": (nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), {"int4": int4}),
        "tokens": (Tokens(), {}),
        "sizes": (Sizes(), {"method": "export"}),
    }
    for name, (model, how) in models.items():
        x = inputs(name)
        mapping = fq.QConfigMapping().set_global(how.pop("int4")) if "int4" in how else None
        mode = "static" if mapping is None else "weight_only"
        made = fq.quantize(
            *(model.eval(), None if mapping is not None else [x]),
            **{"example_inputs": (x,), "qconfig_mapping": mapping, "mode": mode, "engine": "reference", **how},
        )
        fq.save(made, folder / f"{name}.fq")


@dataclass
class File:
    """What a file says."""

    header: Any
    tensors: dict[str, Tensor]
    text: str | None = None  # in place of the header, where it is not JSON

    @property
    def graph(self) -> list[Any]:
        """The rows of the root's graph."""
        found: list[Any] = self.header["modules"][""]["graph"]
        return found

    def row(self, text: str) -> Any:
        """The first row of the graph whose target contains a text."""
        return next(row for row in self.graph if text in row[2])

    def insert(self, *row: Any) -> None:
        """A node behind the placeholder, and its value among the outputs: what nothing reads is not run."""
        op, target, args, *rest = row
        kwargs = rest[0] if rest else ["dict"]
        name = f"evil_{len(self.graph)}"
        self.graph.insert(1, [op, name, target, args, kwargs, ["dict"]])
        self.give(name)

    def give(self, name: str) -> None:
        """Put the value of a node among the outputs."""
        output = self.graph[-1]
        if output[0] == "output":
            output[3] = ["tuple", ["tuple", *output[3][1:], ["node", name]]]


Change = Callable[[File], None]


def identity() -> dict[str, Any]:
    """The row of a module that does nothing."""
    return {"kind": "stock", "class": "torch.nn.modules.linear.Identity", "settings": EMPTY, "absent": []}


def hide_tensor(file: File, word: str) -> None:
    """Read a tensor by a name that may stand for something else."""
    file.tensors[word] = torch.ones(2)
    file.insert("get_attr", word, ["tuple"])


def read(path: Path) -> File:
    """Open a file."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, not a dict
    return File(json.loads(metadata["fxquant"]), tensors)


def meaning(path: Path) -> str:
    """A digest of what an engine can tell of a file: without reports, places in a source, and how ranges were found."""
    file = read(path)
    for row in file.header["modules"].values():
        for node in row.get("graph", ()):
            node[5] = [pair for pair in node[5] if pair[0] not in _REPORTED]
        if "spec" in row:
            row["spec"][2] = [pair for pair in row["spec"][2] if pair[0] not in _CALIBRATED]
    file.header.pop("trees", None)
    text = json.dumps(file.header, sort_keys=True)
    return archive._digest(text, file.tensors)


def write(file: File, path: Path) -> None:
    """Write a file whose digest fits."""
    text = json.dumps(file.header) if file.text is None else file.text
    tensors = {name: tensor.contiguous().clone() for name, tensor in file.tensors.items()}
    save_file(tensors, path, {"fxquant": text, "digest": archive._digest(text, tensors)})


def forged(base: File, change: Change) -> File:
    """A changed copy."""
    made = File(copy.deepcopy(base.header), dict(base.tensors))
    change(made)
    return made
