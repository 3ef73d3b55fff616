"""Whether quantizing leaves the float model alone, on architectures that nobody here wrote.

Parameters, buffers, plain attributes (deep), modes, hooks and outputs are compared before and after prepare, calibrate
and convert, for each way of capture. A way that does not take a model has to leave it alone, too. With `--errors`, so
does one that is cut off: an error is raised half-way through the forwards and passes of each of the three stages.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Iterator
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
        if event == "call" and is_counted(frame.f_code):
            self.count += 1
            if self.count == self.last:
                raise Injected


@functools.cache  # asked at every call of a function
def is_counted(code: types.CodeType) -> bool:
    of_a_pass = "fxquant/passes/" in code.co_filename and not code.co_flags & inspect.CO_GENERATOR  # one may be closing
    return code.co_name == "forward" or of_a_pass


@contextlib.contextmanager
def watched(calls: Calls) -> Iterator[None]:
    sys.setprofile(calls.see)
    try:
        yield
    finally:
        sys.setprofile(None)


def stages(model: torch.nn.Module, args: Any, kwargs: Any, method: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name the three stages, each with its call; whoever asks for the next one has made it."""
    mapping = fq.get_default_qconfig_mapping("x86")
    prepared: list[torch.nn.Module] = []

    def prepare() -> None:
        prepared.append(fq.prepare_fx(model, mapping, args, example_kwargs=kwargs, method=method))

    yield "prepare", prepare
    yield "calibrate", lambda: fq.calibrate(prepared[0], [args or kwargs])
    yield "convert", lambda: fq.convert_fx(prepared[0])


def cut_off(call: Callable[[], object]) -> bool:
    """Make a call, and again with an error raised half-way; tell whether it came out, if there was a half."""
    calls = Calls()
    with watched(calls):
        call()
    if calls.count < 2:
        return True
    with contextlib.suppress(Injected, fq.FxQuantError), watched(Calls(calls.count // 2)):
        call()
        return False
    return True


def differences(name: str, methods: tuple[str, ...], errors: bool) -> list[str]:
    """What quantizing changed, by method; what a method says if it does not take the model is no difference."""
    torch.manual_seed(0)
    model, args, kwargs = build(name)
    expected = outputs(model, args, kwargs)
    found = []
    for method in methods:
        before = state_of(model)
        with contextlib.suppress(fq.CaptureError):
            for stage, call in stages(model, args, kwargs, method):
                if not errors:
                    call()
                elif not cut_off(call):
                    found.append(f"{method}: no error in {stage}")
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
