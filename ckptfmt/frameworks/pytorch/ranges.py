"""Storages that are ranges of one file, one after the other: those of streams and of tar archives.

Where they lie is found once, by a pass over the lengths between them; their bytes are not read for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, MissingFileError, TruncatedError
from ckptfmt.frameworks.pytorch.storages import Storage
from ckptfmt.storage.slices import SliceReader

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["RangeStorages"]


class RangeStorages:
    """Storages by key, found in a file in the order in which they are added.

    The numbers in them are little-endian: PyTorch's ``torch/csrc/serialization.cpp`` turns them on machines
    that are not, whatever the file says of the machine.

    Parameters
    ----------
    reader : ByteReader
    """

    def __init__(self, reader: ByteReader) -> None:
        self.nbytes = 0
        self._reader = reader
        self._token = object()
        self._found: dict[str, Storage] = {}

    def add(self, key: str, at: int, width: int) -> int:
        """Add the storage that begins at an offset with its length: an int64, in elements.

        Parameters
        ----------
        key : str
        at : int
        width : int
            Bytes of an element.

        Returns
        -------
        int
            The offset after it.

        Raises
        ------
        TruncatedError
            The file ends before the storage does.
        FormatError
            The length is negative, or there is such a storage already.
        """
        count = int.from_bytes(self._reader.read(at, 8), "little", signed=True)
        if count < 0 or key in self._found:
            message = f"storage {key!r} has {count} elements" if count < 0 else f"two storages {key!r}"
            raise FormatError(message, file=self._reader.name, offset=at)
        start, nbytes = at + 8, count * width
        if start + nbytes > self._reader.size:
            left = self._reader.size - start
            message = f"storage {key!r} has {nbytes} bytes by its length, {left} are left"
            raise TruncatedError(message, file=self._reader.name, offset=self._reader.size)
        section = SliceReader(self._reader, start, nbytes, name=f"{self._reader.name}: storage {key}")
        self._found[key] = Storage((self._token, key), section, big_endian=False)
        self.nbytes += nbytes
        return start + nbytes

    def alias(self, key: str, storage: Storage) -> None:
        """Add a storage that is a view of another."""
        if key in self._found:
            raise FormatError(f"two storages {key!r}", file=self._reader.name)
        self._found[key] = storage

    def size_of(self, key: str) -> int | None:
        """Return the bytes of a storage, or None where there is none of that key."""
        storage = self._found.get(key)
        return None if storage is None else storage.reader.size

    def find(self, key: str, nbytes: int) -> Storage:
        """Return the storage of a key, which the pickle says has `nbytes` bytes."""
        storage = self._found.get(key)
        if storage is None:
            raise MissingFileError(f"there is no storage {key!r}", file=self._reader.name)
        if storage.reader.size != nbytes:
            message = f"storage {key!r} has {storage.reader.size} bytes where the pickle says {nbytes}"
            raise FormatError(message, file=self._reader.name)
        return storage
