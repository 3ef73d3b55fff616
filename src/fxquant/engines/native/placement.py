"""Where the buffers of a program lie: in the arena, each as long as it is needed.

A buffer that segments before and after Python's ops use is kept for all samples of the batch; the others share one
arena, at offsets that are free from their first op to their last.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fxquant.engines.native.bands import find_chains
from fxquant.engines.native.ops import Op
from fxquant.engines.native.values import Buffer

# tiles load whole vectors, which may begin before or end behind a buffer; what they load there is not used
_SLACK = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Ops in the order in which they run, and the sizes in bytes of the arena and of what is kept for a sample."""

    ops: tuple[Op, ...]
    arena: int
    kept: int


def place(ops: Sequence[Op]) -> Placement:
    """Give every buffer its offset."""
    ordered = tuple(sorted(ops, key=lambda op: op.level))
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for index, op in enumerate(ordered):
        for buffer in (*op.reads, op.writes):
            if buffer.space in ("arena", "kept"):
                buffers[id(buffer)] = buffer
                first.setdefault(id(buffer), index)
                last[id(buffer)] = index
    levels = [op.level for op in ordered]
    for start, end in _together(ordered):  # a chain uses its buffers in turns
        for key in buffers:
            first[key] = start if start <= first[key] < end else first[key]
            last[key] = end - 1 if start <= last[key] < end else last[key]
    kept = _SLACK
    live: list[tuple[int, int, int]] = []  # offset, end, last op
    arena = _SLACK
    for key in sorted(buffers, key=lambda key: (first[key], -buffers[key].bytes)):
        buffer = buffers[key]
        size = -(-(buffer.bytes + _SLACK) // 64) * 64
        if levels[first[key]] != levels[last[key]]:
            buffer.space, buffer.offset = "kept", kept
            kept += size
            continue
        live = [each for each in live if each[2] >= first[key]]
        buffer.space = "arena"
        buffer.offset = _free(live, size)
        live.append((buffer.offset, buffer.offset + size, last[key]))
        arena = max(arena, buffer.offset + size)
    return Placement(ops=ordered, arena=arena + _SLACK, kept=kept + _SLACK)


def _together(ordered: Sequence[Op]) -> list[tuple[int, int]]:
    """Return from where to where each chain of ops goes."""
    found, place = [], 0
    for _, group in itertools.groupby(ordered, key=lambda op: op.level):
        ops = list(group)
        found += [(place + chain.first, place + chain.end) for chain in find_chains(ops)]
        place += len(ops)
    return found


def _free(live: list[tuple[int, int, int]], size: int) -> int:
    """Return the first gap that is large enough."""
    at = _SLACK
    for offset, end, _ in sorted(live):
        if at + size <= offset:
            break
        at = max(at, end)
    return at
