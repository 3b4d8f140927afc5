"""The filters that a chunk went through, undone: deflate, shuffle, fletcher32, lzf.

Never more bytes come out than the chunk has. A filter that is not one of these is refused when a file is
opened, so that no plug-in is ever looked for. Source: hdf5 src/H5Zdeflate.c, H5Zshuffle.c, H5Zfletcher32.c.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ckptfmt.errors import ChecksumError, FormatError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Filter", "checked_filters", "fletcher32", "undo"]

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
_NAMES = {
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32015: "zstd",
}
_MAX_FILTERS = 8
_SUM_BYTES = 4
_BLOCK_WORDS = 1 << 20
_MODULUS = 65535


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a pipeline: its registered number, and its first parameter."""

    code: int
    parameter: int


def checked_filters(
    found: Sequence[tuple[int, Sequence[int]]], *, file: str, tensor: str
) -> tuple[Filter, ...]:
    """Return a pipeline, in the order in which it was applied.

    Parameters
    ----------
    found : sequence of (code, parameters)

    Raises
    ------
    UnsupportedVersionError
        It has a filter that we do not undo.
    """
    for code, _ in found:
        if code not in (DEFLATE, SHUFFLE, FLETCHER32, LZF):
            named = f" ({_NAMES[code]})" if code in _NAMES else ""
            message = (
                f"stored through HDF5 filter {code}{named}; deflate, shuffle, fletcher32 and lzf are read"
            )
            raise UnsupportedVersionError(message, file=file, tensor=tensor)
    if len(found) > _MAX_FILTERS:
        message = f"stored through {len(found)} filters"
        raise UnsupportedVersionError(message, file=file, tensor=tensor)
    return tuple(Filter(code, parameters[0] if parameters else 0) for code, parameters in found)


def undo(data: bytes, pipeline: Sequence[Filter], mask: int, nbytes: int) -> bytes | np.ndarray:
    """Return a chunk's elements.

    Parameters
    ----------
    data : bytes
        As stored.
    pipeline : sequence of Filter
    mask : int
        Bit k is set where filter k was left out for this chunk.
    nbytes : int
        What must come out.

    Raises
    ------
    FormatError, ChecksumError
        It does not.
    """
    held: bytes | np.ndarray = data
    room = nbytes + _SUM_BYTES * len(pipeline)
    for place in reversed(range(len(pipeline))):
        if mask >> place & 1:
            continue
        step = pipeline[place]
        if step.code == DEFLATE:
            held = _inflated(held, room)
        elif step.code == SHUFFLE:
            held = _unshuffled(held, step.parameter)
        elif step.code == FLETCHER32:
            held = _verified(held)
        else:
            held = _lzf(bytes(held), nbytes)
    if len(held) != nbytes:
        raise FormatError(f"a chunk of {len(held)} bytes where {nbytes} are declared")
    return held


def _inflated(data: bytes | np.ndarray, room: int) -> bytes:
    engine = zlib.decompressobj()
    try:
        held = engine.decompress(data if isinstance(data, bytes) else data.data, room + 1)
    except zlib.error as error:
        raise FormatError(f"a chunk cannot be inflated: {error}") from None
    if not engine.eof or len(held) > room:
        raise FormatError("a chunk inflates to more than is declared, or its deflated data ends too early")
    return held


def _unshuffled(data: bytes | np.ndarray, width: int) -> bytes | np.ndarray:
    """Return the bytes of elements of `width` bytes, of which first bytes came first; the rest stays."""
    flat = np.frombuffer(data, np.uint8)
    count = flat.size // width if width > 0 else 0
    if width < 2 or count < 2:
        return data
    out = np.empty(flat.size, np.uint8)
    whole = count * width
    out[:whole].reshape(count, width)[...] = flat[:whole].reshape(width, count).T
    out[whole:] = flat[whole:]
    return out


def _verified(data: bytes | np.ndarray) -> bytes | np.ndarray:
    if len(data) < _SUM_BYTES:
        raise FormatError("a chunk that is too short for its checksum")
    held, told = data[:-_SUM_BYTES], int.from_bytes(bytes(data[-_SUM_BYTES:]), "little")
    found = fletcher32(np.frombuffer(held, np.uint8))
    # until 1.6.2 the halves were stored with their bytes swapped on little-endian machines
    swapped = ((found & 0x00FF00FF) << 8) | ((found >> 8) & 0x00FF00FF)
    if told not in (found, swapped):
        raise ChecksumError(f"checksum {found:08x} where {told:08x} was recorded: the bytes have changed")
    return held


def fletcher32(data: np.ndarray) -> int:
    """Return the Fletcher sum of bytes (1-D uint8), as hdf5 src/H5checksum.c computes it."""
    padded = data if data.size % 2 == 0 else np.append(data, np.uint8(0))
    words = np.ascontiguousarray(padded).view(">u2")
    low = high = 0
    any_set = False
    for start in range(0, words.size, _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS].astype(np.uint64)
        weights = np.arange(block.size, 0, -1, dtype=np.uint64)
        high = (high + low * block.size + int(weights @ block)) % _MODULUS
        total = int(block.sum())
        low = (low + total) % _MODULUS
        any_set = any_set or total > 0
    # sums are folded, never reduced: what is 0 there is 65535 as soon as anything was added
    if any_set:
        low, high = low or _MODULUS, high or _MODULUS
    return high << 16 | low


def _lzf(data: bytes, nbytes: int) -> bytes:
    """Return what h5py's own filter makes of a chunk, through a file in memory: it has no other door."""
    with h5py.File("chunk", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", (nbytes,), "u1", chunks=(nbytes,), compression="lzf")
        dataset.id.write_direct_chunk((0,), data)
        try:
            held: bytes = dataset[...].tobytes()
        except (OSError, RuntimeError) as error:
            raise FormatError(f"a chunk is no lzf: {error}") from None
    return held
