"""Bytes that are read at an offset: a file or a piece of memory, behind one interface.

Every length is checked against the size before anything is allocated. A reader keeps the file that it
opened, whatever happens to the path afterwards.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import threading
from typing import TYPE_CHECKING, Protocol, final

from ckptfmt.errors import NotFoundError, StorageError, TruncatedError
from ckptfmt.tree.source import copy_bytes

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ByteReader", "FileReader", "MemoryReader", "RangeSource", "open_error"]


class ByteReader(Protocol):
    """Random access to bytes. Safe to call from several threads."""

    @property
    def name(self) -> str:
        """What to call it in errors: a path, or a member of an archive."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset` on.

        Raises
        ------
        TruncatedError
            There are not that many.
        StorageError
            The system could not read.
        """

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out` (format "B") with the bytes from `offset` on; errors as `read`."""

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return `length` bytes without a copy, writable and private, or None where that cannot be."""


def check_range(reader: ByteReader, offset: int, length: int) -> None:
    """Raise TruncatedError unless `length` bytes lie at `offset` of `reader`."""
    if offset < 0 or length < 0 or offset + length > reader.size:
        message = f"{length} bytes are needed at {offset}, but there are {reader.size} bytes in all"
        raise TruncatedError(message, file=reader.name, offset=max(0, min(offset, reader.size)))


class MemoryReader:
    """Bytes in memory.

    Parameters
    ----------
    data : bytes or memoryview
    name : str
    """

    __slots__ = ("_data", "name")

    def __init__(self, data: bytes | memoryview, name: str = "<memory>") -> None:
        self._data = memoryview(data).cast("B")
        self.name = name

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes."""
        check_range(self, offset, length)
        return bytes(self._data[offset : offset + length])

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`."""
        check_range(self, offset, len(out))
        out[:] = self._data[offset : offset + len(out)]

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return the bytes themselves where they are writable."""
        check_range(self, offset, length)
        return None if self._data.readonly else self._data[offset : offset + length]


@final
class FileReader:
    """A regular file, opened once and mapped privately when first viewed.

    Parameters
    ----------
    path : str or os.PathLike
    name : str, optional
        What to call it in errors; the path by default.
    dir_fd : int, optional
        A directory's descriptor that a relative `path` starts from.
    mapped : bool
        Whether `view` may map the file; on network file systems a mapping is only as good as the file
        stays, so that readers there copy.
    positioned : bool
        Whether reads at an offset may be one call; False forces the portable way, one reader at a time.

    Raises
    ------
    NotFoundError
        There is no such file.
    StorageError
        It is not a regular file, or cannot be opened.
    """

    __slots__ = ("_fd", "_map", "_mapped", "_seeking", "name", "size")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        dir_fd: int | None = None,
        mapped: bool = True,
        positioned: bool = True,
    ) -> None:
        self._seeking = None if positioned and hasattr(os, "pread") else threading.Lock()
        self.name = os.fspath(path) if name is None else name
        self._map: mmap.mmap | None = None
        self._mapped = mapped
        self._fd = -1
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:  # O_NONBLOCK: a FIFO of that name must not hang
            self._fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), dir_fd=dir_fd)
            info = os.fstat(self._fd)
        except OSError as error:
            self.close()
            raise open_error(error, self.name) from error
        if not stat.S_ISREG(info.st_mode):
            self.close()
            message = "is not a regular file"
            raise StorageError(message, file=self.name)
        self.size = info.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes."""
        check_range(self, offset, length)
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`, in as many system calls as it takes."""
        check_range(self, offset, len(out))
        done = 0
        while done < len(out):
            try:
                count = _read_at(self._fd, out[done:], offset + done, self._seeking)
            except OSError as error:
                message = f"could not read at {offset + done}: {error.strerror}"
                raise StorageError(message, file=self.name, errno=error.errno) from error
            if count == 0:
                message = f"the file ends at {offset + done}; it was {self.size} bytes when opened"
                raise TruncatedError(message, file=self.name, offset=offset + done)
            done += count

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return a private, writable mapping of the bytes; changes to it never reach the file."""
        check_range(self, offset, length)
        if not self._mapped or length == 0:
            return None
        if self._map is None:
            if self._fd < 0:  # mmap of -1 would be fresh memory: zeros in place of data
                message = "the file was closed"
                raise StorageError(message, file=self.name)
            try:
                self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_COPY)
            except (OSError, ValueError):  # no mappings here (some FUSE file systems): read instead
                self._mapped = False
                return None
        return memoryview(self._map)[offset : offset + length]

    def prefetch(self, offset: int, length: int) -> None:
        """Tell the system that bytes will be read soon, where it listens; nothing waits for them."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the file. Mapped bytes that were handed out stay valid until they are dropped."""
        self._map = None  # unmapped when the last view goes
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FileReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def _read_at(fd: int, out: memoryview, offset: int, seeking: threading.Lock | None) -> int:
    """Read some bytes in one call where the system has one for it, else under a lock: Windows has none."""
    if seeking is None and hasattr(os, "preadv"):
        return os.preadv(fd, [out], offset)
    if seeking is None:
        data = os.pread(fd, len(out), offset)
        out[: len(data)] = data
        return len(data)
    with seeking, io.FileIO(fd, closefd=False) as file:
        file.seek(offset)
        return file.readinto(out) or 0


def open_error(error: OSError, name: str) -> StorageError:
    """Return our error for a system error at opening `name`."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError("no such file or directory", file=name, errno=error.errno)
    return StorageError(f"could not open: {error.strerror}", file=name, errno=error.errno)


class RangeSource:
    """Canonical bytes that lie as one range of a reader.

    Parameters
    ----------
    reader : ByteReader
    offset, length : int
        The range, checked against the reader's size here.
    """

    __slots__ = ("_length", "_offset", "_reader", "_shown")

    def __init__(self, reader: ByteReader, offset: int, length: int) -> None:
        check_range(reader, offset, length)
        self._shown = False
        self._reader = reader
        self._offset = offset
        self._length = length

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes."""
        data = self._reader.view(self._offset + start, stop - start)
        self._shown = self._shown or data is not None
        return data

    def readinto(self, start: int, out: memoryview) -> None:
        """Read bytes; where they were mapped and handed out, as they are there now."""
        shown = self._reader.view(self._offset + start, len(out)) if self._shown else None
        if shown is None:
            self._reader.readinto(self._offset + start, out)
        else:
            copy_bytes(out, shown)
