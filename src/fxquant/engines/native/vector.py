"""Vector code for a machine: dot products, conversions, and bytes to and from int32 (vector_order.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fxquant.engines.native.ir import Function, number
from fxquant.engines.native.machine import Machine

MAGIC = 12582912.0  # 1.5 * 2**23: the sum of it and a small integer has that integer in its low bits
_LARGEST = float(2**30)


def indices(values: Sequence[int]) -> str:
    """Return a mask for shufflevector."""
    return f"<{len(values)} x i32> <{', '.join(f'i32 {value}' for value in values)}>"


class Kernel(Function):
    """A function for one machine. `width` of the methods is that of the vectors in bytes, at most the machine's."""

    def __init__(self, name: str, pointers: Sequence[str], machine: Machine) -> None:
        super().__init__(name, pointers)
        self.machine = machine
        self.x86 = machine.triple.startswith("x86")

    # floats

    def splat(self, value: float) -> str:
        return f"splat (float {number(value)})"

    def spread(self, scalar: str, width: int) -> str:
        """Return a float in all elements."""
        n = width // 4
        one = self.value(f"insertelement <{n} x float> poison, float {scalar}, i64 0")
        return self.value(f"shufflevector <{n} x float> {one}, <{n} x float> poison, <{n} x i32> zeroinitializer")

    def fma(self, a: str, b: str, c: str, width: int) -> str:
        return self.call(f"llvm.fma.v{width // 4}f32", a, b, c)

    def binary(self, op: str, a: str, b: str, width: int) -> str:
        """fadd, fsub, fmul or fdiv."""
        return self.value(f"{op} <{width // 4} x float> {a}, {b}")

    def largest(self, a: str, b: str, width: int) -> str:
        """a if it is larger, else b: also if one is not a number, so it goes through as b."""
        return self._pick("ogt", a, b, width)

    def least(self, a: str, b: str, width: int) -> str:
        return self._pick("olt", a, b, width)

    def _pick(self, compare: str, a: str, b: str, width: int) -> str:
        n = width // 4
        better = self.value(f"fcmp {compare} <{n} x float> {a}, {b}")
        return self.value(f"select <{n} x i1> {better}, <{n} x float> {a}, <{n} x float> {b}")

    def or_else(self, x: str, other: str, width: int) -> str:
        """Return x, and `other` where x is NaN."""
        n = width // 4
        known = self.value(f"fcmp ord <{n} x float> {x}, {x}")
        return self.value(f"select <{n} x i1> {known}, <{n} x float> {x}, <{n} x float> {other}")

    def steps(self, x: str, grid: tuple[str, str, int], width: int) -> str:
        """From x / scale to int32; `grid`: 1 / scale or nothing, the zero point, and what NaN becomes, 0 or more."""
        inverse, zero, nan = grid
        moved = x if not inverse else self.binary("fmul", x, inverse, width)
        if nan:  # otherwise it is the lowest number, which is cut off at 0
            moved = self.or_else(moved, self.binary("fsub", self.splat(float(nan)), zero, width), width)
        bounded = self.least(self.splat(_LARGEST), moved, width)
        return self.value(f"add <{width // 4} x i32> {self.round(bounded, width)}, {self.round(zero, width)}")

    def round(self, x: str, width: int) -> str:
        """To the nearest int32, half to even."""
        if not self.x86:
            return self.call("llvm.aarch64.neon.fcvtns.v4i32.v4f32", x)
        if width == 64:
            return self.call("llvm.x86.avx512.mask.cvtps2dq.512", x, "zeroinitializer", "-1", "4")
        return self.call("llvm.x86.avx.cvt.ps2dq.256" if width == 32 else "llvm.x86.sse2.cvtps2dq", x)

    def to_float(self, x: str, width: int) -> str:
        n = width // 4
        return self.value(f"sitofp <{n} x i32> {x} to <{n} x float>")

    def total(self, x: str, width: int) -> str:
        """Return the sum of all elements, as a scalar."""
        n = width // 4
        self.used.add(f"llvm.vector.reduce.fadd.v{n}f32")
        call = f"float @llvm.vector.reduce.fadd.v{n}f32(float {number(0.0)}, <{n} x float> {x})"
        return self.value(f"call reassoc {call}")

    # dot products

    def operand(self, x: str, width: int) -> tuple[str, ...]:
        """Bytes of activations as `dot` takes them."""
        machine = self.machine
        if machine.dot in ("vpdpbusd", "maddubs", "usdot"):
            return (x,)
        if machine.dot == "sdot":
            return (self.value(f"xor <{width} x i8> {x}, splat (i8 -128)"),)
        n = width // 2
        words = self.value(f"bitcast <{width} x i8> {x} to <{n} x i16>")
        even = self.value(f"and <{n} x i16> {words}, splat (i16 255)")
        return even, self.value(f"lshr <{n} x i16> {words}, splat (i16 8)")

    def weights(self, address: str, width: int) -> tuple[str, ...]:
        """Packed weights (see `pack_quads` in vector_order.py) for one vector of sums."""
        if self.machine.dot == "madd":
            n = width // 2
            return tuple(self.load(f"<{n} x i16>", self.at(address, offset), width) for offset in (0, width))
        return (self.load(f"<{width} x i8>", address, width),)

    def dot(self, total: str, x: tuple[str, ...], weights: tuple[str, ...], width: int) -> str:
        """Return the sums with the products of four neighbouring bytes added."""
        if self.machine.dot == "vpdpbusd":
            return self.call(f"llvm.x86.avx512.vpdpbusd.{8 * width}", total, x[0], weights[0])
        if self.machine.dot in ("sdot", "usdot"):
            return self.call(f"llvm.aarch64.neon.{self.machine.dot}.v4i32.v16i8", total, x[0], weights[0])
        name = "llvm.x86.avx2.pmadd.wd" if width == 32 else "llvm.x86.sse2.pmadd.wd"
        if self.machine.dot == "maddubs":
            pairs = self.call(
                "llvm.x86.avx2.pmadd.ub.sw" if width == 32 else "llvm.x86.ssse3.pmadd.ub.sw.128", x[0], weights[0]
            )
            return self.value(f"add <{width // 4} x i32> {total}, {self.call(name, pairs, 'splat (i16 1)')}")
        for pair, weight in zip(x, weights, strict=True):
            total = self.value(f"add <{width // 4} x i32> {total}, {self.call(name, pair, weight)}")
        return total

    def quad(self, address: str, width: int) -> tuple[str, ...]:
        """Four bytes in every element, as `dot` takes them."""
        return self.operand(self.same(self.load("i32", address), width), width)

    def same(self, four: str, width: int) -> str:
        """Return an int32 in every element, as bytes."""
        n = width // 4
        one = self.value(f"insertelement <{n} x i32> poison, i32 {four}, i64 0")
        all_ = self.value(f"shufflevector <{n} x i32> {one}, <{n} x i32> poison, <{n} x i32> zeroinitializer")
        return self.value(f"bitcast <{n} x i32> {all_} to <{4 * n} x i8>")

    def merged(self, addresses: Sequence[str], width: int) -> tuple[str, ...]:
        """Byte i of what is at address i, in every element, as `dot` takes them; any bytes behind the last."""
        n = width // 4
        words = [
            self.value(f"bitcast <{width} x i8> {self.same(self.load('i32', at), width)} to <{n} x i32>")
            for at in addresses
        ]
        found = words[-1]
        for byte in range(len(words) - 2, -1, -1):
            low = (1 << 8 * (byte + 1)) - 1
            mine = self.value(f"and <{n} x i32> {words[byte]}, splat (i32 {low})")
            rest = self.value(f"and <{n} x i32> {found}, splat (i32 {~low})")
            found = self.value(f"or <{n} x i32> {mine}, {rest}")
        return self.operand(self.value(f"bitcast <{n} x i32> {found} to <{width} x i8>"), width)

    def halves(self, a: str, b: str, width: int) -> str:
        """The low half of a vector, and the high half of another one."""
        n = width // 4
        first, second = (self.value(f"bitcast <{width} x i8> {each} to <{n} x i32>") for each in (a, b))
        upper = self.mask("upper", [place >= n // 2 for place in range(n)])
        both = self.value(f"select <{n} x i1> {upper}, <{n} x i32> {second}, <{n} x i32> {first}")
        return self.value(f"bitcast <{n} x i32> {both} to <{width} x i8>")

    def picked(self, address: str, places: str) -> tuple[str, ...]:
        """Four of 16 bytes in every element, by their places (see `same`), as `dot` takes them. AVX2 only."""
        window = self.load("<16 x i8>", address)
        both = self.value(f"shufflevector <16 x i8> {window}, <16 x i8> poison, {indices([*range(16)] * 2)}")
        return (self.call("llvm.x86.avx2.pshuf.b", both, places),)

    # bytes

    def unpack(self, a: str, b: str, high: bool, size: int, width: int) -> str:
        """Elements of `size` bytes of two vectors in turns, from the low or the high half of each lane."""
        n, per_lane = width // size, 16 // size
        type_ = f"<{n} x i{8 * size}>"
        if size > 1:
            a, b = (self.value(f"bitcast <{width} x i8> {each} to {type_}") for each in (a, b))
        picked: list[int] = []
        for lane in range(width // 16):
            first = lane * per_lane + (per_lane // 2 if high else 0)
            picked += [index for j in range(per_lane // 2) for index in (first + j, n + first + j)]
        both = self.value(f"shufflevector {type_} {a}, {type_} {b}, {indices(picked)}")
        return self.value(f"bitcast {type_} {both} to <{width} x i8>") if size > 1 else both

    def widen_apart(self, addresses: Sequence[str], width: int) -> str:
        """Bytes from several addresses, an equal share of each, as one vector of int32."""
        n, size = width // 4, width // 4 // len(addresses)
        narrow = self.joined([self.load(f"<{size} x i8>", address) for address in addresses], size)
        return self.value(f"zext <{n} x i8> {narrow} to <{n} x i32>")

    def widen(self, address: str, part: int, width: int) -> list[str]:
        """Bytes from an address as `part` vectors of int32, in the order of vector_order.py."""
        n = width // 4
        if part == 1:
            narrow = self.load(f"<{n} x i8>", address)
            return [self.value(f"zext <{n} x i8> {narrow} to <{n} x i32>")]
        if part == 2:
            narrow = self.load(f"<{width // 2} x i8>", address)
            words = self.value(f"zext <{width // 2} x i8> {narrow} to <{width // 2} x i16>")
            halves = [self.value(f"bitcast <{width // 2} x i16> {words} to <{width} x i8>")]
        else:
            loaded = self.load(f"<{width} x i8>", address)
            halves = [self.unpack(loaded, "zeroinitializer", high, 1, width) for high in (False, True)]
        quarters = [self.unpack(half, "zeroinitializer", high, 2, width) for half in halves for high in (False, True)]
        return [self.value(f"bitcast <{width} x i8> {quarter} to <{n} x i32>") for quarter in quarters]

    def narrow(self, vectors: list[str], width: int, act: Callable[[str], str] | None = None) -> str:
        """1, 2 or 4 vectors of int32 as bytes in the natural order, saturated to 0..255: <len * width / 4 x i8>.

        `act` is done to them on the way, when they are int16. x86 only.
        """
        if not self.x86:
            return self._narrow_plain(vectors, width)
        if len(vectors) == 4:
            a, b = (self.words(vectors[at], vectors[at + 1], width) for at in (0, 2))
            if act is not None:
                a, b = act(a), act(b)
            return self.bytes_of(a, b, width)
        a = self.words(vectors[0], vectors[-1], width)
        a = a if act is None else act(a)
        packed = self.bytes_of(a, a, width)
        kept = 4 * len(vectors)  # bytes of each lane
        picked = [16 * lane + j for lane in range(width // 16) for j in range(kept)]
        return self.value(f"shufflevector <{width} x i8> {packed}, <{width} x i8> poison, {indices(picked)}")

    def words(self, a: str, b: str, width: int) -> str:
        """Two vectors of int32 as int16, saturated, in each lane those of the first before the others. x86 only."""
        name = {16: "sse2.packssdw.128", 32: "avx2.packssdw", 64: "avx512.packssdw.512"}[width]
        return self.call(f"llvm.x86.{name}", a, b)

    def bytes_of(self, a: str, b: str, width: int) -> str:
        """Two vectors of int16 as bytes, saturated to 0..255, in the same order."""
        name = {16: "sse2.packuswb.128", 32: "avx2.packuswb", 64: "avx512.packuswb.512"}[width]
        return self.call(f"llvm.x86.{name}", a, b)

    def narrow_words(self, vectors: list[str], width: int, turns: bool) -> str:
        """The same for the low words alone; `turns` tells whether each two vectors have their channels in turns."""
        pairs = [
            self.low_words(vectors[at], vectors[min(at + 1, len(vectors) - 1)], width)
            for at in range(0, len(vectors), 2)
        ]
        return self.bytes_of_turns(pairs, len(vectors), width, turns)

    def bytes_of_turns(self, words: list[str], vectors: int, width: int, turns: bool = False) -> str:
        """What `low_words` made of so many vectors, as bytes; see `narrow_words`."""
        packed = self.bytes_of(words[0], words[-1], width)
        kept = 4 * vectors  # bytes of each lane
        if turns and vectors == 4:
            return packed
        sorted_ = [j if turns else 8 * (j // 8) + 2 * (j % 4) + j // 4 % 2 for j in range(kept)]
        picked = [16 * lane + j for lane in range(width // 16) for j in sorted_]
        return self.value(f"shufflevector <{width} x i8> {packed}, <{width} x i8> poison, {indices(picked)}")

    def low_words(self, a: str, b: str, width: int) -> str:
        """The low words of the elements of two vectors, in turns, by as few instructions as a machine has for it."""
        n = width // 2
        if width == 64 and not self.machine.blends:
            first, second = (self.value(f"bitcast <{width // 4} x i32> {each} to <{width} x i8>") for each in (a, b))
            places = ", ".join(f"i8 {place % 16 - 2 * (place % 4 > 1)}" for place in range(width))
            moved = self.call("llvm.x86.avx512.pshuf.b.512", second, f"<{places}>")
            which = self.mask("high", [place % 4 > 1 for place in range(width)])
            both = self.value(f"select <64 x i1> {which}, <64 x i8> {moved}, <64 x i8> {first}")
            return self.value(f"bitcast <64 x i8> {both} to <32 x i16>")
        high = self.value(f"shl <{width // 4} x i32> {b}, splat (i32 16)")
        first, second = (self.value(f"bitcast <{width // 4} x i32> {each} to <{n} x i16>") for each in (a, high))
        if width == 64:
            odd = self.mask("odd", [place % 2 > 0 for place in range(n)])
            return self.value(f"select <{n} x i1> {odd}, <{n} x i16> {second}, <{n} x i16> {first}")
        which = ", ".join(f"i1 {str(place % 2 == 0).lower()}" for place in range(n))
        return self.value(f"select <{n} x i1> <{which}>, <{n} x i16> {first}, <{n} x i16> {second}")

    def mask(self, name: str, bits: Sequence[bool]) -> str:
        """A mask in a register, by a name. LLVM is not told what is in it: it knows worse ways to blend."""
        n = len(bits)
        number = sum(bit << place for place, bit in enumerate(bits)) - (bits[-1] << n)
        lines = (
            f'  %{name}.bits = call i{n} asm "", "=r,0"(i{n} {number})',
            f"  %{name} = bitcast i{n} %{name}.bits to <{n} x i1>",
        )
        if lines[0] not in self.first:
            self.first += lines
        return f"%{name}"

    def apart(self, packed: str, count: int, width: int) -> list[str]:
        """Four narrowed vectors that belong to `count` pixels, as bytes of each pixel."""
        if count == 1:
            return [packed]
        size = 16 // count  # bytes of a pixel in each lane
        n = width // size
        type_ = f"<{n} x i{8 * size}>"
        if width > 16:
            picked = [lane * count + pixel for pixel in range(count) for lane in range(width // 16)]
            wide = self.value(f"bitcast <{width} x i8> {packed} to {type_}")
            sorted_ = self.value(f"shufflevector {type_} {wide}, {type_} poison, {indices(picked)}")
            packed = self.value(f"bitcast {type_} {sorted_} to <{width} x i8>")
        return self.pieces(packed, count, width)

    def joined(self, parts: list[str], size: int) -> str:
        """1, 2 or 4 vectors of `size` bytes as one."""
        while len(parts) > 1:
            mask, type_ = indices([*range(2 * size)]), f"<{size} x i8>"
            parts = [
                self.value(f"shufflevector {type_} {a}, {type_} {b}, {mask}")
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            size *= 2
        return parts[0]

    def pieces(self, packed: str, count: int, width: int) -> list[str]:
        """Return a vector of bytes in equal pieces."""
        if count == 1:
            return [packed]
        each = width // count
        return [
            self.value(
                f"shufflevector <{width} x i8> {packed}, <{width} x i8> poison, "
                f"{indices([*range(pixel * each, (pixel + 1) * each)])}"
            )
            for pixel in range(count)
        ]

    def _narrow_plain(self, vectors: list[str], width: int) -> str:
        assert width == 16
        small = []
        for vector in vectors:
            low = self.call("llvm.smax.v4i32", vector, "zeroinitializer")
            both = self.call("llvm.smin.v4i32", low, "splat (i32 255)")
            small.append(self.value(f"trunc <4 x i32> {both} to <4 x i8>"))
        return self.joined(small, 4)

    def clamp_bytes(self, x: str, low: int, high: int, size: int) -> str:
        if low > 0:
            x = self.call(f"llvm.umax.v{size}i8", x, f"splat (i8 {low})")
        return self.call(f"llvm.umin.v{size}i8", x, f"splat (i8 {high})") if high < 255 else x

    def each_part(self, length: int, turn: Callable[[str, int], None]) -> None:
        """Do `turn(index, kept)` for the vectors of a row of floats: all elements are kept, but for those of a rest."""
        size = self.machine.floats
        full = length // size * size
        self.each(0, full, lambda index: turn(index, size), size)
        if length > full:
            turn(str(full), length - full)

    def store_part(self, type_: str, count: int, kept: int, value: str, address: str) -> None:
        """Store the first `kept` of `count` elements."""
        if kept < count:
            value = self.value(
                f"shufflevector <{count} x {type_}> {value}, <{count} x {type_}> poison, {indices(list(range(kept)))}"
            )
        self.store(f"<{kept} x {type_}>", value, address)

    def load_part(self, type_: str, count: int, kept: int, address: str) -> str:
        """Load `kept` elements into a vector of `count`; the others are zero."""
        value = self.load(f"<{kept} x {type_}>", address)
        if kept == count:
            return value
        picked = [min(index, kept) for index in range(count)]
        narrow = f"<{kept} x {type_}>"
        return self.value(f"shufflevector {narrow} {value}, {narrow} zeroinitializer, {indices(picked)}")
