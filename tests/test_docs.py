"""README and guides run as they are written: the Python in each, from its first block to its last."""

from __future__ import annotations

import code
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WOULD_BE = {"passes/drop_second_relus.py", "tests/passes/test_drop_second_relus.py"}  # the example of writing_a_pass.md
ELSEWHERE = {"adding_an_op.md", "algorithms.md"}  # tests of their own run these, and ask for more
GUIDES = ["../README.md", *sorted(path.name for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)]
GUIDES = [name for name in GUIDES if "```python" in (DOCS / name).read_text()]


@pytest.mark.parametrize("name", GUIDES)
def test_the_guide_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    guide = types.ModuleType(f"guide_{Path(name).stem}")
    monkeypatch.setitem(sys.modules, guide.__name__, guide)  # what a guide defines may be pickled
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, name, "exec", dont_inherit=True), guide.__dict__)


@pytest.mark.parametrize(
    "name", ["../README.md", "index.md", "quick_start.md", "fx_flow.md", "cookbook.md", "accuracy.md"]
)
def test_the_first_pages_can_be_pasted_at_a_prompt(name: str) -> None:
    """Line by line, where an empty line ends a block: none inside of a class, and one after each loop."""
    for block in re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL):
        pasted: list[str] = []
        for line in [*block.splitlines(), ""]:
            pasted.append(line)
            if code.compile_command("\n".join(pasted), name, "single") is not None:  # raises what a prompt would show
                pasted.clear()
        assert not any(pasted), f"unfinished: {pasted}"


def _pages(entry: object) -> list[str]:
    """The files that a part of the site's navigation names."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in _pages(part)]  # type: ignore[attr-defined]


def test_the_site_has_each_page_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(_pages(site["nav"])) == sorted(path.name for path in DOCS.glob("*.md"))


def _anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("path", [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert path.parent != DOCS or target.is_relative_to(DOCS), f"{link} is not part of the site"
        assert not anchor or anchor in _anchors(target.read_text()), link


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_files_that_it_names_exist(page: Path) -> None:
    known = {
        path.relative_to(ROOT).as_posix()
        for top in ("src", "tests", "benchmarks", "examples")
        for path in (ROOT / top).rglob("*.py")
    }
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) - WOULD_BE
    assert sorted(name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)) == []
