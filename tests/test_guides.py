"""README and guides run as they are written: the Python in each, from top to bottom."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"
# by_hand.md shows fragments; the others have tests of their own, which ask for more
NOT_HERE = {"by_hand.md", "adding_an_op.md", "algorithms.md", "config_file.md", "tuning.md"}
GUIDES = ["../README.md", *sorted(path.name for path in DOCS.glob("*.md") if path.name not in NOT_HERE)]
GUIDES = [name for name in GUIDES if "```python" in (DOCS / name).read_text()]


@pytest.mark.parametrize("name", GUIDES)
def test_the_guide_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    guide = types.ModuleType(f"guide_{Path(name).stem}")
    monkeypatch.setitem(sys.modules, guide.__name__, guide)  # what a guide defines may be pickled
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, name, "exec"), guide.__dict__)
