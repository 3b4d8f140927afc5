"""Protocol buffers on the wire: fields in, fields out, and nothing of any schema.

Reading is strict about bounds and lenient about what a newer writer may add: fields that nobody asks for are
skipped. Groups, which no message here has, are refused. Source: the public encoding specification
(protobuf.dev, "Encoding").
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import FormatError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "BYTES",
    "FIXED32",
    "FIXED64",
    "VARINT",
    "Field",
    "bytes_field",
    "fields",
    "fixed32_field",
    "int_field",
    "packed_varints",
    "signed",
    "varint",
    "varint_at",
    "varints",
]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, "int | memoryview"]
"""Number, wire type, and value: an unsigned int, or the bytes of a length-delimited field."""

_LONGEST = 10
_TOP = 1 << 63


def varint_at(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at `at`, at most 64 bits, and where it ends.

    Raises
    ------
    TruncatedError
        The data ends inside it.
    FormatError
        It has more than 64 bits.
    """
    if at < len(data) and data[at] < 0x80:  # as most numbers are
        return data[at], at + 1
    value = shift = 0
    for place in range(at, min(at + _LONGEST, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return _fits(value, at), place + 1
        shift += 7
    if len(data) - at >= _LONGEST:
        raise FormatError("a number of more than 64 bits", offset=at)
    raise TruncatedError("the data ends inside a number", offset=len(data))


def _fits(value: int, at: int) -> int:
    if value >> 64:
        raise FormatError("a number of more than 64 bits", offset=at)
    return value


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one that has the same bits."""
    return value - (_TOP << 1) if value >= _TOP else value


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in their order.

    Parameters
    ----------
    data : memoryview
        Format "B"; values that are bytes are views of it.

    Raises
    ------
    TruncatedError
        The message ends inside a field.
    FormatError
        A field has no number, or is of a kind that is not read. Offsets count from the start of the message.
    """
    at, end = 0, len(data)
    while at < end:
        start = at
        key, at = varint_at(data, at)
        number, kind = key >> 3, key & 7
        if number == 0 or number >= 1 << 29:
            raise FormatError(f"a field of number {number}", offset=start)
        if kind == VARINT:
            value, at = varint_at(data, at)
            yield number, kind, value
            continue
        at, stop = _extent(data, at, kind, start)
        body = data[at:stop]
        yield number, kind, body if kind == BYTES else int.from_bytes(body, "little")
        at = stop


def _extent(data: memoryview, at: int, kind: int, start: int) -> tuple[int, int]:
    """Return where the value of a field that is no varint begins and ends."""
    if kind == BYTES:
        length, at = varint_at(data, at)
    elif kind in (FIXED32, FIXED64):
        length = 4 if kind == FIXED32 else 8
    else:
        raise FormatError(f"a field of wire type {kind}", offset=start)
    if length > len(data) - at:
        message = f"a field of {length} bytes, {len(data) - at} of which are there"
        raise TruncatedError(message, offset=start)
    return at, at + length


def packed_varints(data: memoryview) -> np.ndarray:
    """Return varints that stand one after the other, as uint64; no loop over them.

    Raises
    ------
    TruncatedError
        The last one has no end.
    FormatError
        One has more than 64 bits.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if raw.size and (not ends.size or ends[-1] != raw.size - 1):
        raise TruncatedError("the data ends inside a number", offset=raw.size)
    if not ends.size:
        return np.zeros(0, np.uint64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST or (longest == _LONGEST and raw[ends[lengths == _LONGEST]].max() > 1):
        raise FormatError("a number of more than 64 bits", offset=int(starts[lengths.argmax()]))
    values: np.ndarray = (raw[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        part = (raw[starts[longer] + place] & 0x7F).astype(np.uint64)
        values[longer] |= part << np.uint64(7 * place)
    return values


# ---------------------------------------------------------------------- writing


def varint(value: int) -> bytes:
    """Return a number of at most 64 bits, unsigned or signed, as a varint."""
    value &= (_TOP << 1) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varints(values: Iterable[int]) -> bytes:
    """Return numbers as varints, one after the other."""
    return b"".join(map(varint, values))


def int_field(number: int, value: int) -> bytes:
    """Return a field of an integer; nothing where it is 0, which is what absence means."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes or of a message, also of an empty one."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def fixed32_field(number: int, value: int) -> bytes:
    """Return a field of 32 bits; nothing where they are all 0."""
    return varint(number << 3 | FIXED32) + struct.pack("<I", value) if value else b""
