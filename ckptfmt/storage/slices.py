"""A byte range of a reader as a reader of its own, for files that lie inside other files.

Nothing is read or copied before it is asked for; offsets in errors count from the start of the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ckptfmt.storage.reader import check_range

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["SliceReader"]


@final
class SliceReader:
    """Bytes ``[offset, offset + size)`` of another reader.

    Parameters
    ----------
    reader : ByteReader
    offset, size : int
        The range, checked against the reader's size here.
    name : str, optional
        What to call it in errors; the reader's own name and the offset by default.

    Raises
    ------
    TruncatedError
        The reader ends before the range does.
    """

    __slots__ = ("_offset", "_reader", "name", "size")

    def __init__(self, reader: ByteReader, offset: int, size: int, *, name: str | None = None) -> None:
        check_range(reader, offset, size)
        self.name = f"{reader.name} from {offset} on" if name is None else name
        self.size = size
        self._reader = reader
        self._offset = offset

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes."""
        check_range(self, offset, length)
        return self._reader.read(self._offset + offset, length)

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`."""
        check_range(self, offset, len(out))
        self._reader.readinto(self._offset + offset, out)

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return bytes without a copy where the reader can."""
        check_range(self, offset, length)
        return self._reader.view(self._offset + offset, length)
