"""Object code on disk, so that a model is compiled once for all processes.

An entry's name is a digest of the IR, LLVM's version and the machine; its first line is a digest of that name and of
the code. An entry that does not fit, for whatever reason, is not used and is written again. The directory has to belong
to the user, and no one else may write there: code from elsewhere would run as the user. Otherwise nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

from fxquant.engines.native.machine import Machine

log = logging.getLogger("fxquant")

_MOST_BYTES, _MOST_ENTRIES = 256 * 2**20, 2048


def default_directory() -> Path:
    """Where object code is kept unless another place is given: in the user's cache directory."""
    return Path.home() / ".cache" / "fxquant" / "native"


def entry_name(text: str, machine: Machine) -> str:
    """Return the digest of all that object code depends on."""
    import llvmlite
    import llvmlite.binding as llvm

    known = (llvmlite.__version__, llvm.llvm_version_info, machine, text)
    return hashlib.sha256(repr(known).encode()).hexdigest()


class Cache:
    """Object code by name in one directory; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def load(self, name: str) -> bytes | None:
        """Return the code, if it is there and whole."""
        directory = self._open()
        if directory is None:
            return None
        try:
            with open(directory / name, "rb", opener=_no_link) as file:
                if not _is_own(os.fstat(file.fileno())):
                    return None
                digest, code = file.readline().strip(), file.read()
        except OSError:
            return None
        return code if digest == _digest(name, code) else None

    def store(self, name: str, code: bytes) -> None:
        """Keep the code; other processes see all of it or nothing."""
        directory = self._open()
        if directory is None:
            return
        try:
            handle, part = tempfile.mkstemp(dir=directory)  # readable by the user only
            try:
                with open(handle, "wb") as file:
                    file.write(_digest(name, code) + b"\n" + code)
                os.replace(part, directory / name)
            except OSError:
                os.unlink(part)
                raise
        except OSError as error:
            log.info("native code is not kept in %s: %s", directory, error)
            return
        self._trim(directory)

    def _open(self) -> Path | None:
        """Return the directory, made if need be; None if it is not the user's alone."""
        if self.directory is None or not hasattr(os, "getuid"):
            return None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(self.directory)
        except OSError:
            return None
        if not stat.S_ISDIR(found.st_mode) or not _is_own(found):
            log.info("native code is not kept in %s, which is not the user's alone", self.directory)
            return None
        return self.directory

    def _trim(self, directory: Path) -> None:
        """Drop the entries that were written first if there are too many."""
        found = []
        for path in directory.iterdir():
            with contextlib.suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total, count = sum(size for _, size, _ in found), len(found)
        for _, size, path in sorted(found):
            if total <= _MOST_BYTES and count <= _MOST_ENTRIES:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total, count = total - size, count - 1


def _digest(name: str, code: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + code).hexdigest().encode()


def _is_own(state: os.stat_result) -> bool:
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
