"""The end of a file that is being written, as a file of its own: for members that are not written in order.

What is written there need not come front to back; whoever opened the window knows where it ended. Reading
gives back what was written.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Window"]

_PIECE = 4 << 20


class Window(io.RawIOBase):
    """Everything from an offset on, of a file that ends there when it is opened.

    Parameters
    ----------
    file : binary file
        Open for reading and writing, seekable. Not closed with the window.
    start : int
    """

    def __init__(self, file: BinaryIO, start: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        """Fill `out` as far as the window goes."""
        self._file.seek(self._start + self._position)
        data = self._file.read(len(out))
        out[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        """Write all of `data`."""
        self._file.seek(self._start + self._position)
        self._file.write(data)
        self._position += memoryview(data).nbytes
        return memoryview(data).nbytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; positions count from the start of the window."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}
        self._position = offset + (self.end() if whence == os.SEEK_END else origin[whence])
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """End the file that many bytes after the start of the window."""
        size = self._position if size is None else size
        self._file.truncate(self._start + size)
        return size

    def flush(self) -> None:
        """Hand on what the file has buffered."""
        self._file.flush()

    def end(self) -> int:
        """Return the length of the window."""
        return self._file.seek(0, os.SEEK_END) - self._start

    def pieces(self) -> Iterator[bytes]:
        """Yield everything that was written, some MiB at a time."""
        at, end = 0, self.end()
        while at < end:
            self._file.seek(self._start + at)
            piece = self._file.read(min(_PIECE, end - at))
            yield piece
            at += len(piece)
