"""One block of a table: where it lies, its checksum, and its entries.

After a block's bytes stand its kind (0 as it is, 1 snappy) and the masked CRC-32C of both. Inside, an entry
shares the beginning of its key with the entry before; where sharing starts anew is told at the end. Source:
LevelDB ``table/format.cc`` and ``table/block_builder.cc``, kept in TensorFlow as ``tsl/lib/io/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ckptfmt.containers.crc32c import mask, update
from ckptfmt.containers.protobuf import varint_at
from ckptfmt.containers.table.snappy import decompress
from ckptfmt.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.storage.reader import ByteReader

__all__ = ["MAX_BLOCK", "TRAILER", "Handle", "check_block", "entries", "read_block"]

TRAILER = 5
"""Bytes after a block: its kind, and a checksum."""

MAX_BLOCK = 64 << 20
"""Greatest block that is read at once, and that one is decompressed to; writers close theirs at 256 KiB."""

_STORED, _SNAPPY = 0, 1
_PIECE = 4 << 20


class Handle(NamedTuple):
    """Where a block lies in its file, in bytes, without its trailer."""

    offset: int
    size: int


def read_block(reader: ByteReader, handle: Handle, *, most: int = MAX_BLOCK) -> memoryview:
    """Return a block's bytes, verified and as they were before they were compressed.

    Parameters
    ----------
    reader : ByteReader
    handle : Handle
    most : int
        Bytes that it may have, before and after.

    Raises
    ------
    LimitError
        It has more.
    ChecksumError
        Its bytes are not those that were written.
    UnsupportedVersionError
        It is compressed in a way that is not read.
    FormatError
        It cannot be decompressed.
    """
    if handle.size > most:
        message = f"a block of {handle.size} bytes; at most {most}"
        raise LimitError(message, file=reader.name, offset=handle.offset)
    data = memoryview(reader.read(handle.offset, handle.size + TRAILER))
    _check(update(0, data[: handle.size + 1]), data[handle.size + 1 :], reader, handle)
    kind, data = data[handle.size], data[: handle.size]
    if kind == _STORED:
        return data
    if kind != _SNAPPY:
        message = f"a block of kind {kind}: only 0 (as it is) and 1 (snappy) are read"
        raise UnsupportedVersionError(message, file=reader.name, offset=handle.offset)
    try:
        return memoryview(decompress(data, most=most))
    except FormatError as error:
        message = f"a block cannot be decompressed: {error.message}"
        raise type(error)(message, file=reader.name, offset=handle.offset) from None


def check_block(reader: ByteReader, handle: Handle) -> int:
    """Verify a block piece by piece, however large it is, and return its kind; errors as `read_block`."""
    crc = 0
    kind = b""
    for at in range(handle.offset, handle.offset + handle.size + 1, _PIECE):
        kind = reader.read(at, min(_PIECE, handle.offset + handle.size + 1 - at))
        crc = update(crc, kind)
    _check(crc, reader.read(handle.offset + handle.size + 1, 4), reader, handle)
    return kind[-1]


def _check(crc: int, stored: bytes | memoryview, reader: ByteReader, handle: Handle) -> None:
    recorded = int.from_bytes(stored, "little")
    if mask(crc) != recorded:
        message = f"checksum {mask(crc):08x} of a block where {recorded:08x} was recorded: it has changed"
        raise ChecksumError(message, file=reader.name, offset=handle.offset)


def entries(block: memoryview, *, file: str, offset: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the keys and values of a block in their order.

    Parameters
    ----------
    block : memoryview
        As `read_block` gives it.
    file : str
    offset : int
        Of the block in the file, for errors.

    Raises
    ------
    FormatError
        The block is malformed, or its keys do not ascend.
    """
    try:
        yield from _entries(block)
    except FormatError as error:
        raise type(error)(f"a malformed block: {error.message}", file=file, offset=offset) from None


def _entries(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    end, restarts = _restarts(block)
    data = block[:end]
    due = iter([*restarts, end])
    restart = next(due)
    at, key, first = 0, b"", True
    while at < end:
        before = key
        shared, key, value, after = _entry(data, at, before)
        if restart <= at:
            if restart < at or shared:
                raise FormatError("keys do not start anew where the block says so")
            restart = next(due)
        if key <= before and not first:
            raise FormatError("keys that do not ascend")
        at, first = after, False
        yield key, value
    if restart < end:
        raise FormatError("keys do not start anew where the block says so")


def _entry(data: memoryview, at: int, before: bytes) -> tuple[int, bytes, memoryview, int]:
    """Return how much of the key is shared, the key, the value, and where the next entry begins."""
    if at + 3 <= len(data) and max(data[at], data[at + 1], data[at + 2]) < 0x80:  # as nearly always
        shared, own, length = data[at : at + 3]
        at += 3
    else:
        shared, at = varint_at(data, at)
        own, at = varint_at(data, at)
        length, at = varint_at(data, at)
    if shared > len(before):
        raise FormatError(f"a key shares {shared} bytes with one of {len(before)}")
    if own + length > len(data) - at:
        raise TruncatedError(f"an entry of {own + length} bytes is cut")
    middle = at + own
    return shared, before[:shared] + bytes(data[at:middle]), data[middle : middle + length], middle + length


def _restarts(block: memoryview) -> tuple[int, list[int]]:
    """Return where the entries end, and where keys start anew, ascending."""
    if len(block) < 4:
        raise TruncatedError("a block without its last four bytes")
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (count + 1)
    if end < 0 or (count == 0 and end):
        raise TruncatedError(f"a block of {len(block)} bytes with {count} places where keys start anew")
    made = np.frombuffer(block[end:-4], "<u4")
    if made.size and (made[0] != 0 or made[-1] > end or (made[1:] <= made[:-1]).any()):
        raise FormatError("the places where keys start anew do not ascend from 0")
    return end, made.tolist()
