"""Snappy, read only: a length, then literals and copies of what came before.

Bounded by the declared length, which itself is bounded by what so many bytes can say. Source: snappy
``format_description.txt``.
"""

from __future__ import annotations

from ckptfmt.containers.protobuf import varint_at
from ckptfmt.errors import FormatError, LimitError, TruncatedError

__all__ = ["decompress"]

_MOST_PER_BYTE = 32  # a copy of 64 bytes takes at least two


def decompress(data: memoryview, *, most: int) -> bytes:
    """Return what compressed bytes stand for.

    Parameters
    ----------
    data : memoryview
    most : int
        Bytes that it may be.

    Raises
    ------
    LimitError
        It is more.
    TruncatedError
        They end too early.
    FormatError
        They say something else than they declare, or copy from before the start.
    """
    size, at = varint_at(data, 0)
    if size > _MOST_PER_BYTE * len(data):
        raise FormatError(f"{len(data)} compressed bytes cannot stand for {size}", offset=0)
    if size > most:
        raise LimitError(f"{size} bytes when decompressed; at most {most}", offset=0)
    out = bytearray()
    while at < len(data):
        start, tag = at, data[at]
        at = _copy(data, at, tag, out) if tag & 3 else _literal(data, at, tag >> 2, out)
        if len(out) > size:
            raise FormatError(f"more than the declared {size} bytes", offset=start)
    if len(out) != size:
        raise TruncatedError(f"{len(out)} bytes where {size} are declared", offset=len(data))
    return bytes(out)


def _number(data: memoryview, at: int, width: int) -> int:
    if at + width > len(data):
        raise TruncatedError("the compressed bytes end inside an element", offset=len(data))
    return int.from_bytes(data[at : at + width], "little")


def _literal(data: memoryview, at: int, length: int, out: bytearray) -> int:
    """Append a literal and return where the next element begins."""
    width = max(0, length - 59)
    length = _number(data, at + 1, width) + 1 if width else length + 1
    at += 1 + width
    if at + length > len(data):
        raise TruncatedError(f"a literal of {length} bytes is cut", offset=len(data))
    out += data[at : at + length]
    return at + length


def _copy(data: memoryview, at: int, tag: int, out: bytearray) -> int:
    """Append a copy of earlier bytes, which may reach into itself; return where the next element begins."""
    width = (0, 1, 2, 4)[tag & 3]
    distance = _number(data, at + 1, width)
    length = (tag >> 2) + 1
    if width == 1:
        distance |= tag >> 5 << 8
        length = (tag >> 2 & 7) + 4
    if not 0 < distance <= len(out):
        raise FormatError(f"a copy from {distance} bytes back, after {len(out)} bytes", offset=at)
    piece = bytes(out[-distance : len(out) - distance + length])
    out += (piece * (length // len(piece) + 1))[:length]
    return at + 1 + width
