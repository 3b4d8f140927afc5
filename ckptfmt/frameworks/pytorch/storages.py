"""Storages, and the canonical bytes of tensors that are strided views of them.

A storage is a piece of a file; containers differ only in where they keep it. Nothing is read before a
tensor's bytes are asked for. Contiguous little-endian tensors are ranges of their storage, without a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckptfmt.errors import FormatError, MissingFileError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.storage.slices import SliceReader
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.source import ArraySource

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ckptfmt.containers.zip.archive import ZipArchive
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.source import Source

__all__ = [
    "CHANNELS_LAST",
    "FlippedSource",
    "Storage",
    "Storages",
    "StridedSource",
    "Strides",
    "ZipStorages",
    "contiguous",
]


CHANNELS_LAST: dict[str, tuple[int, ...]] = {
    "channels_last": (0, 2, 3, 1),
    "channels_last_3d": (0, 2, 3, 4, 1),
}
"""The order in which each memory format has the axes in memory, outermost first."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory that tensors are views of.

    Attributes
    ----------
    identity : hashable
        Equal for the same storage of the same file only.
    reader : ByteReader
        All of its bytes.
    big_endian : bool
        The byte order of numbers in it.
    base : int
        Where it begins within the storage that `identity` means, in bytes.
    """

    identity: Hashable
    reader: ByteReader
    big_endian: bool
    base: int = 0

    def part(self, offset: int, length: int) -> Storage:
        """Return a view of some of its bytes as a storage.

        Raises
        ------
        FormatError
            It has not that many.
        """
        if offset < 0 or length < 0 or offset + length > self.reader.size:
            message = f"a view of bytes {offset} to {offset + length} of a storage of {self.reader.size}"
            raise FormatError(message, file=self.reader.name)
        inside = SliceReader(self.reader, offset, length, name=self.reader.name)
        return Storage(self.identity, inside, self.big_endian, self.base + offset)


class Storages(Protocol):
    """The storages of one file."""

    @property
    def nbytes(self) -> int:
        """The bytes of all of them together."""

    def find(self, key: str, nbytes: int) -> Storage:
        """Return the storage called `key`, which the pickle says has `nbytes` bytes.

        Raises
        ------
        FormatError
            There is none, or it has another length.
        """


class ZipStorages:
    """Storages that are members ``<root>/<folder>/<key>`` of a zip archive, or ``tensors/<key>`` of 1.4.

    Parameters
    ----------
    archive : ZipArchive
    root : str
    big_endian : bool
    folder : str
    """

    def __init__(self, archive: ZipArchive, root: str, *, big_endian: bool, folder: str = "data") -> None:
        self._archive = archive
        self._root = root
        self._folder = f"{root}/{folder}"
        self._big_endian = big_endian
        self._token = object()
        self._found: dict[str, Storage] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of all members together."""
        return sum(entry.size for entry in self._archive.entries.values())

    def find(self, key: str, nbytes: int) -> Storage:
        """Return a member; it is opened when it is first read."""
        storage = self._found.get(key)
        if storage is None:
            member, old = f"{self._folder}/{key}", f"{self._root}/tensors/{key}"
            if member not in self._archive.entries and old in self._archive.entries:
                member = old
            reader = _LazyMember(self._archive, member)
            storage = self._found[key] = Storage((self._token, key), reader, self._big_endian)
        if storage.reader.size != nbytes:
            message = f"a storage of {nbytes} bytes has a record of {storage.reader.size}"
            raise FormatError(message, file=storage.reader.name)
        return storage


class _LazyMember:
    """A member of an archive that is opened when it is first read."""

    __slots__ = ("_archive", "_member", "name", "size")

    def __init__(self, archive: ZipArchive, member: str) -> None:
        entry = archive.entries.get(member)
        if entry is None:
            raise MissingFileError(f"there is no storage {member!r}", file=archive.name)
        self._archive = archive
        self._member = member
        self.name = f"{archive.name}: {member}"
        self.size = entry.size

    def read(self, offset: int, length: int) -> bytes:
        return self._archive.open(self._member).read(offset, length)

    def readinto(self, offset: int, out: memoryview) -> None:
        self._archive.open(self._member).readinto(offset, out)

    def view(self, offset: int, length: int) -> memoryview | None:
        return self._archive.open(self._member).view(offset, length)


