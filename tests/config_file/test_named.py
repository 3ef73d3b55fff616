"""Functions by name, as the command line gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.config_file.named import find_named
from fxquant.errors import ConfigError


def test_a_function_is_found_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_named.py").write_text("class Box:\n    def make():\n        return 7\n")
    monkeypatch.chdir(tmp_path)
    assert find_named("own_named:Box.make", "--model")() == 7


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("math", "expected package.module:function"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("math:sqrtt", "Closest: 'sqrt'"),
        ("math:pi", "Name a function"),
    ],
)
def test_what_is_wrong_is_named(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        find_named(name, "--model")
