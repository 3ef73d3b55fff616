"""Imports go one way: each layer names the layers it may import, and nothing else.

    core <- numerics <- {capture, passes} <- {engines, export} <- flows <- report <- assemble <- quantize_fx <- api
         <- cli, demo

`compat` (torch.ao's names) stands on quantize_fx, beside api.

`modules` (stock modules in a form that quantizes) stands on capture. Engines and export know its parts, and assemble
puts them in.

`targets` stands beside that line and imports core only. `errors` is open to all. The deprecated parts of torch are
imported in core/compat.py and nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fxquant"

_TO_NUMERICS = {"errors", "core", "numerics"}
_TO_PASSES = _TO_NUMERICS | {"capture", "passes"}
_TO_ENGINES = _TO_PASSES | {"targets", "engines", "export"}
_TO_FLOWS = _TO_ENGINES | {"flows"}
_TO_REPORT = _TO_FLOWS | {"report"}
_TO_ASSEMBLE = _TO_REPORT | {"modules", "assemble"}
_TO_QUANTIZE = _TO_ASSEMBLE | {"arguments", "quantize_fx"}
_TO_API = _TO_QUANTIZE | {"api"}

ROOT = "__init__"
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "targets": {"errors", "core"},
    "numerics": {"errors", "core"},
    "capture": _TO_NUMERICS,
    "passes": _TO_NUMERICS,
    "engines": _TO_PASSES | {"targets", "export", "modules"},
    "export": _TO_PASSES | {"targets", "modules"},
    "flows": _TO_ENGINES,
    "report": _TO_FLOWS,
    "modules": _TO_NUMERICS | {"capture"},
    "assemble": _TO_REPORT | {"modules"},
    "arguments": _TO_ASSEMBLE,
    "quantize_fx": _TO_ASSEMBLE | {"arguments"},
    "api": _TO_QUANTIZE,
    ROOT: _TO_API,
    "compat": _TO_QUANTIZE,
    "demo": _TO_API | {ROOT},
    "cli": _TO_API | {ROOT, "demo"},
}
DEPRECATED = ("torch.ao", "torchao", "torch.quantization", "torch.jit")
COMPAT = "core/compat.py"


def _layer(dotted: str) -> str:
    """`fxquant.core.ops` -> core; `fxquant` or one of its public names -> __init__."""
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


def test_the_table_has_no_cycle() -> None:
    """A row of MAY_IMPORT names no layer that has no row itself, and no two layers may import each other."""
    for layer, allowed in MAY_IMPORT.items():
        assert allowed <= MAY_IMPORT.keys()
        assert [other for other in allowed if layer in MAY_IMPORT[other]] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/graph.py", "from fxquant.numerics import affine"),
        ("core/graph.py", "from fxquant.numerics.affine import quantize"),
        ("core/graph.py", "from ..numerics import affine"),
        ("core/graph.py", "from .. import passes"),
        ("core/graph.py", "from fxquant import Spec"),
        ("core/graph.py", "import fxquant as fq"),
        ("core/graph.py", "def f():\n    import fxquant.capture.trace"),
        ("capture/trace.py", "from fxquant.passes.fold_bn import fold_bn"),
        ("passes/convert.py", "from fxquant.capture import lift"),
        ("passes/convert.py", "from fxquant.flows import calibrate"),
        ("targets/x86.py", "from fxquant.numerics.affine import quantize"),
        ("engines/onednn.py", "from fxquant.flows.calibrate import calibrate"),
        ("errors.py", "from fxquant.core.spec import Spec"),
        ("quantize_fx.py", "from fxquant import api"),
        ("api.py", "from fxquant.cli import app"),
        ("__init__.py", "from fxquant.demo import run"),
        ("utils.py", "import torch"),
        ("core/ops.py", "import torch.ao.quantization as tq"),
        ("core/ops.py", "from torch.ao.quantization import observer"),
        ("core/ops.py", "from torch import ao"),
        ("core/ops.py", "from torch import jit"),
        ("core/ops.py", "import torchao"),
        ("core/ops.py", "from torch.quantization import fuse_modules"),
        ("core/ops.py", "import torch\nf = torch.jit.script"),
        ("core/ops.py", "import importlib\nm = importlib.import_module('torch.ao.quantization')"),
    ],
)
def test_a_bad_import_is_found(path: str, source: str) -> None:
    assert find_violations(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "core/graph.py",
            "from fxquant.core.ops import OPS\nfrom .spec import Spec",
        ),
        ("core/spec.py", "from fxquant.errors import ConfigError"),
        ("core/compat.py", "import torch.ao.quantization.fx._decomposed"),
        ("core/ops.py", "import torch\nf = torch.aminmax\ng = torch.ops.aten.relu"),
        ("passes/annotate.py", "from ..numerics.affine import quantize\nfrom . import insert"),
        ("engines/reference.py", "from fxquant.passes.convert import convert"),
        ("__init__.py", "from fxquant.api import quantize\nfrom fxquant.core.spec import Spec"),
        ("demo.py", "import fxquant as fq"),
    ],
)
def test_a_good_import_is_left_alone(path: str, source: str) -> None:
    assert find_violations(source, path) == []
