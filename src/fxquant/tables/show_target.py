"""A target as a table: one row for each thing that it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fxquant.config.limits import Kernel, Position
from fxquant.config.target import Target, bias_form
from fxquant.tables.present import new_table

if TYPE_CHECKING:
    from rich.table import Table


def target_table(target: Target) -> Table:
    """Return what runs in int8, on what grids, within which limits."""
    table = new_table(f"target {target.name}", ("what", "of", "is"), whole=("what",))
    for row in target_rows(target):
        table.add_row(*row)
    return table


def target_rows(target: Target) -> Iterator[tuple[str, str, str]]:
    """(field, kinds that it is about, value) of all that a target says."""
    yield "kinds", "in int8", _names(target.kinds)
    yield "activation", "default", str(target.activation)
    yield "activations", "allowed", str(target.activations)
    yield "weight", "default", str(target.weight)
    yield "weights", "allowed", str(target.weights)
    yield "bias", "default", bias_form(target.bias)
    yield "biases", "allowed", " or ".join(target.biases) or "any"
    yield "shapes", "allowed", str(target.shapes)
    for fused in sorted(set(target.tails.values()), key=sorted):
        yield "tails", _names(kind for kind, kinds in target.tails.items() if kinds == fused), _names(fused)
    for field in ("residual", "share", "signed", "split", "rewrites", "channel_scales", "rounded_outputs"):
        yield field, "", _names(getattr(target, field)) or "none"
    yield "integer_outputs", "", "always" if target.integer_outputs else "where int8 kernels read them"
    yield "clear_ties", "", "scales keep sums of integers away from ties" if target.clear_ties else "no"
    for kind, (low, high) in sorted(target.ranges.items()):
        yield "ranges", kind, f"[{low:g}, {high:g}]"
    for kind, kernel in sorted(target.kernels.items()):
        yield "kernels", kind, _kernel(kernel)
    for position in target.positions:
        yield "positions", _where(position), str(position)


def _names(kinds: Iterable[str]) -> str:
    return ", ".join(sorted(kinds))


def _kernel(kernel: Kernel) -> str:
    parts = [f"{side} {getattr(kernel, side)}" for side in ("input", "weight", "output", "shapes")]
    return "; ".join(
        (*(part for part in parts if not part.endswith(" any")), *(["one group"] * kernel.one_group), *_window(kernel))
    )


def _window(kernel: Kernel) -> list[str]:
    window = [] if kernel.window is None else [f"a window of at most {kernel.window} values"]
    return [*window, *([f"over axes {kernel.axes}"] if kernel.axes else [])]


def _where(position: Position) -> str:
    text = _names(position.kinds)
    text += f" before {_names(position.before)}" if position.before else ""
    return text + (f" after {_names(position.after)}" if position.after else "")
