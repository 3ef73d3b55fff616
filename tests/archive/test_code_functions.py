"""Functions in saved graphs: torch's own in every spelling, and those of the user's other files that were wrapped."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture import Method
from fxquant.errors import ArchiveError


class Grid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y_grid, x_grid = torch.meshgrid([torch.arange(x.shape[2]), torch.arange(x.shape[3])], indexing="ij")
        return x + y_grid + x_grid + torch.einsum("bchw,bchw->bhw", [x, x]).unsqueeze(1)


def test_functions_that_are_given_a_list(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(Grid(), [x])
    loaded = fq.load(fq.save(quantized, tmp_path / "model.fq"))
    for size in (8, 12):
        x = torch.randn(1, 3, size, size)
        assert torch.equal(loaded(x), quantized(x))


@pytest.fixture
def files() -> Iterator[type[nn.Module]]:
    """A model in one file, which calls a function of a second, which calls one of a third."""
    names = ("archive_test_inner", "archive_test_outer", "archive_test_model")
    sources = (
        "def turn(x):\n    return x if float(x.sum()) > 0 else -x\n",
        "import archive_test_inner as inner\ndef twice(x):\n    return inner.turn(x) * 2\n",
        "from torch import nn\nfrom archive_test_outer import twice\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(8, 8)\n"
        "    def forward(self, x):\n        return twice(self.fc(x))\n",
    )
    for name, source in zip(names, sources, strict=True):
        sys.modules[name] = types.ModuleType(name)
        exec(compile(source, f"{name}.py", "exec"), vars(sys.modules[name]))
    yield sys.modules[names[-1]].Model
    for name in names:
        del sys.modules[name]


def test_a_function_wrapped_by_name_in_another_file(files: type[nn.Module], tmp_path: Path) -> None:
    fq.wrap("archive_test_inner.turn")
    x = torch.randn(4, 8)
    quantized = fq.quantize(files(), [x, -x])
    loaded = fq.load(fq.save(quantized, tmp_path / "model.fq"), files())
    for each in (x, -x):
        assert torch.equal(loaded(each), quantized(each))
        assert float(loaded(each).sum()) > 0


def test_a_function_that_the_importing_file_wraps_by_name(files: type[nn.Module], tmp_path: Path) -> None:
    source = (
        "import torch.fx\nfrom torch import nn\nfrom archive_test_inner import turn\ntorch.fx.wrap('turn')\n"
        "class Direct(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(8, 8)\n"
        "    def forward(self, x):\n        return turn(self.fc(x))\n"
    )
    where = sys.modules[files.__module__]
    exec(compile(source, "archive_test_model.py", "exec"), vars(where))
    x = torch.randn(4, 8)
    quantized = fq.quantize(where.Direct(), [x, -x])
    loaded = fq.load(fq.save(quantized, tmp_path / "model.fq"), where.Direct())
    for each in (x, -x):
        assert torch.equal(loaded(each), quantized(each))


class Scores(NamedTuple):
    scores: Tensor
    features: Tensor
    classes: int = 3


class Kept(dict[str, Tensor]):
    """Not a plain dict."""


class Returns(nn.Module):
    def __init__(self, container: type) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)
        self.container = container

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return {"first": self.container(scores=y, features=x), "others": [self.container(scores=x, features=y)]}


@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_named_tuples_come_back_as_such(method: Method, tmp_path: Path) -> None:
    model, x = Returns(Scores), torch.randn(4, 8)
    quantized = fq.quantize(model, [x], method=method, effort="fast")
    path = fq.save(quantized, tmp_path / "model.fq")
    with pytest.raises(ArchiveError, match=r"Scores'.*float_model"):
        fq.load(path)
    for each in (quantized, fq.load(path, model)):
        made = each(x)
        assert [type(value) for value in (made["first"], *made["others"])] == [Scores, Scores]
        assert torch.equal(made["first"].scores, quantized(x)["first"].scores) and made["first"].classes == 3


def test_classes_inside_of_functions_and_classes_derived_from_dict(tmp_path: Path) -> None:
    class Inside(NamedTuple):
        value: Tensor

    class Closes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Inside:
            return Inside(self.fc(x))

    x = torch.randn(4, 8)
    for model, kind in ((Closes(), Inside), (Returns(Kept), Kept)):
        quantized = fq.quantize(model, [x], effort="fast")
        made = fq.load(fq.save(quantized, tmp_path / "model.fq"), model)(x)
        assert isinstance(made, kind) or type(made["first"]) is kind
