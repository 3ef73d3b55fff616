"""What `quantize` says of automatic precision: what was lifted, what falls short, and what would help."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fxquant.precision.check import DIFFERS, Check
from fxquant.precision.steps import Step

_NAMED = 5  # ops, at most
_ALL = 40.0  # dB: a prediction of more says that nothing is left of what it knows


def tell(before: Check, after: Check, lifted: Sequence[str], wanted: Step | None, may_change: bool) -> None:
    """Warn of what was lifted, and of what falls short; `wanted` would have helped, and was not done."""
    start = f"int8 is {_distance(before)}"
    if lifted:
        warnings.warn(
            f"quantize: {start}. Lifted {_names(lifted)}: now {after.sqnr:.1f} dB (cosine {after.cosine:.4f}). "
            'fq.explain says why; precision="int8" leaves all in int8.',
            stacklevel=4,
        )
    if after.passed:
        return
    end = f"the model is {_distance(after)}" if lifted else start
    if not may_change:
        most = f"Lifting {_names(wanted.names)} would help most. " if wanted is not None and wanted.names else ""
        help_ = f"{most}The rules that were given stay: without qconfig_mapping, quantize lifts what causes it."
    elif wanted is not None and wanted.gain > 1:
        help_ = f"{_what_helps(wanted, bool(lifted))}: give a budget=."
    else:
        help_ = "No few ops cause it."
    warnings.warn(
        f'quantize: {end}. {help_} Else: effort="best", mode="dynamic" or "weight_only", fq.tune with your own metric, '
        "training (docs/accuracy.md).",
        stacklevel=4,
    )


def _what_helps(wanted: Step, lifted: bool) -> str:
    """Say what a step gains, and for which share of the time of the ops that are int8 when it is done."""
    ops = f"{_names(wanted.names)}{', too,' if lifted else ''}"
    gain = f"{wanted.gain:.0f} dB" if wanted.gain < _ALL else f"more than {_ALL:.0f} dB"
    time = f"{wanted.slower:.0%} more time than {'now' if lifted else 'int8'}"
    return f"Lifting {ops} is predicted to gain {gain} for {time}"


def _names(lifted: Sequence[str]) -> str:
    return ", ".join(lifted[:_NAMED]) + (f" and {len(lifted) - _NAMED} more" if len(lifted) > _NAMED else "")


def _distance(found: Check) -> str:
    return f"{found.sqnr:.1f} dB from float (cosine {found.cosine:.4f}){DIFFERS if found.varying else ''}"


def shapes(found: Check) -> str:
    """Say why nothing could be compared."""
    why = next((row.why for row in found.outputs), "It has no floating output")
    return f"{why[:1].upper()}{why[1:]}. fq.tune compares by your own metric."
