"""Kernels that run in turns, some rows at a time, so that what one hands to the next stays in the caches.

Ops one after the other form a chain if each is the only reader of what the one before writes, and both go through it
from the first byte to the last. The rows that the last one makes at a time are a band; those before it run as far as
that needs.

    end(r)     the byte that row r of a reader has read up to
    needed     rows of the writer that begin before that byte

A buffer inside a chain is a window that moves down: rows that nobody reads any more are given up, and those behind them
move to its beginning. Row r of a buffer whose first `gone` rows were given up is where row r - gone would be, so the
columns of its border stay where they are; what lies below the last row is written when that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fxquant.engines.native.depthwise_shape import Depthwise
from fxquant.engines.native.gemm_shape import Gemm
from fxquant.engines.native.ir import Carry, Function
from fxquant.engines.native.ops import Op, Pointer
from fxquant.engines.native.pixels import Border, Planes, fill_border
from fxquant.engines.native.values import Buffer

_WINDOWS = 256 << 10  # bytes of all windows of a chain
_NEAR = 64 << 10  # bytes of a product's weights, beyond which they are better read for many rows
_WORTH = 512 << 10  # bytes of all buffers inside a chain, below which they stay near anyway

Address = Callable[[Pointer], str]
Call = Callable[[Op, Sequence[str], tuple[str, str]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """How an op goes through memory: bytes from one row to the next, and of a row, from its pointers on."""

    in_step: int = 0
    in_span: int = 0
    out: int  # which pointer is its output's
    out_step: int
    out_span: int


def _walk(op: Op) -> _Walk | None:
    spec = op.spec
    if isinstance(spec, Planes):
        return _Walk(out=2, out_step=spec.out_row, out_span=spec.width * spec.channels)
    if isinstance(spec, Depthwise):
        columns = (spec.width - 1) * spec.stride[1] + spec.kernel[1]
        return _Walk(
            in_step=spec.stride[0] * spec.in_row,
            in_span=(spec.kernel[0] - 1) * spec.in_row + columns * spec.in_pixel,
            out=3,
            out_step=spec.out_row,
            out_span=spec.width * spec.out_pixel,
        )
    if isinstance(spec, Gemm) and spec.depth is None and not spec.moved and _weights(spec) <= _NEAR:
        taps, last = spec.taps, spec.width - 1
        run = taps.place(taps.count - 1) + taps.length
        return _Walk(
            in_step=spec.in_row,
            in_span=spec.place(last, spec.in_pixel, spec.in_line) + run,
            out=3,
            out_step=spec.out_row,
            out_span=spec.place(last, spec.out_pixel, spec.out_line) + spec.out_pixel,
        )
    return None


def _weights(spec: Gemm) -> int:
    """Return about how many bytes of weights are read for each band."""
    return spec.taps.steps * sum(spec.blocks) * 64


@dataclass(frozen=True, kw_only=True, slots=True)
class _Link:
    """An op of a chain. `start` is where it begins to read, in bytes from the first row of the buffer before it."""

    op: Op
    walk: _Walk
    start: int = 0
    border: Op | None = None  # of its output

    @property
    def again(self) -> int:
        """The last row with which a tile of rows begins: a smaller rest is done with rows before it."""
        return self.op.rows - self.op.grain


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Ops from one place in a list to another, and how many rows the last one makes at a time."""

    first: int
    end: int
    links: tuple[_Link, ...]
    band: int


def find_chains(ops: Sequence[Op]) -> list[Chain]:
    """Return the chains among the ops of a segment that are worth it."""
    users = _users(ops)
    found: list[Chain] = []
    place = 0
    while place < len(ops):
        chain = _from(ops, place, users)
        if chain is not None:
            found.append(chain)
        place = place + 1 if chain is None else chain.end
    return found


def _users(ops: Sequence[Op]) -> dict[Buffer, list[int]]:
    """Return which ops use each buffer, without those that write borders."""
    users: dict[Buffer, list[int]] = {}
    for index, op in enumerate(ops):
        if op.emit is not fill_border:
            for buffer in dict.fromkeys((*op.reads, op.writes)):
                users.setdefault(buffer, []).append(index)
    return users


