"""A table file, written: blocks as large as TensorFlow's, not compressed, a pure function of its entries.

Byte for byte what TensorFlow's own builder makes of the same entries. Source: LevelDB
``table/table_builder.cc``, kept in TensorFlow as ``tsl/lib/io/table_builder.cc``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptfmt.containers.crc32c import masked
from ckptfmt.containers.protobuf import varint
from ckptfmt.containers.table.block import Handle
from ckptfmt.containers.table.reader import FOOTER, MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["encode_table"]

_BLOCK = 262144
_RESTART = 16


class _Block:
    """A block that is being filled."""

    def __init__(self, restart: int) -> None:
        self._restart = restart
        self._restarts = [0]
        self._data = bytearray()
        self._count = 0
        self.last = b""

    def add(self, key: bytes, value: bytes) -> None:
        """Append an entry; keys ascend."""
        shared = 0
        if self._count == self._restart:
            self._restarts.append(len(self._data))
            self._count = 0
        elif self._count:
            shared = _common(self.last, key)
        self._data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        self.last = key
        self._count += 1

    @property
    def size(self) -> int:
        """The bytes that it takes, without its trailer."""
        return len(self._data) + 4 * (len(self._restarts) + 1)

    def finish(self) -> bytes:
        """Return the block with its trailer."""
        places = struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))
        data = bytes(self._data) + places + b"\0"
        return data + masked(data).to_bytes(4, "little")


def _common(first: bytes, second: bytes) -> int:
    """Return how many bytes two keys have in common at their beginning."""
    most = min(len(first), len(second))
    return next((at for at in range(most) if first[at] != second[at]), most)


def encode_table(items: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield the bytes of a table in pieces.

    Parameters
    ----------
    items : iterable of (bytes, bytes)
        Keys and values, strictly ascending by key.
    """
    index = _Block(1)
    block = _Block(_RESTART)
    at = 0
    pending: Handle | None = None
    for key, value in items:
        if pending is not None:
            index.add(_between(block.last, key), _encode_handle(pending))
            block, pending = _Block(_RESTART), None
        block.add(key, value)
        if block.size >= _BLOCK:
            pending = Handle(at, block.size)
            yield block.finish()
            at += block.size + 5
    if pending is None and block.size > 8:
        pending = Handle(at, block.size)
        yield block.finish()
        at += block.size + 5
    if pending is not None:
        index.add(_after(block.last), _encode_handle(pending))
    yield from _end(at, index)


def _end(at: int, index: _Block) -> Iterator[bytes]:
    """Yield what follows the data: an empty block, the index, the footer."""
    empty = _Block(1)
    yield empty.finish()
    yield index.finish()
    handles = _encode_handle(Handle(at, empty.size)) + _encode_handle(Handle(at + empty.size + 5, index.size))
    yield handles.ljust(FOOTER - len(MAGIC), b"\0") + MAGIC


def _encode_handle(handle: Handle) -> bytes:
    return varint(handle.offset) + varint(handle.size)


def _between(last: bytes, first: bytes) -> bytes:
    """Return a short key that is not less than `last` and less than `first`."""
    at = _common(last, first)
    if at < min(len(last), len(first)) and last[at] + 1 < first[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def _after(last: bytes) -> bytes:
    """Return a short key that is not less than `last`."""
    for at, byte in enumerate(last):
        if byte != 0xFF:
            return last[:at] + bytes([byte + 1])
    return last
