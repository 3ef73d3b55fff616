"""The constants of a matrix product, as its kernel (gemm.py) reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.finish import affine_rows
from fxquant.engines.native.gemm import ENTRY_BYTES, OFFSET_BYTES
from fxquant.engines.native.gemm_shape import Gemm
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.pairing import NONE, WINDOW, find_steps
from fxquant.engines.native.vector_order import order, pack_quads


def pack_weights(weights: NDArray[np.int8], spec: Gemm, machine: Machine) -> NDArray[np.uint8]:
    """Integers [channels, taps, length], with at least as many channels as the blocks have."""
    count, quads, joined = spec.taps.count, spec.taps.quads, spec.taps.joined
    alone = np.zeros((len(weights), count, 4 * quads), np.int8)
    kept = weights[:, :, : 4 * quads]
    alone[:, :, : kept.shape[2]] = kept
    rests = np.zeros((len(weights), 4 * joined), np.int8)
    if joined:
        rests[:, :count] = weights[:, :, 4 * quads]
    padded = np.concatenate((alone.reshape(len(weights), -1), rests), 1).reshape(len(weights), spec.taps.steps, 4)
    found, first = [], 0
    for vectors, width in zip(spec.blocks, spec.widths(machine), strict=True):
        channels = first + _order(spec, vectors, width)
        block = padded[channels].reshape(vectors, width // 4, spec.taps.steps, 4)
        found.append(pack_quads(block.transpose(2, 0, 1, 3), machine))
        first += len(channels)
    return np.concatenate(found)


def pack_listed(
    weights: NDArray[np.int8], spec: Gemm, machine: Machine, most: int, longest: float
) -> NDArray[np.uint8] | None:
    """The same as lists of steps, for inputs up to `most`, and blocks of equal size.

    None if there are more than `longest` times as many steps as there would be without choosing pairs.
    """
    vectors = spec.blocks[0]
    assert set(spec.blocks) == {vectors} and machine.width == 32
    size, blocks, taps = vectors * machine.floats, len(spec.blocks), spec.taps
    channels = (np.arange(blocks)[:, None] * size + _order(spec, vectors, machine.width)).reshape(-1)
    windows = -(-taps.length // WINDOW)
    padded = np.zeros((len(channels), taps.count, windows * WINDOW), np.int8)
    padded[:, :, : taps.length] = weights[channels]
    apart = padded.reshape(blocks, size, taps.count * windows, WINDOW)
    steps = find_steps(np.ascontiguousarray(apart.transpose(3, 1, 0, 2)).reshape(WINDOW, size, -1), most)
    if len(steps.window) > longest * blocks * taps.count * taps.quads:
        return None
    # the weights of each step's bytes
    by_byte = np.zeros((blocks * taps.count * windows, WINDOW + 1, size), np.int8)
    by_byte[:, :WINDOW] = apart.transpose(0, 2, 3, 1).reshape(-1, WINDOW, size)
    picked = by_byte[steps.window[:, None], np.minimum(steps.places, WINDOW)]
    quads = np.ascontiguousarray(picked.transpose(0, 2, 1)).view(np.uint8).reshape(-1, 4 * size)
    # where they are: the last window of a run is loaded from within it, if that is long enough
    tap, window = np.divmod(steps.window % (taps.count * windows), windows)
    start = window * WINDOW
    load = np.minimum(start, max(0, taps.length - WINDOW))
    lists = np.empty((len(steps.window), 2), np.int32)
    lists[:, 0] = np.array([taps.place(index) for index in range(taps.count)])[tap] + load
    places = np.where(steps.places < NONE, steps.places + (start - load)[:, None], NONE).astype(np.uint8)
    lists[:, 1] = places.view(np.int32)[:, 0]
    return _joined(lists, quads, np.bincount(steps.window // (taps.count * windows), minlength=blocks))


def _joined(lists: NDArray[np.int32], quads: NDArray[np.uint8], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the table of all blocks, then list and weights of each. A block without a step gets an empty one."""
    nothing = np.array([[0, np.uint32(NONE * 0x01010101).astype(np.int32)]], np.int32)
    table = np.zeros((len(counts), ENTRY_BYTES // 8), np.int64)
    pieces = [table.reshape(-1).view(np.uint8)]
    size, first = table.nbytes, 0
    for index, count in enumerate(counts):
        entries, weights = lists[first : first + count], quads[first : first + count]
        if not count:
            entries, weights = nothing, np.zeros((1, quads.shape[1]), np.uint8)
        for column, piece in enumerate((entries.reshape(-1).view(np.uint8), weights.reshape(-1))):
            pieces.append(np.zeros(-size % 64, np.uint8))
            size += len(pieces[-1])
            table[index, column] = size
            pieces.append(piece)
            size += len(piece)
        table[index, 2] = len(entries)
        first += count
    return np.concatenate(pieces)


def pack_affine(
    scale: NDArray[np.float64], bias: NDArray[np.float64], spec: Gemm, machine: Machine, offsets: list[int] | None
) -> NDArray[np.uint8]:
    """Scales and biases of all channels, which lie behind the header; `offsets` are of moved blocks."""
    rows = affine_rows(scale, bias, spec.finish)
    found, first = [], 0
    for index, (vectors, width) in enumerate(zip(spec.blocks, spec.widths(machine), strict=True)):
        channels = first + _order(spec, vectors, width)
        if offsets is not None:
            place = np.zeros(OFFSET_BYTES // 8, np.int64)
            place[0] = offsets[index]
            found.append(place.view(np.uint8))
        found.append(rows[:, channels].reshape(-1).view(np.uint8))
        first += len(channels)
    return np.concatenate(found)


def _order(spec: Gemm, vectors: int, width: int) -> NDArray[np.int64]:
    """Return the channels of a block as its vectors have them."""
    if spec.shared:
        full, n = vectors - 1, width // 4
        return np.concatenate((order(full, width, spec.finish.turns), full * n + np.arange(n) % (n // 2)))
    return order(vectors, width, spec.finish.turns) if spec.finish.out == "u8" else np.arange(vectors * width // 4)
