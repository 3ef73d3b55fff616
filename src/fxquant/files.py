"""Write a file as a whole or not at all: beside its place first, then on to the disk, then renamed.

A full disk, a directory or file that cannot be written or a process that is killed leave the file that was there. A
link is followed, the mode of a file that is there is kept, and a new one gets the mode that the umask says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from fxquant.errors import FxQuantError

Json: TypeAlias = dict[str, Any]  # an object of JSON, as `json.loads` gives it


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], error: type[FxQuantError]) -> Iterator[Path]:
    """Give a new file to write to, which takes the place of `path` when the block ends well.

    An OSError becomes `error`.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            if target.is_dir():
                raise IsADirectoryError("it is a directory")
            yield target  # a device or a pipe
            return
        with _part_of(target) as (part, mode):
            yield part
            part.chmod(mode)  # libraries make files of their own mode
            sync(part)
            part.replace(target)
        sync(target.parent)
    except OSError as failure:
        raise error(f"{_refused(path, failure)} What was there before is as it was. {_NEXT}") from failure


def refuse_unwritable(path: str | os.PathLike[str], error: type[FxQuantError]) -> None:
    """Raise if a file cannot be written there, before the work whose result it is to hold."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError("it is a directory")
        if not target.exists() or target.is_file():
            with _part_of(target):
                pass
    except OSError as failure:
        raise error(f"{_refused(path, failure)} {_NEXT}") from failure


_NEXT = "Give a path that can be written, on a disk with room for it."


def _refused(path: str | os.PathLike[str], failure: OSError) -> str:
    return f"cannot write {str(path)!r}: {failure.strerror or failure}."


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[tuple[Path, int]]:
    """An empty file beside the target, which is gone at the end, and the mode that it is to have."""
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is write-protected")
    _sweep(target)
    part = target.with_name(f".{_stem(target)}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = stat.S_IMODE((target if target.exists() else part).stat().st_mode)
        yield part, mode
    finally:
        part.unlink(missing_ok=True)


def _stem(target: Path) -> str:
    """Return the beginning of a name, so that what is added fits into the 255 bytes that names have."""
    return os.fsencode(target.name)[:100].decode(errors="ignore")


def _sweep(target: Path) -> None:
    """Remove what processes that were killed left behind."""
    for part in target.parent.glob(f".{_escaped(_stem(target))}.*.part"):
        pid = part.name.split(".")[-3]
        if pid.isdigit() and not _is_alive(int(pid)):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sync(path: Path) -> None:
    """On to the disk; directories cannot be opened everywhere."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)
