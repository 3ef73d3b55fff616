"""The entry points of a program: functions that call its kernels in order, for each sample of a batch.

    void @name(ptr arena, ptr kept, ptr constants, ptr slots, i64 first, i64 last, i64 threads, i64 thread, ptr counts)

`slots` are the addresses of tensors that are handed over. With several threads, each calls it for the same samples. A
kernel is cut into pieces, and a thread takes one after the other as long as there are any. Then it waits until all are
done: it looks at their count for a while, then sleeps. So a thread that comes late, or not at all, holds nobody up who
has a core: it finds nothing left to do. Threads with an even number take from the first piece on, the others from the
last one back, so that each finds most of what it reads where it wrote it, in caches of its own. A kernel and that of
its output's border write apart, so there is no wait between them.

    counts   [sample][op](pieces that were taken, pieces that are done), COUNT_BYTES for each op; all 0 at first.
             What is taken from the end counts _LAST each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fxquant.engines.native.bands import Chain, emit_chain, find_chains
from fxquant.engines.native.caller import ARGUMENTS, Caller
from fxquant.engines.native.code_ahead import ask_for_code, code_ahead
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import Op, Pointer
from fxquant.engines.native.pixels import fill_border
from fxquant.engines.native.placement import Placement
from fxquant.engines.native.vector import Kernel

COUNT_BYTES = 64
_PIECES = 2  # of a kernel, for each thread
_LAST = 1 << 32


Kernels = dict[tuple[object, object], Kernel]


def entry(
    name: str, ops: Sequence[Op], placement: Placement, kernels: Kernels, machine: Machine, shared: bool = False
) -> Caller:
    """Return a function that runs some ops; `shared` is the form for several threads."""
    f = Caller(name, ARGUMENTS, machine)
    used = [pointer.buffer for op in ops for pointer in op.pointers if pointer.buffer is not None]
    slots = {buffer.slot: buffer.step for buffer in used if buffer.space == "slot"}
    addresses = {slot: f.load("ptr", f.at("%slots", 8 * slot), 8) for slot in sorted(slots)}
    chains = {} if shared else {chain.first: chain for chain in find_chains(ops)}
    inside = {place for chain in chains.values() for place in range(chain.first + 1, chain.end)}
    code = code_ahead([[kernels[op.emit, op.spec] for op in each] for each in _calls(ops, chains)])
    waits = [not _goes_on(op, after) for op, after in zip(ops, [*ops[1:], None], strict=False)]

    def sample(index: str) -> None:
        kept = f.step("%kept", index, placement.kept)
        places = {slot: f.step(address, index, slots[slot]) for slot, address in addresses.items()}
        counts = f.step("%counts", f.value(f"sub i64 {index}, %first"), COUNT_BYTES * len(ops)) if shared else ""
        pending: list[_Pieces] = []

        def call(op: Op, given: Sequence[str], rows: tuple[str, str]) -> None:
            _call(f, kernels[op.emit, op.spec].name, given, rows, ("0", str(op.blocks)))

        later = iter(code)
        for place, op in enumerate(ops):
            if place in inside:
                continue
            for kernel in next(later):
                ask_for_code(f, kernel)
            if place in chains:
                emit_chain(f, chains[place], lambda pointer: _address(f, pointer, kept, places), call)
                continue
            given = [_address(f, pointer, kept, places) for pointer in op.pointers]
            if not shared:
                call(op, given, ("0", str(op.rows)))
                continue
            pending.append(_share(f, op, kernels[op.emit, op.spec].name, given, f.at(counts, COUNT_BYTES * place)))
            if waits[place]:
                for pieces in pending:
                    _wait(f, pieces)
                pending.clear()

    f.each("%first", "%last", sample)
    return f


def _calls(ops: Sequence[Op], chains: dict[int, Chain]) -> list[Sequence[Op]]:
    """Return the ops as they are called: one, or those of a chain."""
    found: list[Sequence[Op]] = []
    place = 0
    while place < len(ops):
        end = chains[place].end if place in chains else place + 1
        found.append(ops[place:end])
        place = end
    return found


def _goes_on(op: Op, after: Op | None) -> bool:
    """Tell whether the next op writes the border of what this one, a convolution, writes."""
    return after is not None and after.emit is fill_border and after.writes is op.writes and op.macs > 0


def _address(f: Caller, pointer: Pointer, kept: str, slots: dict[int, str]) -> str:
    buffer = pointer.buffer
    if buffer is None:
        return f.at("%constants", pointer.offset)
    if buffer.space == "slot":
        return f.at(slots[buffer.slot], pointer.offset)
    base = {"arena": "%arena", "kept": kept, "constant": "%constants"}[buffer.space]
    return f.at(base, buffer.offset + pointer.offset)


def _call(f: Caller, name: str, given: Sequence[str], rows: tuple[str, str], blocks: tuple[str, str]) -> None:
    arguments = [f"ptr {address}" for address in given] + [f"i64 {bound}" for bound in (*rows, *blocks)]
    f.do(f"call void @{name}({', '.join(arguments)})")


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The pieces of an op: where those that are done are counted, and how many there are."""

    done: str
    count: str


def _share(f: Caller, op: Op, name: str, given: Sequence[str], counts: str) -> _Pieces:
    """Take pieces of an op and do them: of its rows if there are enough, else of its blocks of channels, else all."""
    steps = -(-op.rows // op.grain)
    by_rows = steps >= 8 or (steps > 1 and op.blocks == 1)
    total = steps if by_rows else op.blocks
    count = f.call("llvm.smin.i64", f.mul("%threads", _PIECES), str(total))
    done = f.at(counts, 8)

    def piece(index: str) -> None:
        low, high = (f.value(f"sdiv i64 {f.mul(each, total)}, {count}") for each in (index, f.add(index, 1)))
        if by_rows:
            rows = f.mul(low, op.grain), f.call("llvm.smin.i64", f.mul(high, op.grain), str(op.rows))
            _call(f, name, given, rows, ("0", str(op.blocks)))
        else:
            _call(f, name, given, ("0", str(op.rows)), (low, high))
        f.value(f"atomicrmw add ptr {done}, i64 1 release")

    label = f"take{f.fresh()}"
    f.do(f"br label %{label}")
    f.label(label)
    backwards = f.value("trunc i64 %thread to i1")
    one = f.value(f"select i1 {backwards}, i64 {_LAST}, i64 1")
    taken = f.value(f"atomicrmw add ptr {counts}, i64 {one} monotonic")
    first, last = f.value(f"and i64 {taken}, {_LAST - 1}"), f.value(f"lshr i64 {taken}, 32")
    left = f.value(f"icmp slt i64 {f.value(f'add i64 {first}, {last}')}, {count}")
    f.do(f"br i1 {left}, label %{label}.do, label %{label}.end")
    f.label(f"{label}.do")
    before = f.value(f"sub i64 {f.add(count, -1)}, {last}")
    piece(f.value(f"select i1 {backwards}, i64 {before}, i64 {first}"))
    f.do(f"br label %{label}")
    f.label(f"{label}.end")
    return _Pieces(done, count)


def _wait(f: Caller, pieces: _Pieces) -> None:
    """Wait until all pieces of an op are done."""
    f.wait(lambda: f.value(f"icmp sge i64 {f.seen(pieces.done)}, {pieces.count}"))
