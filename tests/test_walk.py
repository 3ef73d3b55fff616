"""From `quantize` to the kernel: each stage of the pipeline is entered once, in its order, and a call runs kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import fxquant as fq
from fxquant.flows.pipelines import PREPARE
from zoo import ZOO

PACKAGE = Path(fq.__file__).parent
STAGES = (
    "api.quantize",
    "quantize_fx.prepare_fx",
    "assemble.assemble",
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
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found.append(".".join((*path.relative_to(PACKAGE).with_suffix("").parts, frame.f_code.co_name)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def test_a_model_walks_through_the_packages_in_order() -> None:
    entry = ZOO["resnet"]
    model, (x,) = entry.build().eval(), entry.inputs()
    made: list[torch.nn.Module] = []
    calls = called_by(lambda: made.append(fq.quantize(model, [x], engine="onednn")))
    assert [call for call in calls if call in STAGES] == list(STAGES)
    names = [call.rpartition(".")[2] for call in calls if call.startswith("passes.")]
    order = [names.index(each.__name__) for each in PREPARE]
    assert order == sorted(order)
    made[0](x)  # the first call looks for a faster way to make the others
    packages = {call.partition(".")[0] for call in called_by(lambda: made[0](x))}
    assert packages <= {"graph", "engines", "passes", "numerics"}
