"""The code of each kernel is asked for once, some calls before the first one."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from fxquant.engines.native.code_ahead import ask_for_code, code_ahead
from fxquant.engines.native.ir import Function


def names(calls: list[str]) -> list[str]:
    found = code_ahead([[Function(name, ()) for name in call] for call in calls])
    return ["".join(kernel.name for kernel in each) for each in found]


def test_once_and_early() -> None:
    assert names(["a", "bc", "b", "d", "a", "e", "d"]) == ["abc", "d", "", "e", "", "", ""]


def test_not_for_a_call_alone() -> None:
    assert names(["ab"]) == [""]
    assert names([]) == []


def test_all_of_it_is_asked_for() -> None:
    kernel, caller = Function("kernel", ()), Function("caller", ())
    kernel.lines += ["  ret void"] * 1000
    ask_for_code(caller, kernel)
    assert any("getelementptr i8, ptr @kernel" in line for line in caller.lines)
    assert any(line.endswith(f"{5 * len(kernel.lines)}") for line in caller.lines if "icmp slt" in line)
    assert "llvm.prefetch.p0" in caller.used
