"""Whether all that a program was made from is as it was, told by one call of machine code.

    i64 @unchanged(ptr facts)     0 if all facts hold

    places     PyDict_GetItemWithError(table, key) is the object
    counts     a table says that it was not written to; else its places are looked at, and if they hold, so does what
               it says now
    kinds      the object of Python is of the class that it was of
    tensors    the object of Python still owns the tensor of torch that it owned
    pointers   aoti_torch_get_data_ptr(tensor) is what it was
    versions   at::TensorBase::_version(tensor) is what it was
    memory     memcmp(memory, copy, size) is 0
    numbers    the four bytes at an address are what they were

Before it looks, it asks for the memory that it will look at (`near`), as far as that is known: what is asked for comes
at the same time, and what a chain of pointers leads to comes one after the other.

A loop of Python over a few hundred tensors takes a tenth of a small network's time: most of its objects are in no near
cache when a call begins. The functions are those that CPython and torch export. Where one is missing, or a tensor is of
another kind, there is no such look, and Python does it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fxquant.engines.native.compiler import Library
from fxquant.engines.native.ir import Function
from fxquant.graph.standing import ABSENT, Standing

NAME = "unchanged"
_PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)  # it asks Python, so it keeps the GIL
_VERSION = "_ZNK2at10TensorBase8_versionEv"  # at::TensorBase::_version() const
Words = NDArray[np.int64]
Rows: TypeAlias = Sequence[tuple[int, ...]]
Differ: TypeAlias = Callable[[list[str], str], str]  # from what stands in a row, and its address
_NAMES = ("places", "counts", "counted", "words", "pointers", "versions", "memory", "numbers", "near")
_TABLES = {name: 4 + 2 * index for index, name in enumerate(_NAMES)}  # where a header has them, behind the functions
_NUMBER = 4  # bytes
_LINE = 64  # bytes that are loaded from memory at once
_FIRST = 1 << 20  # no address is below
_KEYS, _TENSOR, _STORAGE = (
    192,
    128,
    64,
)  # bytes that are read of a dict's keys, a tensor of torch, and what it points to


class _Look(Function):
    def __init__(self) -> None:
        super().__init__(NAME, ())
        self.lines = [f"define i64 @{NAME}(ptr %facts) #0 {{", "entry:", "  %made = alloca i64, align 8"]
        self.lines.append("  %differs = alloca i64, align 8")

    def text(self) -> str:
        return "\n".join((*self.lines, "}"))

    def given(self, index: int, type_: str = "i64") -> str:
        return self.load(type_, self.at("%facts", 8 * index), 8)

    def ask(self, table: int) -> None:
        """Ask for the memory that a table names."""
        rows, count = self.given(table, "ptr"), self.given(table + 1)

        def turn(index: str) -> None:
            address = self.load("i64", self.step(rows, index, 8), 8)
            self.call("llvm.prefetch.p0", self.value(f"inttoptr i64 {address} to ptr"), "0", "3", "1")

        self.each("0", count, turn)

    def look(self, table: int, columns: int, differ: Differ, bounds: tuple[str, str] | None = None) -> None:
        """Go through a table, or some rows; `differ` returns a number that is 0 where the fact of a row holds."""
        rows = self.given(table, "ptr")
        low, high = bounds or ("0", self.given(table + 1))

        def turn(index: str, _: list[str]) -> list[str]:
            found = differ(*self.row(rows, index, columns))
            before = self.load("i64", "%differs", 8)
            self.store("i64", self.value(f"or i64 {before}, {found}"), "%differs", 8)
            return []

        self.loop(low, high, 1, turn, (), guard=True)

    def row(self, rows: str, index: str, columns: int) -> tuple[list[str], str]:
        """Return what stands in a row, and where that is."""
        row = self.step(rows, index, 8 * columns)
        return [self.load("i64", self.at(row, 8 * column), 8) for column in range(columns)], row

    def holds(self) -> str:
        """Return whether all facts held so far."""
        return self.value(f"icmp eq i64 {self.load('i64', '%differs', 8)}, 0")

    def look_at_counts(self, table: int, places: int, place: Differ) -> None:
        """Go through tables of Python by what they say of writes; the rows of `places` belong to them."""
        rows, count = self.given(table, "ptr"), self.given(table + 1)

        def turn(index: str) -> None:
            (address, said, first, last), row = self.row(rows, index, 4)
            says = self.load("i64", self.value(f"inttoptr i64 {address} to ptr"), 8)

            def written() -> None:
                self.look(places, 3, place, (first, last))
                self.when(self.holds(), lambda: self.store("i64", says, self.at(row, 8), 8))

            self.when(self.value(f"icmp ne i64 {says}, {said}"), written)

        self.each("0", count, turn)


def look() -> Function:
    """Return the function that looks at all facts."""
    f = _Look()
    get, data, version, compare = (f.given(index, "ptr") for index in range(4))
    f.store("i64", "0", "%differs", 8)

    def place(row: list[str], _: str) -> str:
        found = f.value(f"call i64 {get}(i64 {row[0]}, i64 {row[1]})")
        return f.value(f"xor i64 {found}, {row[2]}")

    def word(row: list[str], _: str) -> str:
        address = f.value(f"inttoptr i64 {row[0]} to ptr")
        return f.value(f"xor i64 {f.load('i64', address, 8)}, {row[1]}")

    def pointer(row: list[str], address: str) -> str:
        failed = f.value(f"zext i32 {f.value(f'call i32 {data}(ptr {address}, ptr %made)')} to i64")
        other = f.value(f"xor i64 {f.load('i64', '%made', 8)}, {row[1]}")
        return f.value(f"or i64 {failed}, {other}")

    def writes(row: list[str], address: str) -> str:
        found = f.value(f"call i64 {version}(ptr {address})")
        return f.value(f"xor i64 {found}, {row[1]}")

    def memory(row: list[str], _: str) -> str:
        found = f.value(f"call i32 {compare}(i64 {row[0]}, i64 {row[1]}, i64 {row[2]})")
        return f.value(f"zext i32 {found} to i64")

    def number(row: list[str], _: str) -> str:
        found = f.load("i32", f.value(f"inttoptr i64 {row[0]} to ptr"))
        return f.value(f"xor i64 {f.value(f'zext i32 {found} to i64')}, {row[1]}")

    f.ask(_TABLES["near"])
    f.look(_TABLES["places"], 3, place)
    f.look_at_counts(_TABLES["counts"], _TABLES["counted"], place)
    f.look(_TABLES["words"], 2, word)

    def inside() -> None:
        f.look(_TABLES["pointers"], 2, pointer)
        f.look(_TABLES["versions"], 2, writes)
        f.look(_TABLES["memory"], 3, memory)
        f.look(_TABLES["numbers"], 2, number)

    f.when(f.holds(), inside)  # a tensor that Python's object does not own any more may be gone
    f.do(f"ret i64 {f.load('i64', '%differs', 8)}")
    return f


class Unchanged:
    """A look at facts by a function of a library."""

    def __init__(self, library: Library, facts: Words, kept: Sequence[object]) -> None:
        self._function = _PROTOTYPE(library.address(NAME))
        self._facts = facts.ctypes.data
        self._kept = (library, facts, kept)  # all that is pointed to

    def __call__(self) -> bool:
        """Tell whether they hold."""
        found: int = self._function(self._facts)
        return found == 0


def unchanged(library: Library, standing: Standing) -> Unchanged | None:
    """Make a look at facts; None if machine code cannot look at them, or they do not hold."""
    functions, tensors = _functions(), [tensor for tensor, _ in (*standing.pointers, *standing.versions)]
    if functions is None or not all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors):
        return None
    if not all(isinstance(table, dict) for table, _, _ in standing.places):
        return None
    if not all(array.flags.c_contiguous for array, _ in standing.memory):
        return None
    owned, kinds = _owned(tensors), _kinds(standing.kinds)
    if owned is None or kinds is None:
        return None
    places = [(id(table), id(key), 0 if found is ABSENT else id(found)) for table, key, found in standing.places]
    said = _says_writes()
    counts, counted = ([], []) if said is None else _counts(places, said)
    memory = [(array.ctypes.data, copy) for array, copy in standing.memory]
    tables = [
        _words([] if counts else places),
        _words(counts),
        _words(counted),
        _words([*owned, *kinds]),
        _words([(tensor._cdata, pointer) for tensor, pointer in standing.pointers]),
        _words([(tensor._cdata, version) for tensor, version in standing.versions]),
        _words([(address, _address(copy), len(copy)) for address, copy in memory if len(copy) != _NUMBER]),
        _words([(address, int.from_bytes(copy, sys.byteorder)) for address, copy in memory if len(copy) == _NUMBER]),
        _words([(line,) for line in _near(standing, tensors, [*owned, *kinds, *((row[0], 0) for row in counts)])]),
    ]
    header = [*functions, *(number for table in tables for number in (table.ctypes.data, len(table)))]
    made = Unchanged(library, np.array(header, np.int64), (standing, tables))
    return made if made() else None


def _words(rows: Sequence[tuple[int, ...]]) -> Words:
    """Return rows of numbers, each once."""
    return np.array(list(dict.fromkeys(rows)), np.int64) if rows else np.empty((0, 1), np.int64)


def _address(copy: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(copy), ctypes.c_void_p).value or 0


def _near(standing: Standing, tensors: Sequence[Tensor], words: Sequence[tuple[int, int]]) -> list[int]:
    """Return the lines of memory that a look will read, most of them, in that order.

    What an object points to is read from it now. Lines may be others by then: to ask for them is no access.
    """
    found: dict[int, None] = {}

    def add(address: int, size: int) -> None:
        found.update(dict.fromkeys(range(address // _LINE, (address + size - 1) // _LINE + 1)))

    places = () if _says_writes() is not None else standing.places  # those of tables that say nothing are looked up

    def add_with_targets(address: int, size: int, behind: int) -> None:
        add(address, size)
        for target in (ctypes.c_int64 * (size // 8)).from_address(address):
            if target > _FIRST and target % 8 == 0:
                add(target, behind)

    for table, key, _ in places:
        add_with_targets(id(table), dict.__basicsize__, _KEYS)
        add(id(key), object.__basicsize__)
    for address, _ in words:
        add(address, 8)
    for tensor in tensors:
        add_with_targets(tensor._cdata, _TENSOR, _STORAGE)
    for array, copy in standing.memory:
        add(array.ctypes.data, len(copy))
        if len(copy) != _NUMBER:
            add(_address(copy), len(copy))
    return [line * _LINE for line in found]


def _counts(places: Rows, said: int) -> tuple[Rows, Rows]:
    """Return (where a table says it, what it says, first and last place) for each table, and its places in order."""
    by_table: dict[int, list[tuple[int, ...]]] = {}
    for place in dict.fromkeys(places):
        by_table.setdefault(place[0], []).append(place)
    counts: list[tuple[int, ...]] = []
    counted: list[tuple[int, ...]] = []
    for table, each in by_table.items():
        says = ctypes.c_int64.from_address(table + said).value
        counts.append((table + said, says, len(counted), len(counted) + len(each)))
        counted += each
    return counts, counted


@functools.lru_cache(maxsize=1)
def _says_writes() -> int | None:
    """Return where a dict has the number that each write to any dict makes a new one; None if there is none.

    CPython has it up to 3.11 (PEP 509); later versions write to some without it.
    """
    if sys.version_info >= (3, 12):
        return None
    table = {"key": 0}
    words = (ctypes.c_int64 * (dict.__basicsize__ // 8)).from_address(id(table))
    before = list(words)
    table["key"] = 1
    written = [8 * index for index, (old, new) in enumerate(zip(before, words, strict=True)) if old != new]
    return written[0] if len(written) == 1 else None


def _owned(tensors: Sequence[Tensor]) -> list[tuple[int, int]] | None:
    """Return where the objects of Python say which tensors of torch they own; None if that is not found."""
    found = {id(tensor): tensor._cdata for tensor in tensors}
    for offset in range(object.__basicsize__, Tensor.__basicsize__, 8):
        rows = [(address + offset, owned) for address, owned in found.items()]
        if _hold(rows):
            return rows
    return None


def _kinds(kinds: Sequence[tuple[object, type]]) -> list[tuple[int, int]] | None:
    """Return where objects of Python say of which class they are; None if that is not found."""
    rows = [(id(each) + object.__basicsize__ - 8, id(kind)) for each, kind in kinds]
    return rows if _hold(rows) else None


def _hold(rows: Sequence[tuple[int, int]]) -> bool:
    return all(ctypes.c_int64.from_address(address).value == value for address, value in rows)


@functools.lru_cache(maxsize=1)
def _functions() -> tuple[int, int, int, int] | None:
    """Return the addresses of the functions that are asked; None if one is missing."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        found = (
            ctypes.pythonapi.PyDict_GetItemWithError,
            library.aoti_torch_get_data_ptr,
            getattr(library, _VERSION),
            ctypes.CDLL(None).memcmp,
        )
    except (OSError, AttributeError, TypeError):
        return None
    get, data, version, compare = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found)
    return (get, data, version, compare)
