"""Which machine a CPU is."""

import pytest

pytest.importorskip("llvmlite")

from fxquant.engines.native import machine
from fxquant.engines.native.machine import AVX512, AVX512_BF16, MACHINES, ZEN4, runs_here

_VNNI = dict.fromkeys(AVX512.needs, True)


@pytest.mark.parametrize(
    ("cpu", "features", "expected"),
    [
        ("znver4", {**_VNNI, "avx512bf16": True}, ZEN4),
        ("sapphirerapids", {**_VNNI, "avx512bf16": True}, AVX512_BF16),
        ("cascadelake", _VNNI, AVX512),
        ("znver4", _VNNI, AVX512),
    ],
)
def test_by_features_and_name(
    cpu: str, features: dict[str, bool], expected: machine.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_arch", lambda: "x86_64")
    monkeypatch.setattr(machine, "_cpu", lambda: cpu)
    monkeypatch.setattr(machine, "_features", lambda: features)
    assert next(each for each in MACHINES if runs_here(each)) is expected
