"""Whether quantizing leaves the float model alone, on architectures that nobody here wrote.

Parameters, buffers, plain attributes (deep), modes, hooks and outputs are compared before and after prepare, calibrate
and convert, for each way of capture. A way that does not take a model has to leave it alone, too. With `--errors`, so
does one that is cut off: an error is raised half-way through the forwards and passes of each of the three stages.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import fxquant as fq
from _zoo import build, entries

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from state import state_of

METHODS = ("auto", "symbolic", "export", "piecewise")
COUNT = 30


def outputs(model: torch.nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        found = model(*args, **kwargs)
    leaves = tree_leaves(dict(found) if hasattr(found, "items") else found)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class Injected(Exception):
    """Raised on purpose."""


class Calls:
    """Counts forwards and the functions of passes; raises at the one that was asked for."""

    def __init__(self, last: int = 0) -> None:
        self.count, self.last = 0, last

    def see(self, frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (code.co_name == "forward" or self.is_of_a_pass(code)):
            self.count += 1
            if self.count == self.last:
                raise Injected

    def is_of_a_pass(self, code: types.CodeType) -> bool:
        return "fxquant/passes/" in code.co_filename and not code.co_flags & inspect.CO_GENERATOR  # one may be closing


@contextlib.contextmanager
def watched(calls: Calls) -> Iterator[None]:
    sys.setprofile(calls.see)
    try:
        yield
    finally:
        sys.setprofile(None)


def quantize(model: torch.nn.Module, args: Any, kwargs: Any, method: str, stages: dict[str, Calls]) -> None:
    """All three stages, each under the eyes of its `Calls`."""
    mapping = fq.get_default_qconfig_mapping("x86")
    with watched(stages["prepare"]):
        prepared = fq.prepare_fx(model, mapping, args, example_kwargs=kwargs, method=method)
    with watched(stages["calibrate"]):
        fq.calibrate(prepared, [args or kwargs])
    with watched(stages["convert"]):
        fq.convert_fx(prepared)


STAGES = ("prepare", "calibrate", "convert")


def differences(name: str, methods: tuple[str, ...], errors: bool) -> list[str]:
    """What quantizing changed, by method; what a method says if it does not take the model is no difference."""
    torch.manual_seed(0)
    model, args, kwargs = build(name)
    expected = outputs(model, args, kwargs)
    found = []
    for method in methods:
        before = state_of(model)
        seen = {stage: Calls() for stage in STAGES}
        with contextlib.suppress(fq.CaptureError):
            quantize(model, args, kwargs, method, seen)
        for stage in STAGES if errors else ():
            stages = {each: Calls(seen[stage].count // 2 if each == stage else 0) for each in STAGES}
            try:
                quantize(model, args, kwargs, method, stages)
                found += [f"{method}: no error in {stage}"] * (seen[stage].count > 1)
            except (Injected, fq.FxQuantError):
                pass
        after = state_of(model)
        found += [f"{method}: {key}" for key in before if before[key] != after[key]]
        again = outputs(model, args, kwargs)
        if len(again) != len(expected) or not all(map(torch.equal, again, expected)):
            found.append(f"{method}: outputs")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of architectures; {COUNT} of all libraries if none")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--errors", action="store_true", help="raise one in the middle of each stage as well")
    options = parser.parse_args()
    every = list(entries())
    spread = [every[i * len(every) // COUNT] for i in range(COUNT)]
    wrong = 0
    for name in options.names or spread:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differences(name, tuple(options.methods), options.errors)
        wrong += bool(found)
        print(f"{name}: {', '.join(found) or 'as it was'}", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
