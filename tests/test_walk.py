"""From `quantize` to the kernel: each stage of the pipeline is entered once, in its order, and a call runs kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import fxquant as fq
from fxquant.flows.pipelines import PREPARE

PACKAGE = str(Path(fq.__file__).parent) + "/"
STAGES = (
    "api.quantize",
    "quantize_fx.prepare_fx",
    "capture_with_config.capture_with_config",
    "capture.capture.capture",
    "flows.decide.watch_for",
    "flows.calibrate.calibrate",
    "quantize_fx.convert_fx",
    "passes.convert.convert",
    "engines.choose.apply_engine",
    "precision.auto.assured",
)


def called_by(work: Callable[[], object]) -> list[str]:
    """The functions of the package that run, in the order of their calls, each by its path and name."""
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            file = code.co_filename.removeprefix(PACKAGE).removesuffix(".py")
            found.append(f"{file.replace('/', '.')}.{code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def test_a_model_walks_through_the_packages_in_order() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(2, 3, 8, 8)
    made: list[nn.Module] = []
    calls = called_by(lambda: made.append(fq.quantize(model, [x], engine="onednn")))
    assert [call for call in calls if call in STAGES] == list(STAGES)
    names = [call.rpartition(".")[2] for call in calls if call.startswith("passes.")]
    order = [names.index(each.__name__) for each in PREPARE]
    assert order == sorted(order)
    made[0](x)  # the first call looks for a faster way to make the others
    packages = {call.partition(".")[0] for call in called_by(lambda: made[0](x))}
    assert packages <= {"graph", "engines", "passes", "numerics"}
