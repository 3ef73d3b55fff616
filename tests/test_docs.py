"""The Python blocks of the guides run, each guide in a directory of its own, from its first block to its last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
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
