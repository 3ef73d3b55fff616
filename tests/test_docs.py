"""The Python blocks of the guides run, each guide in a directory of its own, from its first block to its last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
WOULD_BE = {"passes/drop_repeats.py", "tests/passes/test_drop_repeats.py"}  # the example of writing_a_pass.md
GUIDES = (
    "integers.md",
    "export.md",
    "tuning.md",
    "config_file.md",
    "adding_an_algorithm.md",
    "adding_an_export.md",
    "adding_a_config_key.md",
)


@pytest.mark.parametrize("name", GUIDES)
def test_its_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.M | re.S)
    assert blocks
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, name, "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_files_that_it_names_exist(page: Path) -> None:
    root = DOCS.parent
    known = {
        path.relative_to(root).as_posix()
        for top in ("src", "tests", "benchmarks")
        for path in (root / top).rglob("*.py")
    }
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) - WOULD_BE
    assert sorted(name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)) == []
