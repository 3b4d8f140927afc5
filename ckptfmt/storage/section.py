"""A range of a reader as a reader of its own: a storage in a stream, a member of a tar archive.

The range is checked once, when the section is made. Nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.storage.reader import check_range

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["Section"]


class Section:
    """Part of what another reader has.

    Parameters
    ----------
    reader : ByteReader
    offset, length : int
        The range.
    name : str
        What to call it in errors.

    Raises
    ------
    TruncatedError
        The reader has not that many bytes.
    """

    __slots__ = ("_offset", "_reader", "name", "size")

    def __init__(self, reader: ByteReader, offset: int, length: int, name: str) -> None:
        check_range(reader, offset, length)
        self._reader = reader
        self._offset = offset
        self.name = name
        self.size = length

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes."""
        check_range(self, offset, length)
        return self._reader.read(self._offset + offset, length)

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`."""
        check_range(self, offset, len(out))
        self._reader.readinto(self._offset + offset, out)

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return mapped bytes, where the reader maps."""
        check_range(self, offset, length)
        return self._reader.view(self._offset + offset, length)
