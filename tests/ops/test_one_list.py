"""The op table is the only list of ops: what other files ask about a kind is a field of its row."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fxquant.ops.table import OPS

PACKAGE = Path(__file__).parents[2] / "src" / "fxquant"
# what a target claims, and a kernel for exactly that kind
ENGINES = (path.name for path in (PACKAGE / "engines").iterdir() if path.is_dir() and path.name != "runtimes")
OWN_MATTER = ("ops/", "targets/", *(f"engines/{name}/" for name in ENGINES))
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if not str(path.relative_to(PACKAGE)).startswith(OWN_MATTER)]


def _is_kind(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "kind") or (
        isinstance(node, ast.Name) and node.id == "kind"
    )


def _named(node: ast.expr) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value in OPS.by_kind}


def lines_with_kinds(tree: ast.AST) -> Iterator[int]:
    """The lines that compare a kind with the name of one, or look at how its name begins."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(_is_kind, (node.left, *node.comparators))):
            if any(map(_named, (node.left, *node.comparators))):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in ("startswith", "endswith") and _is_kind(node.value):
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_lines_with_kinds(path: Path) -> None:
    lines = list(lines_with_kinds(ast.parse(path.read_text())))
    assert not lines, f"{path.name}:{lines} asks for a kind by name. Make it a field of Op (ops/op.py)."


@pytest.mark.parametrize(
    "code", ['op.kind == "add"', 'op.kind in ("conv2d", "linear")', 'kind.startswith("conv")', '"relu" != op.kind']
)
def test_such_a_test_is_found(code: str) -> None:
    assert list(lines_with_kinds(ast.parse(code)))
