"""docs/adding_an_op.md: its rows and its recipe, put where it says and nowhere else, are all that its example needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_row_and_a_recipe_are_all_that_an_op_needs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "adding_an_op.md").read_text()
    rows = re.findall(r"^```python row\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (recipe,) = re.findall(r"^```python recipe\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(rows) == 2
    package = shutil.copytree(ROOT / "src" / "fxquant", tmp_path / "fxquant")
    table = package / "ops" / "rows.py"
    added = textwrap.indent("".join(rows), "    ")
    table.write_text(table.read_text().replace("\n\n\ndef share()", f"\n{added}\n\ndef share()"))
    recipes = package / "capture" / "canonical" / "stock.py"
    with_recipe = recipes.read_text().replace("\nRecipe = ", f"\n{recipe}\n\nRecipe = ")
    row = '    "prelu": _prelu,\n'
    recipes.write_text(with_recipe.replace(row, f'{row}    "bilinear": _bilinear,\n'))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import torch\ntorch.manual_seed(0)\n{example}"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
