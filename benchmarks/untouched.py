"""Whether quantizing leaves the float model alone, on architectures that nobody here wrote.

Parameters, buffers, plain attributes (deep), modes, hooks and outputs are compared before and after prepare, calibrate
and convert, for each way of capture. A way that does not take a model has to leave it alone, too.
"""

from __future__ import annotations

import argparse
import sys
import warnings
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


def differences(name: str, methods: tuple[str, ...]) -> list[str]:
    """What quantizing changed, by method; what a method says if it does not take the model is no difference."""
    torch.manual_seed(0)
    model, args, kwargs = build(name)
    expected = outputs(model, args, kwargs)
    found = []
    for method in methods:
        before = state_of(model)
        try:
            mapping = fq.get_default_qconfig_mapping("x86")
            prepared = fq.prepare_fx(model, mapping, args, example_kwargs=kwargs, method=method)
            fq.calibrate(prepared, [args or kwargs])
            fq.convert_fx(prepared)
        except fq.CaptureError:
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
    options = parser.parse_args()
    every = list(entries())
    spread = [every[i * len(every) // COUNT] for i in range(COUNT)]
    wrong = 0
    for name in options.names or spread:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differences(name, tuple(options.methods))
        wrong += bool(found)
        print(f"{name}: {', '.join(found) or 'as it was'}", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
