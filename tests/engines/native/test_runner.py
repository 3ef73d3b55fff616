"""What the native engine does besides the usual call: other sizes, threads, changed models, wrong inputs, the cache."""

from __future__ import annotations

import copy
import ctypes
import functools
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native import compiler, libraries, make_program, program, row_shot, runner, shot
from fxquant.engines.native.runner import NativeRunner
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.threads import Job


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(20, 20, 3, stride=2, groups=20)
        self.act, self.head = nn.Hardswish(), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.act(self.a(x))).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def prepared() -> nn.Module:
    torch.manual_seed(0)
    made = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping("x86"), (torch.randn(1, 3, 16, 16),))
    made(torch.randn(4, 3, 16, 16))
    return made


@pytest.fixture
def native(prepared: nn.Module) -> nn.Module:
    return fq.convert_fx(prepared, engine=fq.Native(cache=None))


@pytest.fixture
def reference(prepared: nn.Module) -> nn.Module:
    return fq.convert_fx(prepared, engine="reference")


def runner_of(model: nn.Module) -> NativeRunner:
    assert isinstance(model, Region)
    found = lowering_of(model).runner
    assert isinstance(found, NativeRunner)
    return found


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches of native calls."""
    seen: list[int] = []
    run = program.Program.run

    def count(self: program.Program, inputs: Any, batch: int, *into: Any) -> Any:
        seen.append(batch)
        return run(self, inputs, batch, *into)

    shoot = shot.Shot.__call__

    def count_shot(self: shot.Shot, inputs: Any) -> Any:
        seen.append(len(inputs[0]))
        return shoot(self, inputs)

    shoot_rows = row_shot.RowShot.__call__

    def count_rows(self: row_shot.RowShot, inputs: Any) -> Any:
        seen.extend(piece.samples for _, _, piece, _, _ in self._pieces)
        return shoot_rows(self, inputs)

    monkeypatch.setattr(program.Program, "run", count)
    monkeypatch.setattr(shot.Shot, "__call__", count_shot)
    monkeypatch.setattr(row_shot.RowShot, "__call__", count_rows)
    return seen


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and sqnr_db(a.detach(), b) > 20


def test_any_batch_is_one_program(native: nn.Module, reference: nn.Module) -> None:
    for batch in (1, 2, 7):
        x = torch.randn(batch, 3, 16, 16)
        assert close(reference(x), native(x))
    assert len(runner_of(native).programs) == 1


def test_many_rows_of_a_linear_are_one_product(runs: list[int]) -> None:
    x = torch.randn(2, 256)
    native = fq.quantize(
        nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).eval(), [x], engine="native"
    )
    for batch, samples in ((1, [1]), (3, [3]), (4, [1]), (64, [1]), (2000, [31, 1])):
        x = torch.randn(batch, 256)
        with torch.no_grad():
            native(x)
            runs.clear()
            assert native(x).shape == x.shape and runs == samples


def test_many_rows_are_one_product_from_the_first_call_on() -> None:
    model, x = nn.Sequential(nn.Linear(256, 512), nn.Sigmoid(), nn.Linear(512, 256)).eval(), torch.randn(2000, 256)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    with torch.no_grad():
        fresh = fq.convert_fx(prepared, engine=fq.Native(cache=None))
        runner_of(fresh).known.clear()
        runner_of(fresh).programs.clear()
        assert torch.equal(fresh(x), fresh(x))


def test_the_same_input_gives_the_same_answer_every_time(prepared: nn.Module, runs: list[int]) -> None:
    native = fq.convert_fx(prepared, engine=fq.Native(cache=None, sizes=4))
    inputs = [torch.randn(2, 3, size, 9) for size in range(5, 10)]
    inputs.append(inputs[0].to(memory_format=torch.channels_last))
    first = []
    for x in inputs:
        runs.clear()
        first.append((native(x), bool(runs)))
    assert [by_code for _, by_code in first] == [True] * 3 + [False] * 3  # one more is the example's
    for _ in range(3):
        for x, (expected, _) in zip(inputs, first, strict=True):
            assert torch.equal(native(x), expected)
    assert len(runner_of(native).programs) == 4
    copied = copy.deepcopy(native)
    assert all(torch.equal(copied(x), expected) for x, (expected, _) in reversed(list(zip(inputs, first, strict=True))))


def test_a_size_that_is_not_used_any_more_gives_its_place(
    prepared: nn.Module, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PATIENCE", 5)
    native = fq.convert_fx(prepared, engine=fq.Native(cache=None, sizes=3))
    used, left, late = (torch.randn(1, 3, size, 9) for size in (5, 6, 7))
    expected = native(used)
    native(left)

    def come(count: int) -> list[bool]:
        found = []
        for _ in range(count):
            assert torch.equal(native(used), expected)  # what is in use stays as it is
            runs.clear()
            native(late)
            found.append(bool(runs))
        return found

    assert not any(come(9)) and all(come(3)[1:])
    assert len(runner_of(native).programs) == 2
    runs.clear()
    native(left)  # there is room again: the example's size did not come, either
    assert runs and len(runner_of(native).programs) == 3


def test_sizes_without_code_are_counted(prepared: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    native = fq.convert_fx(prepared, engine=fq.Native(cache=None, sizes=3))
    tried: list[object] = []

    def refuse(region: Region, graph: object, inputs: object, machine: object) -> None:
        tried.append(inputs)
        raise Unread("it does not fit")

    monkeypatch.setattr(make_program, "read", refuse)
    for _ in range(2):
        for size in range(5, 10):
            native(torch.randn(1, 3, size, 5))
    assert len(tried) == 2


def test_a_number_of_sizes_is_one() -> None:
    with pytest.raises(fq.ConfigError, match="sizes=-1 is not a number of sizes"):
        fq.Native(sizes=-1)


def test_gradients_run_the_lowered_graph(native: nn.Module, runs: list[int]) -> None:
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    runs.clear()
    native(x)
    assert not runs
    with torch.no_grad():
        native(x)
    assert runs


@pytest.mark.broad
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last),
        torch.randn(2, 16, 16, 3).permute(0, 3, 1, 2),
        torch.randn(2, 6, 16, 16)[:, ::2],
        torch.randn(2 * 3 * 16 * 16 + 1)[1:].view(2, 3, 16, 16),
        torch.randn(1, 3, 16, 16).expand(3, 3, 16, 16),
        torch.full((1, 3, 16, 16), float("nan")),
        torch.full((1, 3, 16, 16), float("inf")),
        torch.full((1, 3, 16, 16), -1e30),
    ],
    ids=["channels_last", "permuted", "strided", "unaligned", "expanded", "nan", "inf", "large"],
)
def test_odd_inputs(native: nn.Module, reference: nn.Module, x: Tensor, runs: list[int]) -> None:
    assert close(reference(x), native(x)) and runs


@pytest.mark.broad
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(0, 3, 16, 16),
        torch.randn(2, 4, 16, 16),
        torch.randn(2, 3, 16),
        torch.randn(3, 16, 16),
        torch.randn(2, 3, 16, 16, dtype=torch.float64),
        torch.randn(2, 3, 16, 16, dtype=torch.bfloat16),
        torch.zeros(2, 3, 16, 16, dtype=torch.int64),
        torch.randn(2, 3, 1, 1),
        torch.randn(2, 3, 0, 16),
    ],
    ids=["empty", "channels", "dims", "no_batch", "float64", "bfloat16", "int64", "too_small", "no_rows"],
)
def test_wrong_inputs_end_as_in_the_reference(native: nn.Module, reference: nn.Module, x: Tensor) -> None:
    try:
        expected = reference(x)
    except Exception:
        with pytest.raises(Exception):  # noqa: B017, PT011
            native(x)
        return
    try:
        actual = native(x)
    except RuntimeError:
        assert x.dtype != torch.float32
        return
    assert expected.shape == actual.shape and (not x.numel() or close(expected, actual))


def test_state_dict_is_seen(native: nn.Module, reference: nn.Module, runs: list[int]) -> None:
    x = torch.randn(2, 3, 16, 16)
    before = native(x)
    state = {name: value.clone() for name, value in native.state_dict().items()}
    for name, value in state.items():
        if name.endswith("head.weight_scale"):
            value.mul_(2)
    native.load_state_dict(state)
    reference.load_state_dict(state)
    runs.clear()
    assert close(reference(x), native(x)) and runs
    assert not close(before, native(x))


def test_hooks_run_the_lowered_graph(native: nn.Module, runs: list[int]) -> None:
    seen: list[str] = []
    x = torch.randn(2, 3, 16, 16)
    native(x)
    runs.clear()
    handle = native.register_forward_hook(lambda *_: seen.append("hook"))
    native(x)
    assert seen and not runs
    handle.remove()
    native(x)
    assert runs


def test_modes_run_the_lowered_graph(native: nn.Module, runs: list[int], caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(2, 3, 16, 16)
    runs.clear()
    with caplog.at_level(logging.INFO, "fxquant"), torch.overrides.BaseTorchFunctionMode():
        native(x)
    assert not runs and "a mode of torch" in caplog.text


def test_several_python_threads(native: nn.Module) -> None:
    inputs = [torch.randn(2, 3, 16, 16) for _ in range(4)]
    expected = [native(x) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not torch.equal(native(inputs[index]), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_two_threads_give_the_same(native: nn.Module, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(batch, 3, 16, 16)
    expected = native(x)
    monkeypatch.setattr(program, "_WORTH_THREADS", 0)
    monkeypatch.setattr(program.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(program.os, "cpu_count", lambda: 2)
    for _ in range(5):
        assert torch.equal(native(x), expected)


@pytest.mark.parametrize("batch", [1, 5])
def test_threads_that_do_not_come_hold_nobody_up(
    native: nn.Module, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(batch, 3, 16, 16)
    expected = native(x)
    monkeypatch.setattr(program, "_WORTH_THREADS", 0)
    monkeypatch.setattr(program.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(program.os, "cpu_count", lambda: 2)
    late: list[Callable[[], None]] = []

    class Absent:
        def __init__(self, library: compiler.Library) -> None:
            self.work = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("work"))

        def run(self, job: Job) -> bool:
            self.work(job.address, 0)
            late.append(lambda: self.work(job.address, 1))
            return True

    monkeypatch.setattr(program, "workers", Absent)
    results = [native(x) for _ in range(3)]
    for come in late:
        come()  # after all is done
    assert len(late) == 3 and all(torch.equal(result, expected) for result in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_after_a_fork(native: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 3, 16, 16)
    monkeypatch.setattr(program, "_WORTH_THREADS", 0)
    monkeypatch.setattr(program.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(program.os, "cpu_count", lambda: 2)
    expected = native(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(native(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks_while_a_thread_compiles(native: nn.Module) -> None:
    assert isinstance(native, Region)
    native(torch.randn(1, 3, 16, 16))
    own, filled = runner_of(native), lowering_of(native).filled
    assert filled is not None
    holds, forked = threading.Event(), threading.Event()

    def compiles() -> None:
        with own._lock, filled._lock:
            with compiler._lock:
                holds.set()
                time.sleep(0.1)  # the fork waits for this one
            forked.wait(60)

    thread = threading.Thread(target=compiles)
    thread.start()
    holds.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with torch.no_grad():
            filled._seen = None  # it looks again, which takes its lock
            native(torch.randn(1, 3, 20, 20))
        os._exit(0 if len(own.programs) == 2 else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestCache:
    @pytest.fixture
    def compiled(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        seen: list[int] = []
        make = compiler.object_code

        def count(*args: Any) -> bytes:
            seen.append(1)
            return make(*args)

        monkeypatch.setattr(libraries, "object_code", count)
        return seen

    def convert(self, prepared: nn.Module, place: Path) -> Tensor:
        model = fq.convert_fx(prepared, engine=fq.Native(cache=place))
        result: Tensor = model(torch.ones(1, 3, 16, 16))
        return result

    def test_compiles_once(self, prepared: nn.Module, tmp_path: Path, compiled: list[int]) -> None:
        place = tmp_path / "code"
        first = self.convert(prepared, place)
        assert compiled and stat.S_IMODE(place.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in place.iterdir())
        compiled.clear()
        assert torch.equal(self.convert(prepared, place), first)
        assert not compiled

    def test_damaged_entries_are_not_trusted(self, prepared: nn.Module, tmp_path: Path, compiled: list[int]) -> None:
        first = self.convert(prepared, tmp_path / "code")
        for path in (tmp_path / "code").iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        compiled.clear()
        assert torch.equal(self.convert(prepared, tmp_path / "code"), first)
        assert compiled

    def test_other_entries_are_not_trusted(self, prepared: nn.Module, tmp_path: Path, compiled: list[int]) -> None:
        self.convert(prepared, tmp_path / "code")
        for index, path in enumerate([*(tmp_path / "code").iterdir()]):
            other = path.with_name(f"{index}" * 64)
            path.rename(other)
            path.write_bytes(other.read_bytes()[:-1])
        compiled.clear()
        self.convert(prepared, tmp_path / "code")
        assert compiled

    def test_places_that_others_write_to_are_not_used(self, prepared: nn.Module, tmp_path: Path) -> None:
        place = tmp_path / "open"
        place.mkdir()
        place.chmod(0o777)
        self.convert(prepared, place)
        assert not list(place.iterdir())


@pytest.mark.parametrize("terminal", [True, False])
def test_long_compilations_are_told_of(
    prepared: nn.Module, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = functools.partial(libraries.Console, force_terminal=terminal)
    monkeypatch.setattr(libraries, "Console", console)
    monkeypatch.setattr(libraries, "_LONG", 0.0)
    fq.convert_fx(prepared, engine=fq.Native(cache=None))
    assert ("compiling native code" in capsys.readouterr().err) is terminal


def test_copies_have_code_of_their_own(native: nn.Module) -> None:
    x = torch.randn(2, 3, 16, 16)
    twin = copy.deepcopy(native)
    assert torch.equal(twin(x), native(x))
    assert runner_of(twin).programs.keys() == runner_of(native).programs.keys()


def test_profile(native: nn.Module) -> None:
    found = fq.profile(native, torch.randn(2, 3, 16, 16), rounds=2)
    assert {row.kernel.split()[0] for row in found} >= {"conv", "depthwise", "linear"}
    assert sum(row.macs for row in found) == 20 * 16 * 16 * 27 + 20 * 7 * 7 * 9 + 100
    assert 0 < found.of_peak < 1 and "conv" in str(found) and "peak" in found.to_json()


def test_profile_needs_native_code(reference: nn.Module) -> None:
    with pytest.raises(fq.StageError, match="native"):
        fq.profile(reference, torch.randn(2, 3, 16, 16))


class Between(nn.Module):
    """A sum of what is there before and after an op without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        late = nn.functional.pad(torch.special.bessel_j0(y), (4, 4, 4, 4), mode="reflect")
        early = self.b(nn.functional.interpolate(y, scale_factor=2.0))
        return self.c((early + late).relu())


