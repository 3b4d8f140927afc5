"""One file of a V1 checkpoint: its list of tensors, and the slices that lie in it.

A block is verified before anything of it is handed out; of one that is large only the list of tensors at its
head is read first, and it is verified together with the first slice that is asked for. The block and the
decoded slice that were used last are kept, no others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.bundle.keys import Slice, slice_key
from ckptfmt.containers.checkpoint_v1.messages import Meta, decode_data, decode_meta
from ckptfmt.containers.checkpoint_v1.values import decode_numbers, plain_bytes
from ckptfmt.containers.table.block import TRAILER, Handle, check_block, entries, read_block
from ckptfmt.containers.table.reader import Table
from ckptfmt.errors import FormatError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.tree.source import copy_bytes

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.source import Source

__all__ = ["SliceSource", "TableFile"]

_LARGE = 4 << 20
_MOST = 1 << 31  # bytes of a block: it closes after the message that fills it, and none is longer


class TableFile:
    """One open file.

    Parameters
    ----------
    reader : ByteReader

    Raises
    ------
    ChecksumError, FormatError
        It is no such file, or not what was written.

    Attributes
    ----------
    name : str
    meta : Meta
    """

    def __init__(self, reader: ByteReader) -> None:
        self.name = reader.name
        self._reader = reader
        self._table = Table(reader)
        self._lock = threading.RLock()
        self._verified: set[Handle] = set()
        self._block: tuple[Handle, memoryview, dict[bytes, memoryview]] | None = None
        self._decoded: tuple[bytes, memoryview] | None = None
        self._head = self._table.find(b"")
        self.meta = self._read_meta()

    def _read_meta(self) -> Meta:
        if self._head is None:
            raise FormatError("a table without the list of its tensors", file=self.name)
        view = self._mapped(self._head, verify=self._head.size <= _LARGE)
        block = read_block(self._reader, self._head, most=_MOST) if view is None else view
        key, value = next(entries(block, file=self.name, offset=self._head.offset), (None, block))
        if key != b"":
            raise FormatError("a table without the list of its tensors", file=self.name)
        try:
            return decode_meta(value)
        except FormatError as error:
            message = f"a malformed list of tensors: {error.message}"
            raise type(error)(message, file=self.name, offset=self._head.offset) from None

    def _mapped(self, handle: Handle, *, verify: bool) -> memoryview | None:
        """Return a block where it lies in the file, if it can be mapped and is not compressed."""
        view = self._reader.view(handle.offset, handle.size + TRAILER)
        if view is None or view[handle.size] != 0:
            return None
        if verify and handle not in self._verified:
            check_block(self._reader, handle)
            self._verified.add(handle)
        return view[: handle.size]

    def _values(self, handle: Handle) -> tuple[memoryview, dict[bytes, memoryview]]:
        """Return a verified block, and the values in it by their keys."""
        if self._block is None or self._block[0] != handle:
            self._block = None
            view = self._mapped(handle, verify=True)
            block = read_block(self._reader, handle, most=_MOST) if view is None else view
            self._block = (handle, block, dict(entries(block, file=self.name, offset=handle.offset)))
        return self._block[1:]

    def tensor(self, name: bytes, piece: Slice) -> tuple[Handle, memoryview, memoryview]:
        """Return the message of a slice's tensor, with the block that it stands in and the block's place.

        Raises
        ------
        ChecksumError
            The block is not what was written.
        FormatError
            The slice is not there, or malformed.
        """
        with self._lock:
            if self._head is not None and self._head not in self._verified:
                self._values(self._head)
                self._verified.add(self._head)
            key = slice_key(name, piece)
            handle = self._table.find(key)
            block, values = (memoryview(b""), {}) if handle is None else self._values(handle)
        if handle is None or key not in values:
            raise FormatError(f"the slice {list(piece)} is not there", file=self.name)
        try:
            return handle, block, decode_data(values[key], name=name, piece=piece)
        except FormatError as error:
            raise type(error)(error.message, file=self.name, offset=handle.offset) from None

    def in_place(self, name: bytes, piece: Slice, dtype_number: int, length: int) -> tuple[int, int] | None:
        """Return where a slice's canonical bytes lie in the file, and how many; None if they do not."""
        handle, block, tensor = self.tensor(name, piece)
        plain = plain_bytes(tensor, dtype_number)
        if plain is None or len(plain) != length or not length or self._kind(handle) != 0:
            return None
        return handle.offset + _address(plain) - _address(block), length

    def _kind(self, handle: Handle) -> int:
        return self._reader.read(handle.offset + handle.size, 1)[0]

    def source(self, offset: int, length: int) -> Source:
        """Return bytes that lie in the file as they are."""
        return RangeSource(self._reader, offset, length)

    def decoded(self, name: bytes, piece: Slice, dtype_number: int, dtype: DType, count: int) -> memoryview:
        """Return the canonical bytes of a slice, decoded; errors as for `tensor`."""
        key = slice_key(name, piece)
        with self._lock:
            if self._decoded is None or self._decoded[0] != key:
                self._decoded = None
                self._decoded = (key, self._decode(name, piece, dtype_number, dtype, count))
            return self._decoded[1]

    def _decode(self, name: bytes, piece: Slice, dtype_number: int, dtype: DType, count: int) -> memoryview:
        handle, _, tensor = self.tensor(name, piece)
        try:
            elements = decode_numbers(tensor, dtype_number, dtype)
        except FormatError as error:
            raise type(error)(error.message, file=self.name, offset=handle.offset) from None
        if elements.size != count:
            message = f"{elements.size} elements in a slice of {count}"
            raise FormatError(message, file=self.name, offset=handle.offset)
        return elements.view(np.uint8).data if elements.size else memoryview(b"")


def _address(data: memoryview) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


class SliceSource:
    """The canonical bytes of one slice.

    Parameters
    ----------
    file : TableFile
    name : bytes
    piece : Slice
    dtype_number : int
    dtype : DType
    count : int
        The number of its elements.
    """

    def __init__(
        self, file: TableFile, name: bytes, piece: Slice, dtype_number: int, dtype: DType, count: int
    ) -> None:
        self._file = file
        self._name = name
        self._piece = piece
        self._number = dtype_number
        self._dtype = dtype
        self._count = count
        self._found: tuple[Source | None] | None = None

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes, where they lie in the file as they are.

        Raises
        ------
        ChecksumError, FormatError
            They are not what was written; the error names the tensor.
        """
        inside = self._in_place()
        return None if inside is None else inside.view(start, stop)

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`; errors as `view`."""
        inside = self._in_place()
        if inside is not None:
            inside.readinto(start, out)
            return
        try:
            data = self._file.decoded(self._name, self._piece, self._number, self._dtype, self._count)
        except FormatError as error:
            raise error.located(file=self._file.name, tensor=_shown(self._name)) from None
        copy_bytes(out, data[start : start + len(out)])

    def _in_place(self) -> Source | None:
        if self._found is None:
            try:
                place = self._file.in_place(
                    self._name, self._piece, self._number, self._dtype.nbytes((self._count,))
                )
            except FormatError as error:
                raise error.located(file=self._file.name, tensor=_shown(self._name)) from None
            self._found = (None if place is None else self._file.source(*place),)
        return self._found[0]


def _shown(name: bytes) -> str:
    return name[:200].decode(errors="backslashreplace")
