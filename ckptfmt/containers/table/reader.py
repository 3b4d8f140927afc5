"""A table file, read: the footer and the index at once, blocks when they are asked for.

Keys ascend over the whole file, which is what keeps a small index from naming one block many times. Source:
LevelDB ``table/table.cc``, kept in TensorFlow as ``tsl/lib/io/table.cc``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ckptfmt.containers.protobuf import varint_at
from ckptfmt.containers.table.block import TRAILER, Handle, entries, read_block
from ckptfmt.errors import FormatError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.storage.reader import ByteReader

__all__ = ["FOOTER", "MAGIC", "Table"]

FOOTER = 48
"""Bytes at the end of a table: where two blocks lie, padded, and `MAGIC`."""
MAGIC = bytes.fromhex("57fb808b247547db")
"""The last eight bytes of a table."""


class Table:
    """A table that lies in a file.

    Parameters
    ----------
    reader : ByteReader
        The whole file.

    Raises
    ------
    TruncatedError
        The file is too short to be a table, or ends before a block does.
    ChecksumError
        The index is not what was written.
    FormatError
        It is no table, or a malformed one.

    Attributes
    ----------
    blocks : list of (bytes, Handle)
        For each block of data a key not less than its last and less than all that follow, and its place.
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        index = _index_handle(reader)
        self.blocks = [
            (key, self._handle(value, index.offset))
            for key, value in entries(read_block(reader, index), file=reader.name, offset=index.offset)
        ]

    def _handle(self, value: memoryview, offset: int) -> Handle:
        try:
            handle, end = _decode_handle(value, 0)
        except FormatError as error:
            message = f"a malformed index: {error.message}"
            raise type(error)(message, file=self._reader.name, offset=offset) from None
        if end != len(value):
            raise FormatError("a malformed index", file=self._reader.name, offset=offset)
        _check_handle(self._reader, handle)
        return handle

    def items(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield all keys and values, ascending by key; blocks are verified as they are reached.

        Raises
        ------
        ChecksumError
            A block is not what was written.
        FormatError
            A block is malformed, or keys do not ascend.
        """
        last: bytes | None = None
        for limit, handle in self.blocks:
            for key, value in self.block(handle):
                if (last is not None and key <= last) or key > limit:
                    message = "keys that are not in order"
                    raise FormatError(message, file=self._reader.name, offset=handle.offset)
                last = key
                yield key, value

    def block(self, handle: Handle) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the keys and values of one block; errors as for `items`."""
        block = read_block(self._reader, handle)
        return entries(block, file=self._reader.name, offset=handle.offset)

    def find(self, key: bytes) -> Handle | None:
        """Return the only block that may hold a key, or None."""
        at = bisect_left(self.blocks, key, key=lambda block: block[0])
        return self.blocks[at][1] if at < len(self.blocks) else None

    def get(self, key: bytes) -> memoryview | None:
        """Return the value of a key, or None; errors as for `items`."""
        handle = self.find(key)
        if handle is None:
            return None
        return next((value for found, value in self.block(handle) if found == key), None)


def _index_handle(reader: ByteReader) -> Handle:
    if reader.size < FOOTER:
        message = f"{reader.size} bytes are too short for a table, whose footer alone has {FOOTER}"
        raise TruncatedError(message, file=reader.name, offset=reader.size)
    start = reader.size - FOOTER
    footer = memoryview(reader.read(start, FOOTER))
    if footer[-8:] != MAGIC:
        message = "it does not end as a table does (magic number): not one, cut off, or the file of its data"
        raise FormatError(message, file=reader.name, offset=reader.size - 8)
    try:
        _, at = _decode_handle(footer[:-8], 0)  # of a block that no writer fills
        index, _ = _decode_handle(footer[:-8], at)
    except FormatError as error:
        message = f"a malformed footer: {error.message}"
        raise type(error)(message, file=reader.name, offset=start) from None
    _check_handle(reader, index)
    return index


def _decode_handle(data: memoryview, at: int) -> tuple[Handle, int]:
    offset, at = varint_at(data, at)
    size, at = varint_at(data, at)
    return Handle(offset, size), at


def _check_handle(reader: ByteReader, handle: Handle) -> None:
    if handle.offset + handle.size + TRAILER > reader.size - FOOTER:
        message = f"a block of {handle.size} bytes at {handle.offset} in a file of {reader.size}"
        raise TruncatedError(message, file=reader.name, offset=min(handle.offset, reader.size))
