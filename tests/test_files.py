"""A file is written as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import resource
import signal
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.config_file.command import write_template
from fxquant.config_file.quantized_model import QuantizedModel
from fxquant.engines.native.cache import Cache
from fxquant.export.onnx.regions import export_regions
from fxquant.exports import FORMATS
from fxquant.files import refuse_unwritable, replacing
from fxquant.flows.checkpoint import write_checkpoint
from fxquant.html_report.page import render
from fxquant.integers.dump import write_program
from fxquant.integers.program import Program
from fxquant.tuning.journal import TRIALS, Journal


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


def test_a_file_that_is_write_protected_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a", "one")
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path).name, mode) != ("a", os.W_OK))
    with pytest.raises(fq.ArchiveError, match="write-protected"):
        put(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one" and os.listdir(tmp_path) == ["a"]
    with pytest.raises(fq.ArchiveError, match="write-protected"):
        refuse_unwritable(tmp_path / "a", fq.ArchiveError)


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


def test_ctrl_c_as_a_file_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fxquant.files.os.close", interrupted)
        with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a", fq.ArchiveError):
            pass
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    child = os.fork()
    if child == 0:
        with replacing(path, fq.ArchiveError) as part:
            part.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2
    put(path, "new")  # and sweeps up
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a"]


def test_a_device_is_written_to(tmp_path: Path) -> None:
    put(Path("/dev/null"), "x")
    assert not Path("/dev/null").is_file()


def test_long_names_of_wide_letters(tmp_path: Path) -> None:
    put(tmp_path / ("ü" * 120), "x")
    assert (tmp_path / ("ü" * 120)).read_text() == "x"


@contextlib.contextmanager
def full_disk(room: int = 64) -> Iterator[None]:
    """Files get no larger than a few bytes, as on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    x = torch.randn(2, 4)
    return fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [x], engine="reference")


def _onnx(net: nn.Module, folder: Path) -> None:
    ir = pytest.importorskip("onnx_ir")
    from fxquant.export.onnx.export import _write

    weight = ir.Value(name="w", const_value=ir.tensor(torch.zeros(64).numpy(), name="w"))
    graph = ir.Graph([], [], nodes=[], initializers=[weight], opset_imports={"": 20})
    _write(ir.Model(graph, ir_version=10), folder / "net.onnx")


def _program(net: nn.Module, folder: Path) -> None:
    write_program(Program(inputs=(), outputs=(), steps=(), constants={}, notes=("n" * 99,)), folder)


def _checkpoint(net: nn.Module, folder: Path) -> None:
    write_checkpoint(folder / "a.pt", {"model": net}, [0.5], {})


def _executorch(_: nn.Module, folder: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    net = fq.quantize(model, [x], target="xnnpack", engine="reference", algorithms=())
    lowered = (Counter(executorch_call_delegate=1), SimpleNamespace(buffer=b"program" * 20))
    find = importlib.util.find_spec
    with pytest.MonkeyPatch.context() as patch:  # executorch itself is seldom installed
        patch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "executorch" or find(name, *rest))
        patch.setattr("fxquant.export.executorch.export.export_program", lambda *args: None)
        patch.setattr("fxquant.export.executorch.export._lower", lambda program: lowered)
        fq.export_executorch(net, folder / "net.pte", (x,))


def _onnx_regions(net: nn.Module, folder: Path) -> None:
    ends = SimpleNamespace(graph=SimpleNamespace(inputs=[], outputs=[]))
    export_regions(net, folder, ((torch.randn(2, 4),), {}), lambda *args: ends)


def _statistics(net: nn.Module, folder: Path) -> None:
    journal = Journal(None, {})
    journal.path = folder
    journal.save_statistics(nn.ModuleDict({"statistics": nn.ParameterDict({"a": nn.Parameter(torch.zeros(64))})}))


def _page(net: nn.Module, folder: Path) -> None:
    with replacing(folder / "report.html", fq.errors.FxQuantError) as part:
        part.write_text(render({"title": "x"}), encoding="utf-8")


_WRITES = re.compile(
    r"write_text|write_bytes|open\([^)]*[\"'][wax]b?[\"']|ir\.save\(|torch\.save\(|np\.save|json\.dump\(|os\.(open|replace)\("
)
WRITERS: dict[str, Callable[[nn.Module, Path], object]] = {
    "save": lambda net, folder: fq.save(net, folder / "net.fq"),
    "export_json": lambda net, folder: fq.export_json(net, folder / "net.json"),
    "export_pt2": lambda net, folder: fq.export_pt2(net, folder / "net.pt2", (torch.randn(2, 4),)),
    "fit": lambda net, folder: QuantizedModel(net, {"a": "b" * 99}).save(folder),
    "onnx": _onnx,
    "integers": _program,
    "onnx_regions": _onnx_regions,
    "executorch": _executorch,
    "statistics": _statistics,
    "checkpoint": _checkpoint,
    "report": _page,
}


