"""How busy others keep the machine is said where times are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.engines import machine_load
from fxquant.engines.machine_load import busy_note, watch_others
from fxquant.engines.timing import Timing
from fxquant.tables.benchmark import Benchmark, Row


def test_what_others_took_is_told_from_what_this_process_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine_load, "_STAT", stat)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("time.process_time", lambda: float(stat.read_text().split()[-1]) / 100)
    # user nice system idle iowait irq softirq steal guest; what this process had stands where guests' niced time does
    stat.write_text("cpu 1000 0 0 1000 0 0 0 0 0 0\ncpu0 1 2 3\n0")
    others = watch_others()
    stat.write_text("cpu 1500 0 100 1300 100 0 0 0 0 0\ncpu0 1 2 3\n200")
    assert others() == pytest.approx(0.4)  # of 10 seconds 6 were busy, 2 of them ours
    stat.unlink()
    assert others() is None and watch_others()() is None


def test_a_busy_machine_is_said_and_a_quiet_one_is_not() -> None:
    assert busy_note(None) == busy_note(0.05) == ""
    assert "45% of the CPUs" in busy_note(0.45)
    row = Row(name="float", timing=Timing(median=1.0, low=1.0, high=1.0, runs=5), speedup=1.0, size=1.0, memory=None)
    assert "too long" in str(Benchmark(rows=(row,), threads=1, others=0.45))
    assert "too long" not in str(Benchmark(rows=(row,), threads=1, others=0.01))
