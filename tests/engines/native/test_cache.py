"""Code on disk is used if it is the user's alone, and whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import fxquant as fq
from fxquant.engines.native import cache as module
from fxquant.engines.native.cache import Cache
from fxquant.engines.native.verdicts import read_orders

NAME, CODE = "a" * 64, b"code\nof two lines"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Cache(tmp_path / "code").store(NAME, CODE)
    assert Cache(tmp_path / "code").load(NAME) == CODE
    return tmp_path / "code"


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user that its system does not know."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert fq.Native().cache is None


def test_only_the_user_can_read_and_write(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert os.listdir(folder) == [NAME]


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_write_to_is_not_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert Cache(folder).load(NAME) is None
    Cache(folder).store("b" * 64, CODE)
    assert os.listdir(folder) == [NAME]


def test_an_entry_that_others_write_to_is_not_used(folder: Path) -> None:
    (folder / NAME).chmod(0o666)
    assert Cache(folder).load(NAME) is None


def test_what_belongs_to_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert Cache(folder).load(NAME) is None


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert Cache(tmp_path / "link").load(NAME) is None
    (folder / NAME).rename(tmp_path / "elsewhere")
    (folder / NAME).symlink_to(tmp_path / "elsewhere")
    assert Cache(folder).load(NAME) is None
    Cache(folder).store(NAME, b"other")
    assert not (folder / NAME).is_symlink() and (tmp_path / "elsewhere").read_bytes().endswith(CODE)


@pytest.mark.parametrize("change", [b"", b"x", b"\n", CODE])
def test_an_entry_that_is_damaged_is_not_used(folder: Path, change: bytes) -> None:
    whole = (folder / NAME).read_bytes()
    for text in (change, whole[:-1], whole[1:], whole + change + b"x"):
        (folder / NAME).write_bytes(text)
        assert Cache(folder).load(NAME) is None


def test_an_entry_of_another_name_is_not_used(folder: Path) -> None:
    (folder / NAME).rename(folder / ("b" * 64))
    assert Cache(folder).load("b" * 64) is None


def test_a_directory_put_in_its_place_meanwhile_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the directory and the look at the entry, another one takes its place."""
    other = tmp_path / "other"
    Cache(other).store(NAME, b"evil")
    opened = module._open_in

    def swap(*args: Any) -> int:
        if folder.exists() and other.exists():
            folder.rename(tmp_path / "away")
            other.rename(folder)
        return opened(*args)

    monkeypatch.setattr(module, "_open_in", swap)
    assert Cache(folder).load(NAME) == CODE
    assert Cache(folder).load(NAME) == b"evil"  # it is the user's, too


@pytest.mark.parametrize(
    "text", [b"", b"{", b"{}", b"5", b'["x"]', b"[[0, 0]]", b"[[1]]", b"[[true]]", b"[[]", b"\xff"]
)
def test_a_verdict_that_is_none(text: bytes) -> None:
    assert read_orders(text) is None
    assert read_orders(b"[[], [1, 0]]") == [(), (1, 0)]


def test_weights_make_room_before_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 1000)
    monkeypatch.setattr(module, "_MOST_BYTES", 5000)
    for letter in "bcd":
        Cache(folder).store(letter * 64, bytes(2000))
    assert sorted(os.listdir(folder)) == [NAME, "c" * 64, "d" * 64]
