"""Heaps, checked before the HDF5 library sees one; and the strings of any length in them, read by us.

The library (1.14) trusts the lengths in a global heap and the free list of a local one: wrong ones make it
loop for ever or read beyond its memory. So each read that brings a heap into sight checks the whole of it
first. Source: HDF5 File Format 3.0, sections III.D and III.E; hdf5 src/H5HGcache.c, H5HLcache.c.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.containers.hdf5.budget import Budget
    from ckptfmt.storage.reader import ByteReader

__all__ = ["HeapGuard", "Heaps", "largest_object"]

_MAGIC = b"GCOL\x01"
_LOCAL_MAGIC = b"HEAP\0"
_LOCAL = struct.Struct("<5s3xQQQ")  # length of the data, first free block in it, address
_FREE = struct.Struct("<QQ")  # next free block, length
_NO_MORE = 1
_HEAD = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HH4xQ")
_POINTER = struct.Struct("<LQL")
_MOST_KEPT = 1 << 18


class HeapGuard:
    """Checks the heaps of one file as they come into sight.

    Parameters
    ----------
    reader : ByteReader
    base : int
        What addresses in the file are counted from.
    """

    def __init__(self, reader: ByteReader, base: int = 0) -> None:
        self._reader = reader
        self._base = base
        self._checked: set[int] = set()

    def look(self, offset: int, data: memoryview) -> None:
        """Check every heap whose first bytes are among those read at `offset`, if only in part.

        Raises
        ------
        FormatError
            One is damaged.
        """
        reach = len(_MAGIC) - 1
        before = self._reader.read(max(0, offset - reach), min(reach, offset))
        end = offset + len(data)
        after = self._reader.read(end, min(reach, max(0, self._reader.size - end)))
        seen = b"".join((before, data, after))
        for magic, check in ((_MAGIC, self._check), (_LOCAL_MAGIC, self._check_local)):
            at = seen.find(magic)
            while at >= 0:
                check(offset - len(before) + at)
                at = seen.find(magic, at + 1)

    def _check_local(self, offset: int) -> None:
        """Follow the free list of a local heap, as far as the library would; a name may look like a heap."""
        if offset in self._checked or offset + _LOCAL.size > self._reader.size:
            return
        self._checked.add(offset)
        _, size, block, address = _LOCAL.unpack(self._reader.read(offset, _LOCAL.size))
        start = self._base + address
        done: set[int] = set()
        while (
            block != _NO_MORE
            and block + _FREE.size <= size
            and start + block + _FREE.size <= self._reader.size
        ):
            if block in done:
                _damaged(self._reader, offset)
            done.add(block)
            block, _ = _FREE.unpack(self._reader.read(start + block, _FREE.size))

    def _check(self, offset: int) -> None:
        if offset in self._checked:
            return
        self._checked.add(offset)
        size = _size(self._reader.read(offset, min(_HEAD.size, self._reader.size - offset)))
        if offset + size > self._reader.size:
            _damaged(self._reader, offset)
        data = self._reader.read(offset, size)
        if _objects(data)[1] != len(data):
            _damaged(self._reader, offset)


def _damaged(reader: ByteReader, offset: int) -> None:
    raise FormatError("a heap whose lengths or free blocks do not fit", file=reader.name, offset=offset)


def _size(head: bytes) -> int:
    """Return how long a heap says that it is; 0 where its head is cut."""
    return int(_HEAD.unpack(head)[2]) if len(head) == _HEAD.size else 0


def _objects(data: bytes) -> tuple[int, int]:
    """Return the length of the largest object of a heap, and where its objects end."""
    largest, at = 0, _HEAD.size
    while at + _OBJECT.size <= len(data):
        index, _, size = _OBJECT.unpack_from(data, at)
        step = _OBJECT.size + -(-size // 8) * 8 if index else size  # free space counts its own head
        if step < _OBJECT.size or at + step > len(data):
            return largest, -1
        largest = max(largest, size if index else 0)
        at += step
    return largest, len(data) if len(data) >= _HEAD.size else -1


def largest_object(data: bytes) -> int:
    """Return the length of the largest object in any heap of a whole file."""
    largest, at = 0, data.find(_MAGIC)
    while at >= 0:
        size = _size(data[at : at + _HEAD.size])
        largest = max(largest, _objects(data[at : at + size])[0])
        at = data.find(_MAGIC, at + 1)
    return largest


class Heaps:
    """The strings of any length of one file, followed by us.

    Parameters
    ----------
    reader : ByteReader
    base : int
        What addresses in the file are counted from.
    """

    def __init__(self, reader: ByteReader, base: int) -> None:
        self._reader = reader
        self._base = base
        self._known: dict[int, dict[int, tuple[int, int]]] = {}
        self._kept = 0

    def strings(self, pointers: bytes, budget: Budget, name: str) -> list[bytes]:
        """Return the strings of pointers: length (4 bytes), address of a heap (8), number in it (4).

        Raises
        ------
        FormatError, TruncatedError
            A pointer leads nowhere.
        LimitError
            They are more than the file can hold.
        """
        return [
            self._string(length, self._base + address if address else 0, index, budget, name)
            for length, address, index in _POINTER.iter_unpack(pointers)
        ]

    def _string(self, length: int, offset: int, index: int, budget: Budget, name: str) -> bytes:
        if not length or not offset:
            return b""
        start, size = self._heap(offset).get(index, (0, -1))
        if length > size:
            message = f"a string of {length} bytes that is not where it should be"
            raise FormatError(message, file=self._reader.name, tensor=name, offset=offset)
        budget.text(length, name)
        return self._reader.read(start, length)

    def _heap(self, offset: int) -> dict[int, tuple[int, int]]:
        """Return the places and lengths of the objects of a heap by number."""
        known = self._known.get(offset)
        if known is None:
            head = self._reader.read(offset, _HEAD.size)
            if not head.startswith(_MAGIC):
                _damaged(self._reader, offset)
            known = dict(_places(self._reader.read(offset, _size(head)), offset))
            if self._kept > _MOST_KEPT:
                self._known.clear()
                self._kept = 0
            self._known[offset] = known
            self._kept += len(known)
        return known


def _places(data: bytes, offset: int) -> Iterator[tuple[int, tuple[int, int]]]:
    at = _HEAD.size
    while at + _OBJECT.size <= len(data):
        index, _, size = _OBJECT.unpack_from(data, at)
        if not index or at + _OBJECT.size + size > len(data):
            return
        yield index, (offset + at + _OBJECT.size, size)
        at += _OBJECT.size + -(-size // 8) * 8
