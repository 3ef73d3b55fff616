"""Imports go one way: each layer names the layers it may import, and nothing else.

    ops <- config <- graph <- numerics <- {capture, passes <- algorithms} <- {archive, export <- engines} <- flows
        <- tables <- capture_with_config <- arguments
        <- {prepare_model, convert_model} <- quantize_fx <- {insight, tuning}
        <- precision <- api <- cli, demo

`compat` (torch.ao's names) stands on quantize_fx, too; `config_file` and `html_report` stand on api.
`integers` (programs on whole numbers) stands on engines;
`exports` (the calls that write files, from any stage) on that and quantize_fx, and api knows their formats.

`modules` (stock modules in a form that quantizes) stands on capture. Engines and export know its parts, and
capture_with_config puts them in.

`targets` and `templates` stand beside that line and import config only. `errors`, `files` and `progress` are open to
all.
The deprecated parts of torch are imported in graph/torch_compat.py and nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fxquant"

_TO_GRAPH = {"errors", "files", "progress", "ops", "config", "graph"}
_TO_NUMERICS = _TO_GRAPH | {"numerics"}
_TO_PASSES = _TO_NUMERICS | {"capture", "passes"}
_TO_ENGINES = _TO_PASSES | {"algorithms", "targets", "templates", "modules", "archive", "export", "engines"}
_TO_FLOWS = _TO_ENGINES | {"flows"}
_TO_TABLES = _TO_FLOWS | {"tables"}
_TO_CAPTURED = _TO_TABLES | {"capture_with_config"}
_TO_QUANTIZE = _TO_CAPTURED | {"arguments", "prepare_model", "convert_model", "quantize_fx"}
_TO_PRECISION = _TO_QUANTIZE | {"insight", "tuning", "precision"}
_TO_API = _TO_PRECISION | {"integers", "exports", "api"}

ROOT = "__init__"
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "progress": set(),
    "ops": {"errors"},
    "config": {"errors", "ops"},
    "graph": {"errors", "ops", "config"},
    "targets": {"errors", "ops", "config"},
    "templates": {"errors", "ops", "config"},
    "numerics": _TO_GRAPH,
    "capture": _TO_NUMERICS,
    "passes": _TO_NUMERICS,
    "algorithms": _TO_NUMERICS | {"passes"},
    "archive": _TO_PASSES | {"modules"},
    "export": _TO_PASSES | {"modules"},
    "engines": _TO_PASSES | {"targets", "modules", "export"},
    "flows": _TO_ENGINES,
    "integers": _TO_ENGINES,
    "tables": _TO_FLOWS,
    "modules": _TO_NUMERICS | {"capture"},
    "capture_with_config": _TO_TABLES,
    "arguments": _TO_CAPTURED,
    "prepare_model": _TO_CAPTURED | {"arguments"},
    "convert_model": _TO_CAPTURED | {"arguments"},
    "quantize_fx": _TO_CAPTURED | {"arguments", "prepare_model", "convert_model"},
    "exports": _TO_QUANTIZE | {"integers"},
    "insight": _TO_QUANTIZE,
    "tuning": _TO_QUANTIZE,
    "precision": _TO_QUANTIZE | {"insight", "tuning"},
    "api": _TO_PRECISION | {"exports"},
    "html_report": _TO_API,
    "config_file": _TO_API,
    ROOT: _TO_API | {"html_report"},
    "compat": _TO_QUANTIZE,
    "demo": _TO_API | {ROOT},
    "cli": _TO_API | {ROOT, "demo", "config_file", "html_report"},
    "__main__": {"cli"},
}
DEPRECATED = ("torch.ao", "torchao", "torch.quantization", "torch.jit")
COMPAT = "graph/torch_compat.py"


def _layer(dotted: str) -> str:
    """`fxquant.ops.table` -> ops; `fxquant` or one of its public names -> __init__."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ROOT


