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
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from fxquant.engines.native.machine import Machine

log = logging.getLogger("fxquant")

_MOST_BYTES, _MOST_ENTRIES = 256 * 2**20, 2048
_LARGE = 2**20


def default_directory() -> Path | None:
    """Tell where object code is kept unless another place is given: in the user's cache directory.

    A user that the system does not know, as in a container, has none.
    """
    try:
        return Path.home() / ".cache" / "fxquant" / "native"
    except RuntimeError:
        return None


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
        with self._open() as folder:
            if folder is None:
                return None
            try:
                with open(name, "rb", opener=lambda path, flags: _open_in(folder, path, flags)) as file:
                    if not _is_own(os.fstat(file.fileno())):
                        return None
                    digest, code = file.readline().strip(), file.read()
            except OSError:
                return None
        return code if digest == _digest(name, code) else None

    def store(self, name: str, code: bytes) -> None:
        """Keep the code; other processes see all of it or nothing."""
        with self._open() as folder:
            if folder is None:
                return
            part = f"{secrets.token_hex(8)}.part"
            try:
                handle = _open_in(folder, part, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                try:
                    with open(handle, "wb") as file:
                        file.write(_digest(name, code) + b"\n" + code)
                    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    os.unlink(part, dir_fd=folder)
                    raise
            except OSError as error:
                log.info("native code is not kept in %s: %s", self.directory, error)
                return
            _trim(folder)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int | None]:
        """Give a descriptor of the directory, made if need be; None if it is not the user's alone.

        What is read and written then is in the directory that was looked at, whatever takes its place meanwhile.
        """
        if self.directory is None or not hasattr(os, "getuid"):
            yield None
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            yield None
            return
        try:
            own = _is_own(os.fstat(folder))
            if not own:
                log.info("native code is not kept in %s, which is not the user's alone", self.directory)
            yield folder if own else None
        finally:
            os.close(folder)


def _trim(folder: int) -> None:
    """Drop entries if there are too many: large ones, which hold weights, before code, and those written first."""
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
            found.append((state.st_mtime, state.st_size, name))
    total, count = sum(size for _, size, _ in found), len(found)
    for _, size, name in sorted(found, key=lambda entry: (entry[1] < _LARGE, entry)):
        if total <= _MOST_BYTES and count <= _MOST_ENTRIES:
            break
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        total, count = total - size, count - 1


def _digest(name: str, code: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + code).hexdigest().encode()


def _is_own(state: os.stat_result) -> bool:
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _open_in(folder: int, name: str, flags: int) -> int:
    """Open a file of a directory, and no link; what is made is readable by the user only."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder)