def _from(ops: Sequence[Op], first: int, users: dict[Buffer, list[int]]) -> Chain | None:
    """Return the chain from a place on that hands on least in the end, or None."""
    links: list[_Link] = []
    best: Chain | None = None
    place, inside = first, 0
    while place < len(ops):
        link = _link(ops, place, links[-1] if links else None, users)
        if link is None:
            break
        inside += links[-1].op.writes.bytes if links else 0
        links.append(link)
        place += 1 if link.border is None else 2
        band = _band(links)
        if len(links) > 1 and band is None:
            break
        least = best is None or link.op.writes.bytes <= best.links[-1].op.writes.bytes
        if band is not None and inside > _WORTH and least:
            best = Chain(first=first, end=place, links=tuple(links), band=band)
    return best


def _link(ops: Sequence[Op], place: int, before: _Link | None, users: dict[Buffer, list[int]]) -> _Link | None:
    """Return an op as the next of a chain, or None if it is none."""
    op, walk = ops[place], _walk(ops[place])
    if walk is None or not 0 < walk.out_span <= walk.out_step:
        return None
    after = ops[place + 1] if place + 1 < len(ops) else None
    border = after if after is not None and after.emit is fill_border and after.writes is op.writes else None
    link = _Link(op=op, walk=walk, border=border)
    if before is None:
        return link
    buffer = before.op.writes
    alone = len(users[buffer]) == 2 and len(buffer.levels) == 1 and buffer.space == "arena"
    given = [index for index, pointer in enumerate(op.pointers) if pointer.buffer is buffer]
    if not alone or given != [0] or not walk.in_step or op.writes is buffer:
        return None
    row = before.op.pointers[before.walk.out].offset
    if before.border is not None and row != before.border.spec.top:
        return None
    return replace(link, start=op.pointers[0].offset - row)


def _band(links: Sequence[_Link]) -> int | None:
    """Return how many rows of the last op are made at a time; None if even the fewest need large windows."""
    last = links[-1].op
    band, best = last.grain, None
    while band <= last.rows and _windows(links, band) <= _WINDOWS:
        best = band
        band *= 2
    return best