def _dotted(node: ast.expr) -> str | None:
    """`torch.ao.nn` as written, or None when the chain does not start at a plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return base and f"{base}.{node.attr}"
    return None


def _mentions(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that is imported; `package` is the one that relative imports start from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*base, node.module) if node.module else base)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and (_dotted(node.func) or "").endswith(("import_module", "__import__")):
            yield from (
                (node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
            )
        elif isinstance(node, ast.Attribute) and (name := _dotted(node)) and name.startswith("torch."):
            yield node.lineno, name


def find_violations(source: str, path: str) -> list[str]:
    """`path` is relative to src/fxquant, with forward slashes."""
    parts = path.removesuffix(".py").split("/")
    layer = parts[0]
    if layer not in MAY_IMPORT:
        return [f"{path}: {layer!r} is no known layer; give it a row in MAY_IMPORT"]
    found = set()
    for line, name in _mentions(ast.parse(source), ("fxquant", *parts[:-1])):
        if name.split(".")[0] == "fxquant":
            target = _layer(name)
            if target != layer and target not in MAY_IMPORT[layer]:
                found.add((line, f"{path}:{line}: {layer} may not import {target} ({name})"))
        elif path != COMPAT:
            for old in DEPRECATED:
                if name == old or name.startswith(old + "."):
                    found.add((line, f"{path}:{line}: {old} may be used in {COMPAT} only"))
    return [message for _, message in sorted(found)]


def test_no_import_points_back() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    violations = [v for f in files for v in find_violations(f.read_text(), f.relative_to(PACKAGE).as_posix())]
    assert violations == []


def test_the_layout_in_the_docs_has_every_layer_once() -> None:
    text = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()
    layout = text.partition("    src/fxquant/\n")[2].partition("    tests/")[0]
    firsts = [line[6:].split("  ")[0] for line in layout.splitlines() if line.startswith("      ")]
    named = sorted(name.strip().removesuffix("/").removesuffix(".py") for each in firsts for name in each.split(","))
    assert named == sorted(MAY_IMPORT)


def test_the_table_has_no_cycle() -> None:
    """A row of MAY_IMPORT names no layer that has no row itself, and no two layers may import each other."""
    for layer, allowed in MAY_IMPORT.items():
        assert allowed <= MAY_IMPORT.keys()
        assert [other for other in allowed if layer in MAY_IMPORT[other]] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("graph/region.py", "from fxquant.numerics import affine"),
        ("graph/region.py", "from fxquant.numerics.affine import quantize"),
        ("graph/region.py", "from ..numerics import affine"),
        ("graph/region.py", "from .. import passes"),
        ("graph/region.py", "from fxquant import Spec"),
        ("graph/region.py", "import fxquant as fq"),
        ("graph/region.py", "def f():\n    import fxquant.capture.symbolic.trace"),
        ("capture/symbolic/trace.py", "from fxquant.passes.fold_bn import fold_bn"),
        ("passes/convert.py", "from fxquant.capture import lift"),
        ("passes/convert.py", "from fxquant.flows import calibrate"),
        ("targets/x86.py", "from fxquant.numerics.affine import quantize"),
        ("engines/onednn.py", "from fxquant.flows.calibrate import calibrate"),
        ("errors.py", "from fxquant.config.spec import Spec"),
        ("quantize_fx.py", "from fxquant import api"),
        ("api.py", "from fxquant.cli import app"),
        ("__init__.py", "from fxquant.demo import run"),
        ("utils.py", "import torch"),
        ("ops/table.py", "import torch.ao.quantization as tq"),
        ("ops/table.py", "from torch.ao.quantization import observer"),
        ("ops/table.py", "from torch import ao"),
        ("ops/table.py", "from torch import jit"),
        ("ops/table.py", "import torchao"),
        ("ops/table.py", "from torch.quantization import fuse_modules"),
        ("ops/table.py", "import torch\nf = torch.jit.script"),
        ("ops/table.py", "import importlib\nm = importlib.import_module('torch.ao.quantization')"),
    ],
)
def test_a_bad_import_is_found(path: str, source: str) -> None:
    assert find_violations(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "graph/region.py",
            "from fxquant.ops.table import OPS\nfrom .spec import Spec",
        ),
        ("config/spec.py", "from fxquant.errors import ConfigError"),
        ("graph/torch_compat.py", "import torch.ao.quantization.fx._decomposed"),
        ("ops/table.py", "import torch\nf = torch.aminmax\ng = torch.ops.aten.relu"),
        ("passes/annotate.py", "from ..numerics.affine import quantize\nfrom . import insert"),
        ("engines/reference.py", "from fxquant.passes.convert import convert"),
        ("__init__.py", "from fxquant.api import quantize\nfrom fxquant.config.spec import Spec"),
        ("demo.py", "import fxquant as fq"),
    ],
)
def test_a_good_import_is_left_alone(path: str, source: str) -> None:
    assert find_violations(source, path) == []


def test_what_a_region_knows_is_asked_for_by_function() -> None:
    """`region._region` is for graph/region.py; others ask `origin_of`, `preparation_of`, `lowering_of`, `stage_of`."""
    files = [file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).as_posix() != "graph/region.py"]
    reached = [
        f"{file.relative_to(PACKAGE).as_posix()}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr == "_region" and _dotted(node.value) != "self")
        or (isinstance(node, ast.Constant) and node.value == "_region")
    ]
    assert reached == []
