"""The examples of docs/algorithms.md run as written, and each algorithm has one."""

from __future__ import annotations

import re
from pathlib import Path

import fxquant as fq
from fxquant.algorithms import Algorithm

TEXT = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def test_the_examples_run() -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, names)
    made = {getattr(fq.algorithms, name) for name in fq.algorithms.__all__}
    classes = {each.__name__ for each in made if isinstance(each, type) and issubclass(each, Algorithm)} - {"Algorithm"}
    assert all(f"\n## {name}\n" in TEXT and f"algorithms.{name}(" in TEXT for name in classes)
