"""Many files open for reading, more of them than a process may hold open at once.

A few files are simply opened. Of many, those used last are held; one that is opened again must be the same
file as before, or it is told as replaced. What cannot be held cannot stay mapped: bytes are read then.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, final

from ckptfmt.errors import ReplacedError, StorageError
from ckptfmt.storage.reader import FileReader, check_range

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from ckptfmt.storage.reader import ByteReader

__all__ = ["MOST_OPEN", "open_files"]

MOST_OPEN = 256
"""Files of one set that are held open at once; processes may usually have 1024."""


def open_files(
    paths: Mapping[str, Path], stack: ExitStack, *, most_open: int = MOST_OPEN
) -> dict[str, ByteReader]:
    """Open files; they are closed with `stack`.

    Parameters
    ----------
    paths : mapping of str to Path
        By the names under which they are asked for.
    stack : ExitStack
    most_open : int
        How many may be held open at once.

    Raises
    ------
    NotFoundError, StorageError
        One of them is not there, is no regular file, or cannot be opened.
    """
    if len(paths) <= most_open:
        return {name: stack.enter_context(FileReader(path)) for name, path in paths.items()}
    pool = _Pool(most_open)
    stack.callback(pool.close)
    return {name: _PooledFile(path, pool) for name, path in paths.items()}


class _Pool:
    """The readers used last. One that is dropped closes when the last who uses it lets go of it."""

    def __init__(self, most_open: int) -> None:
        self._most = most_open
        self._lock = threading.Lock()
        self._open: OrderedDict[_PooledFile, FileReader] = OrderedDict()
        self._closed = False

    def reader(self, file: _PooledFile) -> FileReader:
        with self._lock:
            if self._closed:
                raise StorageError("the file was closed", file=file.name)
            found = self._open.get(file)
            if found is None:
                found = self._open[file] = file.open()
            else:
                self._open.move_to_end(file)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
            return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()


@final
class _PooledFile:
    """One file of a pool: a reader that opens it when it is needed."""

    __slots__ = ("_identity", "_path", "_pool", "name", "size")

    def __init__(self, path: Path, pool: _Pool) -> None:
        self._path = path
        self._pool = pool
        self.name = os.fspath(path)
        with FileReader(path, mapped=False) as reader:
            self._identity = _identity(reader)
            self.size = reader.size

    def open(self) -> FileReader:
        reader = FileReader(self._path, mapped=False)
        if _identity(reader) != self._identity:
            reader.close()
            raise ReplacedError("the file was replaced since it was first looked at", file=self.name)
        return reader

    def read(self, offset: int, length: int) -> bytes:
        check_range(self, offset, length)
        return self._pool.reader(self).read(offset, length)

    def readinto(self, offset: int, out: memoryview) -> None:
        check_range(self, offset, len(out))
        self._pool.reader(self).readinto(offset, out)

    def view(self, offset: int, length: int) -> memoryview | None:
        check_range(self, offset, length)
        return None


def _identity(reader: FileReader) -> tuple[int, int, int, int]:
    status = os.fstat(reader.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
