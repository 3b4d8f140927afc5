"""The HDF5 library over a reader of ours, and its failures as errors of ours.

Only this package calls it. It reads structure (names, types, layouts, attributes, strings), never elements of
tensors, and is closed when a file is open: what is read later is read by us. It is C code that was not made
for hostile files; what can be checked before it runs is checked in `superblock`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from typing import TYPE_CHECKING

import h5py
from h5py import h5

from ckptfmt.containers.hdf5.heaps import HeapGuard
from ckptfmt.errors import CkptError, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.storage.reader import ByteReader

__all__ = ["NATIVE_ORDER", "chunk_base", "opened", "translated"]

NATIVE_ORDER = h5.ITER_NATIVE
"""How names are listed: as they lie. For any other order the library (1.14) makes a table first, and frees
what is not there when a name in it cannot be read."""

_FAILURES = (OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, SystemError)


class _Stream(io.RawIOBase):
    """A reader as a file object; beyond its end are zeros, as the library expects of its drivers."""

    def __init__(self, reader: ByteReader, base: int) -> None:
        super().__init__()
        self._reader = reader
        self._guard = HeapGuard(reader, base)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._reader.size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        view = memoryview(out).cast("B")
        count = max(0, min(len(view), self._reader.size - self._position))
        if count:
            self._reader.readinto(self._position, view[:count])
            self._guard.look(self._position, view[:count])
        if count < len(view):
            view[count:] = bytes(len(view) - count)
        self._position += len(view)
        return len(view)


@contextlib.contextmanager
def opened(reader: ByteReader, base: int) -> Iterator[h5py.h5f.FileID]:
    """Open a file in the library for the length of a block.

    Parameters
    ----------
    reader : ByteReader
    base : int
        Where the superblock is.

    Raises
    ------
    FormatError
        The library does not open it.
    """
    with translated(reader.name):
        file = h5py.File(_Stream(reader, base), "r")
    try:
        yield file.id
    finally:
        file.close()


@contextlib.contextmanager
def translated(file: str, path: str | None = None) -> Iterator[None]:
    """Raise failures of the library within a block as a `FormatError` that names the object."""
    try:
        yield
    except CkptError:
        raise
    except (*_FAILURES, MemoryError) as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(f"the HDF5 library cannot read it: {said}", file=file, tensor=path) from error


def chunk_base(user_block: int) -> int:
    """Return what is to be added to where the library says that a chunk is, in a file with a user block.

    HDF5 1.14.2 leaves the user block out, for chunks alone; so the library is asked about a file we know.
    """
    return user_block if user_block and _leaves_user_block_out() else 0


@functools.cache
def _leaves_user_block_out() -> bool:
    known, memory = bytes(range(1, 17)), io.BytesIO()
    with h5py.File(memory, "w", userblock_size=512) as file:
        found = file.create_dataset("x", (16,), "u1", chunks=(16,)).id
        found.write_direct_chunk((0,), known)
        file.flush()
        place = found.get_chunk_info(0).byte_offset
    return memory.getvalue()[place : place + len(known)] != known
