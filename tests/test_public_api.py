"""What is public is listed in `fxquant.__all__`, and changes only together with public_api.txt."""

from __future__ import annotations

from pathlib import Path

import fxquant

LISTED = (Path(__file__).parent / "public_api.txt").read_text().split()


def test_all_is_the_checked_in_list() -> None:
    assert sorted(fxquant.__all__) == sorted(LISTED)


def test_names_are_listed_once() -> None:
    assert len(set(fxquant.__all__)) == len(fxquant.__all__)


def test_every_public_name_exists() -> None:
    assert [name for name in fxquant.__all__ if not hasattr(fxquant, name)] == []