@dataclass(frozen=True, slots=True)
class Strides:
    """How a tensor lies in its storage.

    Attributes
    ----------
    offset : int
        Of the first element, in elements.
    shape, strides : tuple of int
        In elements.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """The elements of the storage from the first to the last that the tensor has, half-open."""
        if self.size == 0:
            return self.offset, self.offset
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        return self.offset, self.offset + last + 1

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in C order."""
        expected = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return self.size == 0
            expected *= length
        return True

    @property
    def memory_format(self) -> str | None:
        """The memory format of a tensor whose channels lie innermost, else None."""
        if self.is_contiguous or self.size == 0:
            return None
        for name, order in CHANNELS_LAST.items():
            if len(order) == len(self.shape):
                shape, strides = (tuple(of[axis] for axis in order) for of in (self.shape, self.strides))
                return name if Strides(0, shape, strides).is_contiguous else None
        return None


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor as PyTorch has them."""
    strides = []
    stride = 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(1, length)
    return tuple(reversed(strides))


class StridedSource:
    """The elements of a tensor in C order, little-endian, out of a storage of any order.

    Parameters
    ----------
    storage : Storage
    strides : Strides
        Within the bounds of the storage, which the caller checks.
    width : int
        Bytes of an element.
    lanes : int
        Numbers in an element, whose bytes are in the storage's order each.

    Attributes
    ----------
    label : str or None
        The tensor's path, for errors.
    """

    __slots__ = ("_inner", "_lanes", "_storage", "_strides", "_width", "label")

    def __init__(self, storage: Storage, strides: Strides, width: int, lanes: int = 1) -> None:
        self._storage = storage
        self._strides = strides
        self._width = width
        self._lanes = lanes
        self._inner: Source | None = None
        self.label: str | None = None

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes, once their record is verified."""
        try:
            return self._source().view(start, stop)
        except FormatError as error:
            raise error.located(tensor=self.label) from None

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`, once the record is verified."""
        try:
            self._source().readinto(start, out)
        except FormatError as error:
            raise error.located(tensor=self.label) from None

    def _source(self) -> Source:
        if self._inner is None:
            self._inner = self._make()
        return self._inner

    def _make(self) -> Source:
        strides, width = self._strides, self._width
        lane = width // self._lanes
        if strides.is_contiguous and (lane == 1 or not self._storage.big_endian):
            return RangeSource(self._storage.reader, strides.offset * width, strides.size * width)
        first, last = strides.span
        carrier = np.dtype(f"{'>' if self._storage.big_endian else '<'}u{lane}")
        flat = _elements(self._storage.reader, first * width, (last - first) * width, carrier)
        shape = (*strides.shape, self._lanes)
        steps = (*(stride * width for stride in strides.strides), lane)
        array = np.lib.stride_tricks.as_strided(flat, shape, steps)
        return ArraySource(array, dtype(f"u{8 * lane}"))


def _elements(
    reader: ByteReader, start: int, nbytes: int, carrier: np.dtype[np.unsignedinteger]
) -> np.ndarray:
    """Return a range of a storage as numbers: mapped where it can be, else read."""
    data = reader.view(start, nbytes)
    if data is None:
        data = np.empty(nbytes, np.uint8).data
        reader.readinto(start, data)
    return np.frombuffer(data, carrier)


class FlippedSource:
    """Elements whose conjugate or negative is meant, as lazily conjugated and negated views have them.

    Parameters
    ----------
    inner : StridedSource
        The elements as they are stored.
    width, lanes : int
        As of `inner`.
    conjugate, negate : bool
    is_float : bool
        Whether the numbers are floats, whose sign is a bit; integers are negated as two's complements.
    """

    __slots__ = ("_inner", "_mask", "_two_complement", "_width")

    def __init__(
        self, inner: StridedSource, width: int, lanes: int, *, conjugate: bool, negate: bool, is_float: bool
    ) -> None:
        self._inner = inner
        self._width = width
        self._two_complement = negate and not is_float
        lane = width // lanes
        mask = np.zeros((lanes, lane), np.uint8)
        if is_float and negate:
            mask[:, -1] ^= 0x80
        if conjugate and lanes == 2:
            mask[1, -1] ^= 0x80
        self._mask = mask.reshape(-1)

    @property
    def label(self) -> str | None:
        """The tensor's path, for errors."""
        return self._inner.label

    @label.setter
    def label(self, value: str | None) -> None:
        self._inner.label = value

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - the protocol's arguments
        """Return None: the bytes are made when they are asked for."""
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`, whole elements at a time."""
        first, last = start // self._width, -(-(start + len(out)) // self._width)
        data = np.empty((last - first, self._width), np.uint8)
        self._inner.readinto(first * self._width, data.reshape(-1).data)
        if self._two_complement:
            numbers = data.view(f"<u{self._width}")
            np.negative(numbers, out=numbers)
        else:
            data ^= self._mask
        skip = start - first * self._width
        out[:] = data.reshape(-1)[skip : skip + len(out)].data