@pytest.mark.parametrize("batch", [1, 3])
def test_python_between_kernels(batch: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, 3, 8, 8)
    prepared = fq.prepare_fx(Between().eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    native, reference = (fq.convert_fx(prepared, engine=engine) for engine in (fq.Native(cache=None), "reference"))
    assert close(reference(x), native(x))
    (made,) = runner_of(native).programs.values()
    assert made.levels == [0, 2] and any("bessel" in name for name in runner_of(native).outside)
    assert [row.kind for row in fq.explain(native) if "outside of native code" in row.reason] == ["special_bessel_j0"]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "unbind": lambda y: y.unbind(1)[1],
    "select": lambda y: y[0],
    "unfold": lambda y: y.unfold(2, 3, 2),
    "as_strided": lambda y: y.as_strided((2, 4), (1, 2), 3),
}


class Viewed(nn.Module):
    def __init__(self, view: str) -> None:
        super().__init__()
        self.conv, self.view = nn.Conv2d(3, 8, 3, padding=1), view

    def forward(self, x: Tensor) -> Tensor:
        return VIEWS[self.view](self.conv(x).relu())


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_results_lie_as_those_of_the_float_model(view: str) -> None:
    torch.manual_seed(0)
    model, x = Viewed(view).eval(), torch.randn(4, 3, 12, 12)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantized = fq.convert_fx(prepared, engine=fq.Native(cache=None))
    for given in (x, x.to(memory_format=torch.channels_last), x):
        with torch.no_grad():
            ours, theirs = quantized(given), model(given)
        assert ours.stride() == theirs.stride()
        assert sqnr_db(theirs, ours) > 25


class Decoder(nn.Module):
    """Calls a part with a mask or without, as code looks at the values."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Masked()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.part(x, mask if bool(mask.any()) else None)  # type: ignore[no-any-return]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.a(x).relu()
        return self.b(y if mask is None else y.masked_fill(mask, 0.0))  # type: ignore[no-any-return]


def test_what_a_graph_refuses_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, mask, none = torch.randn(3, 5, 8), torch.rand(3, 5, 1) > 0.5, torch.zeros(3, 5, 1, dtype=torch.bool)
    float_model = Decoder().eval()
    model = fq.quantize(float_model, [(x, mask)], engine="native")
    reads: list[int] = []
    read = make_program.read
    monkeypatch.setattr(make_program, "read", lambda *args: reads.append(1) or read(*args))
    with torch.no_grad():
        for _ in range(5):
            assert sqnr_db(float_model(x, none), model(x, none)) > 20  # by the code as it is written
        assert len(reads) == 1
        assert close(float_model(x, mask), model(x, mask))