def test_no_file_is_written_but_by_these() -> None:
    """All that writes goes through `replacing`, or has a test of its own here (journal, cache)."""
    source = Path(fq.__file__).parent
    found = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if _WRITES.search(path.read_text())}
    assert found == {
        *("archive/archive.py", "config_file/command.py", "config_file/quantized_model.py", "export/encodings.py"),
        *("export/executorch/export.py", "export/onnx/export.py", "export/onnx/regions.py", "export/pt2.py"),
        *("flows/checkpoint.py", "html_report/report.py", "integers/dump.py", "tuning/journal.py"),
        *("engines/native/cache.py", "files.py"),
        "tables/benchmark.py",  # to /proc, and to memory
        "targets/file.py",  # in an example
    }


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_all_that_was_there(net: nn.Module, tmp_path: Path, writer: str) -> None:
    WRITERS[writer](net, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with full_disk(), pytest.raises(fq.errors.FxQuantError, match=f"cannot write .*{tmp_path.name}.*too large"):
        WRITERS[writer](net, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


class ReadOnly:
    """A folder in which nothing can be made or written, for root too. A hook of Python's is there for good."""

    def __init__(self) -> None:
        self.folder = ""
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[object, ...]) -> None:
        if self.folder and event == "open" and str(args[0]).startswith(self.folder):
            flags = args[2] if isinstance(args[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]))


@pytest.fixture(scope="module")
def read_only() -> ReadOnly:
    return ReadOnly()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_read_only_folder_leaves_all_that_was_there(
    net: nn.Module, tmp_path: Path, writer: str, read_only: ReadOnly
) -> None:
    WRITERS[writer](net, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    read_only.folder = str(tmp_path)
    try:
        with pytest.raises(fq.errors.FxQuantError, match=f"cannot write .*{tmp_path.name}.*Read-only"):
            WRITERS[writer](net, tmp_path)
    finally:
        read_only.folder = ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_process_that_is_killed_while_it_writes_leaves_the_old_files(
    net: nn.Module, tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[writer](net, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("fxquant.files.sync", lambda path: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        WRITERS[writer](net, tmp_path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".part"} == before


def test_a_full_disk_or_a_read_only_folder_leaves_no_half_template(tmp_path: Path, read_only: ReadOnly) -> None:
    with full_disk(), pytest.raises(fq.errors.ConfigError, match="cannot write"):
        write_template(tmp_path / "conf.yaml", "post_training_static_quant")
    read_only.folder = str(tmp_path)
    try:
        with pytest.raises(fq.errors.ConfigError, match=r"cannot write .*Read-only"):
            write_template(tmp_path / "conf.yaml", "post_training_static_quant")
    finally:
        read_only.folder = ""
    assert not os.listdir(tmp_path)


def test_a_full_disk_leaves_the_workspace_of_a_search(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"seed": 1})
    before = (tmp_path / TRIALS).read_bytes()
    with full_disk(len(before) + 20), pytest.raises(fq.errors.ConfigError, match="cannot be written"):
        journal.add({"kind": "trial", "plan": "x" * 99})
    assert (tmp_path / TRIALS).read_bytes() == before and len(journal.lines) == 1
    journal.add({"kind": "trial", "plan": {}, "error": "y"})
    assert [line["kind"] for line in Journal(tmp_path, {"seed": 1}).lines] == ["run", "trial"]


def test_a_read_only_workspace_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Journal(tmp_path, {"seed": 1})

    def refuse(*args: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "truncate", refuse)
    with pytest.raises(fq.errors.ConfigError, match=r"cannot be written: Read-only"):
        Journal(tmp_path, {"seed": 1})


@pytest.mark.parametrize("line", ["5", "[]", '{"a": 1}', "[" * 9000])
def test_a_workspace_with_lines_of_others(tmp_path: Path, line: str) -> None:
    (tmp_path / TRIALS).write_text(f"{line}\n")
    with pytest.raises(fq.errors.ConfigError, match="damaged at byte 0"):
        Journal(tmp_path, {})


def test_a_full_disk_keeps_no_code(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    cache = Cache(tmp_path)
    with full_disk():
        cache.store("a" * 64, b"code" * 99)
    assert not os.listdir(tmp_path) and cache.load("a" * 64) is None


def test_a_saved_model_does_not_go_by_the_name_of_another_format(tmp_path: Path) -> None:
    quantized = fq.quantize(nn.Linear(4, 4).eval(), [torch.randn(2, 4)], engine="reference")
    for suffix, call in FORMATS.values():
        if not suffix:
            continue
        with pytest.raises(fq.ArchiveError, match=f"{call.__name__}.*writes {suffix}"):
            fq.save(quantized, tmp_path / f"net{suffix}")
    assert not [*tmp_path.iterdir()]


def test_an_export_does_not_go_by_the_name_of_another_format(net: nn.Module, tmp_path: Path) -> None:
    for _, call in FORMATS.values():
        for suffix in {".fq", *(suffix for suffix, other in FORMATS.values() if suffix and other is not call)}:
            with pytest.raises(fq.errors.ConfigError, match=rf"{call.__name__} got .*writes \{suffix}. Give "):
                call(net, tmp_path / f"net{suffix}")
    assert not [*tmp_path.iterdir()]
