"""CRC-32C (Castagnoli), plain and masked, as LevelDB's tables and TensorFlow's bundles use it.

A library does the work where one is installed (extra ``checksums``: google-crc32c). Without it numpy
does: correct, and several times slower. Nothing here reads files.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["combine", "implementation", "mask", "masked", "unmask", "update"]

_POLYNOMIAL = 0x82F63B78  # reflected: bit 31 is the coefficient of x^0
_MASK_DELTA = 0xA282EAD8
_LANE = 1024  # bytes that one lane of the numpy way takes
_LANES = 8192  # lanes at a time: more make steps fewer, and their states leave the cache
_FEW = 256  # lanes; of less data lanes are shorter
_SHORT = 2048  # bytes; below this a loop over them is quicker
_BITS = np.arange(31, -1, -1, dtype=np.uint32)


def update(crc: int, data: bytes | bytearray | memoryview | np.ndarray) -> int:
    """Return the checksum of what `crc` is the checksum of, followed by `data`.

    Parameters
    ----------
    crc : int
        Of what came before; 0 for nothing.
    data : bytes-like
        Contiguous. It is not copied.
    """
    array = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return _extend()(crc, array) if array.size else crc


def mask(crc: int) -> int:
    """Return a checksum as it is stored beside data that may hold checksums itself.

    Source: tensorflow ``tsl/lib/hash/crc32c.h``, as LevelDB's ``util/crc32c.h``.
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(stored: int) -> int:
    """Return the checksum that was stored masked."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def masked(data: bytes | bytearray | memoryview | np.ndarray) -> int:
    """Return the masked checksum of `data`."""
    return mask(update(0, data))


def combine(first: int, second: int, length: int) -> int:
    """Return the checksum of two pieces one after the other from the checksums of each.

    Parameters
    ----------
    first, second : int
    length : int
        Of the second piece, in bytes.
    """
    return _times(_power(length), first) ^ second


def implementation() -> str:
    """Return what does the work: ``"google-crc32c"`` or ``"numpy"``."""
    return "numpy" if _extend() is _extend_numpy else "google-crc32c"


@functools.cache
def _extend() -> Callable[[int, np.ndarray], int]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where it has no compiled part, and is not used then
            import google_crc32c  # noqa: PLC0415 - optional
    except ImportError:
        return _extend_numpy
    if google_crc32c.implementation != "c":
        return _extend_numpy
    extend: Callable[[int, np.ndarray], int] = google_crc32c.extend
    return extend


# ---------------------------------------------------------------------- arithmetic of polynomials


def _times_x(value: int) -> int:
    return (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)


def _times(first: int, second: int) -> int:
    """Multiply two polynomials modulo the polynomial of the checksum."""
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = _times_x(second)
    return product


@functools.cache
def _square(exponent: int) -> int:
    """Return x^(8 * 2^exponent)."""
    if exponent == 0:
        return 1 << 23
    half = _square(exponent - 1)
    return _times(half, half)


def _power(length: int) -> int:
    """Return x^(8 * length): what a checksum is multiplied by for each of `length` bytes that follow."""
    product = 1 << 31
    for exponent in range(length.bit_length()):
        if length >> exponent & 1:
            product = _times(_square(exponent), product)
    return product


# ---------------------------------------------------------------------- with numpy


def _extend_numpy(crc: int, data: np.ndarray) -> int:
    """Return `crc` extended by `data` (1-D, uint8), whole batches of lanes first."""
    state = crc ^ 0xFFFFFFFF
    at = 0
    while data.size - at >= _SHORT:
        length = _LANE if data.size - at >= _LANE * _FEW else 64
        lanes = min(_LANES, (data.size - at) // length)
        stop = at + lanes * length
        state = _lanes(state, data[at:stop].reshape(lanes, length))
        at = stop
    table = _bytes_table()
    for byte in data[at:].tolist():
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def _lanes(state: int, lanes: np.ndarray) -> int:
    """Extend a raw state by rows of equal length: all rows at once, eight bytes at a time."""
    count = len(lanes)
    states = np.zeros(count, np.uint32)
    states[0] = state
    places = np.empty((4, count), np.intp)
    part = np.empty(count, np.uint32)
    tables = _wide_tables()
    words = np.ascontiguousarray(lanes.view("<u4").T)
    for low, high in zip(words[0::2], words[1::2], strict=True):
        states ^= low
        for at, half in ((0, states), (2, high)):
            np.bitwise_and(half, 0xFFFF, out=places[at], casting="unsafe")
            np.right_shift(half, 16, out=places[at + 1], casting="unsafe")
        states = tables[0].take(places[0], mode="clip")
        for table, place in zip(tables[1:], places[1:], strict=True):
            states ^= table.take(place, out=part, mode="clip")
    return _joined(states, lanes.shape[1])


def _joined(states: np.ndarray, length: int) -> int:
    """Return the state after all lanes from those after each, every one but the first begun at zero."""
    while len(states) > 1:
        if len(states) % 2:  # a lane of nothing in front changes nothing
            states = np.concatenate([np.zeros(1, np.uint32), states])
        states = _times_each(states[0::2], length) ^ states[1::2]
        length *= 2
    return int(states[0])


def _times_each(states: np.ndarray, length: int) -> np.ndarray:
    """Return every state after `length` more bytes of zero."""
    chosen = states[:, None] >> _BITS & np.uint32(1)
    product: np.ndarray = np.bitwise_xor.reduce(chosen * _multiples(length), axis=1)
    return product


@functools.lru_cache(maxsize=64)
def _multiples(length: int) -> np.ndarray:
    """Return what each bit of a state, the highest first, becomes after `length` bytes of zero."""
    factor, made = _power(length), []
    for _ in range(32):
        made.append(factor)
        factor = _times_x(factor)
    return np.array(made, np.uint32)


@functools.cache
def _bytes_table() -> list[int]:
    made = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = _times_x(value)
        made.append(value)
    return made


@functools.cache
def _wide_tables() -> list[np.ndarray]:
    """Return what each pair of bytes of a word adds to the state after the word, the first pair first."""
    single = np.array(_bytes_table(), np.uint32)
    pairs = np.arange(1 << 16, dtype=np.uint32)
    tables = []
    for _ in range(4):
        for _ in range(2):
            pairs = single[pairs & np.uint32(0xFF)] ^ (pairs >> np.uint32(8))
        tables.append(pairs)
    return tables[::-1]
