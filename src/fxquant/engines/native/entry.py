"""The entry points of a program: functions that call its kernels in order, for each sample of a batch.

    void @name(ptr arena, ptr kept, ptr constants, ptr slots, i64 first, i64 last,
               i64 thread, i64 threads, ptr count)

`slots` are the addresses of tensors that are handed over. With several threads, each calls it for the same samples and
does its share of every kernel; then it waits for the others: it looks at their count for a while, then sleeps. A kernel
and that of its output's border write apart, so there is no wait between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fxquant.engines.native.ir import Function
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import Op, Pointer
from fxquant.engines.native.pixels import fill_border
from fxquant.engines.native.placement import Placement
from fxquant.engines.native.vector import Kernel

_ARGUMENTS = (
    "ptr %arena, ptr %kept, ptr %constants, ptr %slots, i64 %first, i64 %last, i64 %thread, i64 %threads, ptr %count"
)
_SPINS, _SLEEP = 4000, 50  # looks at the count, then microseconds


class _Entry(Function):
    def __init__(self, name: str) -> None:
        super().__init__(name, ())
        self.lines = [f"define void @{name}({_ARGUMENTS}) #0 {{", "entry:"]


Kernels = dict[tuple[object, object], Kernel]


def entry(
    name: str, ops: Sequence[Op], placement: Placement, kernels: Kernels, machine: Machine, shared: bool = False
) -> Function:
    """Return a function that runs some ops; `shared` is the form for several threads."""
    f = _Entry(name)
    used = [pointer.buffer for op in ops for pointer in op.pointers if pointer.buffer is not None]
    slots = {buffer.slot: buffer.bytes for buffer in used if buffer.space == "slot"}
    addresses = {slot: f.load("ptr", f.at("%slots", 8 * slot), 8) for slot in sorted(slots)}
    waits = [not _goes_on(op, after) for op, after in zip(ops, [*ops[1:], None], strict=False)]

    def sample(index: str) -> None:
        kept = f.step("%kept", index, placement.kept)
        places = {slot: f.step(address, index, slots[slot]) for slot, address in addresses.items()}
        done = f.mul(f.value(f"sub i64 {index}, %first"), sum(waits)) if shared else ""
        for place, op in enumerate(ops):
            given = [_address(f, pointer, kept, places) for pointer in op.pointers]
            name = kernels[op.emit, op.spec].name
            if shared:
                _share(f, op, name, given)
                if waits[place]:
                    _wait(f, f.add(done, sum(waits[: place + 1])), machine)
            else:
                _call(f, name, given, ("0", str(op.rows)), ("0", str(op.blocks)))

    f.each("%first", "%last", sample)
    return f


def _goes_on(op: Op, after: Op | None) -> bool:
    """Tell whether the next op writes the border of what this one, a convolution, writes."""
    return after is not None and after.emit is fill_border and after.writes is op.writes and op.macs > 0


def _address(f: Function, pointer: Pointer, kept: str, slots: dict[int, str]) -> str:
    buffer = pointer.buffer
    if buffer is None:
        return f.at("%constants", pointer.offset)
    if buffer.space == "slot":
        return f.at(slots[buffer.slot], pointer.offset)
    base = {"arena": "%arena", "kept": kept, "constant": "%constants"}[buffer.space]
    return f.at(base, buffer.offset + pointer.offset)


def _call(f: Function, name: str, given: Sequence[str], rows: tuple[str, str], blocks: tuple[str, str]) -> None:
    arguments = [f"ptr {address}" for address in given] + [f"i64 {bound}" for bound in (*rows, *blocks)]
    f.do(f"call void @{name}({', '.join(arguments)})")


def _share(f: Function, op: Op, name: str, given: Sequence[str]) -> None:
    """This thread's part of an op: rows if there are enough, else blocks of channels, else all by the first thread."""
    steps = -(-op.rows // op.grain)
    if steps >= 8 or (steps > 1 and op.blocks == 1):
        low, high = _part(f, steps)
        low, high = f.mul(low, op.grain), f.call("llvm.smin.i64", f.mul(high, op.grain), str(op.rows))
        _call(f, name, given, (low, high), ("0", str(op.blocks)))
    elif op.blocks > 1:
        _call(f, name, given, ("0", str(op.rows)), _part(f, op.blocks))
    else:
        alone = f.value("icmp eq i64 %thread, 0")
        f.when(alone, lambda: _call(f, name, given, ("0", str(op.rows)), ("0", "1")))


def _part(f: Function, total: int) -> tuple[str, str]:
    """Return the range of this thread among `total` things."""
    low = f.value(f"sdiv i64 {f.mul('%thread', total)}, %threads")
    after = f.add("%thread", 1)
    return low, f.value(f"sdiv i64 {f.mul(after, total)}, %threads")


def _wait(f: Function, steps: str, machine: Machine) -> None:
    """Count this thread in, and wait until all threads have done that many steps."""
    f.value("atomicrmw add ptr %count, i64 1 acq_rel")
    wanted = f.value(f"mul i64 {steps}, %threads")
    label, before = f"wait{f.fresh()}", f.block
    f.do(f"br label %{label}")
    f.label(label)
    turn, after = f"%t{f.fresh()}", f"%t{f.fresh()}"
    f.do(f"{turn} = phi i64 [ 0, %{before} ], [ {after}, %{label}.spin ], [ {after}, %{label}.sleep ]")
    seen = f.value("load atomic i64, ptr %count acquire, align 8")
    there = f.value(f"icmp sge i64 {seen}, {wanted}")
    f.do(f"br i1 {there}, label %{label}.end, label %{label}.look")
    f.label(f"{label}.look")
    f.do(f"{after} = add i64 {turn}, 1")
    early = f.value(f"icmp slt i64 {turn}, {_SPINS}")
    f.do(f"br i1 {early}, label %{label}.spin, label %{label}.sleep")
    f.label(f"{label}.spin")
    if machine.triple.startswith("x86"):
        f.call("llvm.x86.sse2.pause")
    f.do(f"br label %{label}")
    f.label(f"{label}.sleep")
    f.call("usleep", str(_SLEEP))
    f.do(f"br label %{label}")
    f.label(f"{label}.end")
