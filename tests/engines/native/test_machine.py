"""Which machine a CPU is."""

import pytest

pytest.importorskip("llvmlite")

from fxquant.engines.native import machine
from fxquant.engines.native.machine import AVX512, AVX512_BF16, MACHINES, ZEN4, ZEN5, runs_here

_VNNI = dict.fromkeys(AVX512.needs, True)


@pytest.mark.parametrize(
    ("cpu", "features", "expected"),
    [
        ("znver4", {**_VNNI, "avx512bf16": True}, ZEN4),
        ("znver5", {**_VNNI, "avx512bf16": True}, ZEN5),
        ("sapphirerapids", {**_VNNI, "avx512bf16": True}, AVX512_BF16),
        ("cascadelake", _VNNI, AVX512),
        ("znver4", _VNNI, AVX512),
    ],
)
def test_by_features_and_name(
    cpu: str, features: dict[str, bool], expected: machine.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_platform", lambda: ("x86_64", "linux"))
    monkeypatch.setattr(machine, "_cpu", lambda: cpu)
    monkeypatch.setattr(machine, "_features", lambda: features)
    assert next(each for each in MACHINES if runs_here(each)) is expected


@pytest.mark.parametrize(
    ("triple", "runs"),
    [
        ("x86_64-unknown-linux-gnu", True),
        ("x86_64-alpine-linux-musl", True),
        ("x86_64-pc-windows-msvc", False),
        ("x86_64-apple-darwin23.0.0", False),
        ("aarch64-unknown-linux-gnu", False),
    ],
)
def test_only_on_the_system_that_code_is_made_for(triple: str, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_platform", lambda: machine._platform_of(triple))
    monkeypatch.setattr(machine, "_features", lambda: _VNNI)
    assert runs_here(AVX512) is runs