def _windows(links: Sequence[_Link], rows: int) -> int:
    """Return about how many bytes all windows have in the middle of a chain."""
    total = 0
    for reader, writer in zip(links[:0:-1], links[-2::-1], strict=True):
        rows = -(-((rows - 1) * reader.walk.in_step + reader.walk.in_span) // writer.walk.out_step)
        rows = min(-(-rows // writer.op.grain) * writer.op.grain, writer.op.rows)
        total += rows * writer.walk.out_step
    return total


class _Rows:
    """How far each op of a chain is, and how many rows of its output were given up; all are names of values."""

    def __init__(self, values: Sequence[str], count: int) -> None:
        self.done, self.gone = list(values[:count]), list(values[count:])

    def values(self) -> list[str]:
        return [*self.done, *self.gone]


def emit_chain(f: Function, chain: Chain, address: Address, call: Call) -> None:
    """Write the calls of a chain; `call` writes one, from an op, its pointers and its rows."""
    links, count = chain.links, len(chain.links)
    given = [[address(pointer) for pointer in link.op.pointers] for link in links]
    for link in links:
        if link.border is not None:
            call(link.border, [address(pointer) for pointer in link.border.pointers], ("0", "1"))

    def band(first: str, values: list[str]) -> list[str]:
        rows = _Rows(values, count)
        for place in range(count - 1):
            _move(f, links, place, rows, given)
        goals = _goals(f, chain, first, rows)
        for place, link in enumerate(links):
            pointers = _moved(f, links, place, rows, (given[place], goals[place]))
            done, goal = rows.done[place], goals[place]

            def run(link: _Link = link, pointers: list[str] = pointers, both: tuple[str, str] = (done, goal)) -> None:
                call(link.op, pointers, both)

            f.when(f.value(f"icmp slt i64 {done}, {goal}"), run)
            rows.done[place] = goal
            if link.border is not None and place < count - 1:
                _close(f, link, rows, place, address)
        return rows.values()

    start = [Carry(type="i64", start="0")] * (2 * count - 1)
    f.loop(0, links[-1].op.rows, chain.band, band, start, apart=True)


def _goals(f: Function, chain: Chain, first: str, rows: _Rows) -> list[str]:
    """Return how far each op goes in this band."""
    links = chain.links
    goals = [f.call("llvm.smin.i64", f.add(first, chain.band), str(links[-1].op.rows))]
    for place in range(len(links) - 2, -1, -1):
        writer, reader = links[place], links[place + 1]
        end = f.add(f.mul(goals[0], reader.walk.in_step), reader.walk.in_span + reader.start - reader.walk.in_step)
        needed = f.value(f"sdiv i64 {f.add(end, writer.walk.out_step - 1)}, {writer.walk.out_step}")
        more = f.call("llvm.smax.i64", f.value(f"sub i64 {needed}, {rows.done[place]}"), "0")
        grain = writer.op.grain
        if grain > 1:
            more = f.mul(f.value(f"sdiv i64 {f.add(more, grain - 1)}, {grain}"), grain)
        goal = f.value(f"add i64 {rows.done[place]}, {more}")
        goals.insert(0, f.call("llvm.smin.i64", goal, str(writer.op.rows)))
    return goals


def _move(f: Function, links: Sequence[_Link], place: int, rows: _Rows, given: list[list[str]]) -> None:
    """Give up the rows of a window that nobody reads, or writes, any more."""
    writer, reader = links[place], links[place + 1]
    step = writer.walk.out_step
    next_read = f.call("llvm.smin.i64", rows.done[place + 1], str(reader.again))
    byte = f.add(f.mul(next_read, reader.walk.in_step), reader.start + step - writer.walk.out_span)
    live = f.call("llvm.smin.i64", f.value(f"sdiv i64 {byte}, {step}"), rows.done[place])
    live = f.call("llvm.smin.i64", live, str(writer.again))
    live = f.call("llvm.smax.i64", live, rows.gone[place])
    first = given[place][writer.walk.out]
    source = f.step(first, f.value(f"sub i64 {live}, {rows.gone[place]}"), step)
    size = f.mul(f.value(f"sub i64 {rows.done[place]}, {live}"), step)
    moves = f.value(f"icmp sgt i64 {live}, {rows.gone[place]}")
    f.when(moves, lambda: _do_move(f, first, source, size))
    rows.gone[place] = live


def _do_move(f: Function, to: str, source: str, size: str) -> None:
    f.call("llvm.memmove.p0.p0.i64", to, source, size, "false")


def _moved(f: Function, links: Sequence[_Link], place: int, rows: _Rows, call: tuple[list[str], str]) -> list[str]:
    """Return the pointers of an op for its next rows. `call`: those for all rows, and how far it goes."""
    given, goal = call
    link, made = links[place], list(given)
    if place:
        before = links[place - 1]
        made[0] = _back(f, made[0], rows.gone[place - 1], before.walk.out_step)
    if place < len(links) - 1:
        made[link.walk.out] = _back(f, made[link.walk.out], rows.gone[place], link.walk.out_step)
    if isinstance(link.op.spec, Gemm):  # each band asks for its part of the weights to come
        ahead, until = link.op.pointers[-2:]
        size = until.offset - ahead.offset
        made[-2:] = [
            f.at(given[-2], f.value(f"sdiv i64 {f.mul(row, size)}, {link.op.rows}")) if size else given[-2]
            for row in (rows.done[place], goal)
        ]
    return made


def _back(f: Function, address: str, rows: str, step: int) -> str:
    return f.at(address, f.mul(rows, -step))


def _close(f: Function, link: _Link, rows: _Rows, place: int, address: Address) -> None:
    """Write what lies below the last row, once that is there."""
    assert link.border is not None
    spec: Border = link.border.spec
    if not spec.bottom:
        return
    byte, buffer = (address(pointer) for pointer in link.border.pointers)
    below = f.at(buffer, spec.top + spec.rows * spec.inner + (spec.rows - 1) * spec.gap)

    def fill() -> None:
        out = _back(f, below, rows.gone[place], link.walk.out_step)
        f.call("llvm.memset.p0.i64", out, f.load("i8", byte), str(spec.bottom), "false")

    f.when(f.value(f"icmp eq i64 {rows.done[place]}, {link.op.rows}"), fill)
