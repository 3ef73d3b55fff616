"""Every public function has a docstring with an example, as has every class that users make; they run as written."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import BALANCED

FUNCTIONS = [name for name in fq.__all__ if inspect.isfunction(getattr(fq, name))]
MADE = ("ConvertCustomConfig", "FreezeSchedule", "FuseCustomConfig", "Native", "PrepareCustomConfig", "Processes")
MADE += ("QConfig", "QConfigMapping", "Ray", "Spec", "Target")
NEEDS = {
    "export_onnx": ("onnx", "onnxscript"),
    "profile": ("llvmlite",),
    "export_executorch": ("executorch",),
}


def names() -> dict[str, object]:
    """What the examples start from: a small model in eval mode, and batches for it."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential()
    for name, module in zip(("conv", "norm", "act", "pool", "flat", "head"), [*body, nn.Linear(8, 4)], strict=True):
        model.add_module(name, module)
    loader = [torch.randn(2, 3, 8, 8) for _ in range(2)]
    return {"fq": fq, "torch": torch, "nn": nn, "model": model.eval(), "loader": loader}


@pytest.mark.parametrize("name", [*FUNCTIONS, *MADE])
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(getattr(fq, name)) or ""
    test = doctest.DocTestParser().get_doctest(text, names(), name, name, 0)
    assert test.examples, f"{name} has no example"
    lines: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=lines.append)
    assert not lines, "".join(lines)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_explained(name: str) -> None:
    """Where it is taken, or on the page of the API, if many calls take it."""
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    shared = {f"`{each}`" for each in re.findall(r"`(\w+)`", page[: page.index("## Functions")])}
    text = (inspect.getdoc(getattr(fq, name)) or "").split("Example:")[0]
    taken = [each.removesuffix("_dict") for each in inspect.signature(getattr(fq, name)).parameters if each[0] != "_"]
    assert [each for each in taken if f"`{each}`" not in shared and not re.search(rf"`{each}\b", text)] == []


def test_help_gives_the_defaults_that_hold() -> None:
    assert inspect.signature(fq.tune).parameters["algorithms"].default == BALANCED


@pytest.mark.parametrize("name", [name for name in fq.__all__ if inspect.isclass(getattr(fq, name))])
def test_every_class_says_what_it_is(name: str) -> None:
    text = getattr(fq, name).__doc__ or ""
    assert text and not text.startswith(f"{name}("), "a docstring of its own"


def test_the_api_page_has_all_functions_and_classes() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    public = [inspect.unwrap(getattr(fq, name)) for name in fq.__all__]
    named = [each for each in public if inspect.isfunction(each) or inspect.isclass(each)]
    assert [f"{each.__module__}.{each.__qualname__}" for each in named if each.__qualname__ not in page] == []
