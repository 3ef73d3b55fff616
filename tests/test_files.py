"""A file is written as a whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fxquant as fq
from fxquant.files import replacing


def put(path: Path, text: str) -> None:
    with replacing(path, fq.ArchiveError) as part:
        part.write_text(text)


def test_it_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in ("one", "two"):
        put(path, text)
        assert path.read_text() == text and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        put(tmp_path / "new", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask
    (tmp_path / "new").chmod(0o640)
    put(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "real")
    put(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "real").read_text() == "new"
    (tmp_path / "dangling").symlink_to(tmp_path / "folder" / "made")
    put(tmp_path / "dangling", "new")
    assert (tmp_path / "folder" / "made").read_text() == "new"


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(fq.ArchiveError, match=r"cannot write .*/a'.*No space left"), replacing(path, fq.ArchiveError):
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyboardInterrupt), replacing(path, fq.ArchiveError):
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a"]
    for bad in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(fq.ArchiveError, match="cannot write"):
            put(bad, "x")


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    code = (
        "import os, signal\nfrom fxquant.files import replacing\nfrom fxquant.errors import ArchiveError\n"
        f"with replacing({str(path)!r}, ArchiveError) as part:\n"
        "    part.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2
    put(path, "new")  # and sweeps up
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a"]


def test_a_device_is_written_to(tmp_path: Path) -> None:
    put(Path("/dev/null"), "x")
    assert not Path("/dev/null").is_file()
