"""Where a tensor's bytes come from: memory now, or a place that is read when asked.

A source speaks in ranges of *canonical bytes* (little-endian, C order, packed), so that every writer
can stream any tensor piece by piece and no reader needs a second copy of the data.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckptfmt.tree.box import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.tree.dtypes import DType

__all__ = [
    "ArraySource",
    "BytesSource",
    "Source",
    "ZeroPadded",
    "gather",
    "may_overlap",
    "pack",
    "read_box",
    "unpack",
]

_SLAB_BYTES = 4 << 20
_COPY_WITH_NUMPY = 32 << 10


class Source(Protocol):
    """The canonical bytes of one tensor. Safe to call from several threads."""

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return bytes [`start`, `stop`) without a copy (format "B"), or None where that cannot be."""

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out` (format "B", writable) with the bytes that begin at `start`.

        Raises
        ------
        FormatError, StorageError
            As the place that is read demands; never a short fill.
        """


class BytesSource:
    """Canonical bytes that lie in memory already.

    Parameters
    ----------
    data : memoryview
        Format "B", contiguous, exactly the canonical bytes.
    """

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes themselves."""
        return self._data[start:stop]

    def readinto(self, start: int, out: memoryview) -> None:
        """Copy the bytes that begin at `start`."""
        copy_bytes(out, self._data[start : start + len(out)])


def copy_bytes(out: memoryview, data: memoryview) -> None:
    """Copy equal-length byte views; large copies release the interpreter lock, as memoryview's do not."""
    if len(out) < _COPY_WITH_NUMPY:
        out[:] = data
    else:
        np.copyto(np.frombuffer(out, np.uint8), np.frombuffer(data, np.uint8))


class ArraySource:
    """A numpy array of any strides and byte order.

    Parameters
    ----------
    array : numpy.ndarray
        Any strides, either byte order. Not copied: later changes show.
    dtype : DType
        The type of its elements.
    """

    __slots__ = ("_array", "_bytes", "_dtype")

    def __init__(self, array: np.ndarray, dtype: DType) -> None:
        self._array = array
        self._dtype = dtype
        self._bytes: memoryview | None = None
        if array.flags.c_contiguous and not dtype.packed and array.dtype == dtype.numpy:
            self._bytes = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")

    def extent(self, address: int | None = None) -> tuple[int, int]:
        """Return the half-open range of addresses that the elements span; the array is not empty.

        Parameters
        ----------
        address : int, optional
            Of the first element, where the caller knows it: asking numpy takes a while.
        """
        array = self._array
        if address is None:
            address = array.__array_interface__["data"][0]
        if self._bytes is not None:
            return address, address + array.nbytes
        reach = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
        low = address + sum(min(step, 0) for step in reach)
        return low, address + sum(max(step, 0) for step in reach) + array.itemsize

    @property
    def array(self) -> np.ndarray:
        """The array itself, of whatever byte order and strides."""
        return self._array

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return the array's own bytes where they are canonical already."""
        return None if self._bytes is None else self._bytes[start:stop]

    def readinto(self, start: int, out: memoryview) -> None:
        """Gather the elements that make up the bytes from `start` on."""
        if self._bytes is not None:
            copy_bytes(out, self._bytes[start : start + len(out)])
        elif self._dtype.packed:
            per_byte = 8 // self._dtype.bits
            first = start * per_byte
            last = min(first + len(out) * per_byte, self._array.size)
            codes = np.empty(last - first, np.uint8)
            gather(self._array.view(np.uint8), first, codes)
            out[:] = pack(codes, self._dtype.bits).data
        else:
            self._gather_bytes(start, out)

    def _gather_bytes(self, start: int, out: memoryview) -> None:
        width = self._dtype.numpy.itemsize
        first, last = start // width, -(-(start + len(out)) // width)
        if start % width == 0 and len(out) % width == 0:
            gather(self._array, first, np.frombuffer(out, self._dtype.numpy))
            return
        elements = np.empty(last - first, self._dtype.numpy)  # a range that cuts elements
        gather(self._array, first, elements)
        skip = start - first * width
        out[:] = elements.view(np.uint8).data[skip : skip + len(out)]


class ZeroPadded:
    """Packed elements of another source, the unused bits of their last byte set to zero.

    Parameters
    ----------
    source : Source
    nbytes : int
        Length of the canonical bytes.
    used : int
        Bits of the last byte that hold elements, 1 to 7.
    """

    __slots__ = ("_last", "_mask", "_source")

    def __init__(self, source: Source, nbytes: int, used: int) -> None:
        self._source = source
        self._last = nbytes - 1
        self._mask = (1 << used) - 1

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes where the last is not among them."""
        return self._source.view(start, stop) if stop <= self._last else None

    def readinto(self, start: int, out: memoryview) -> None:
        """Copy the bytes, the last one masked."""
        self._source.readinto(start, out)
        if start <= self._last < start + len(out):
            out[self._last - start] &= self._mask


def may_overlap(array: np.ndarray) -> bool:
    """Return whether elements share memory with each other, as those of a broadcast array do.

    No array that slicing, transposing and reshaping make of one without overlap has any; for odd strides of
    other origin the answer may be yes where there is none.
    """
    reach = array.itemsize
    for stride, count in sorted(
        (abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1
    ):
        if stride < reach:
            return array.size > 0
        reach += stride * (count - 1)
    return False


def gather(array: np.ndarray, start: int, out: np.ndarray) -> None:
    """Fill `out` (1-D) with the elements of `array`, in C order, that begin at element `start`.

    Copies whole rows at a time, converting byte order on the way, so memory beside `out` is bounded
    and no element is touched in Python.
    """
    if array.flags.c_contiguous:
        np.copyto(out, array.reshape(-1)[start : start + out.size])
        return
    row = math.prod(array.shape[1:])
    done = 0
    while done < out.size:
        index, within = divmod(start + done, row)
        rows = (out.size - done) // row if within == 0 else 0
        if array.ndim == 1 or rows:
            count = max(rows, 1)
            piece = out[done : done + count * row].reshape(count, *array.shape[1:])
            np.copyto(piece, array[index : index + count])
            done += count * row
        else:
            count = min(row - within, out.size - done)
            gather(array[index], within, out[done : done + count])
            done += count


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack one-byte `codes` (1-D, uint8) into bytes, the first element in the lowest bits.

    Padding bits at the end are zero.
    """
    per_byte = 8 // bits
    count = -(-codes.size // per_byte)
    padded = np.zeros(count * per_byte, np.uint8)
    np.bitwise_and(codes, (1 << bits) - 1, out=padded[: codes.size])
    columns = padded.reshape(count, per_byte)
    packed: np.ndarray = columns[:, 0].copy()
    for place in range(1, per_byte):
        packed |= columns[:, place] << (place * bits)
    return packed


def unpack(data: np.ndarray, count: int, dtype: DType) -> np.ndarray:
    """Unpack `count` elements from packed bytes (1-D, uint8) into an array of ``dtype.numpy``."""
    per_byte = 8 // dtype.bits
    mask = (1 << dtype.bits) - 1
    columns = np.empty((data.size, per_byte), np.uint8)
    for place in range(per_byte):
        columns[:, place] = (data >> (place * dtype.bits)) & mask
    codes = columns.reshape(-1)[:count]
    if dtype.name in ("i4", "i2"):  # ml_dtypes keeps signed elements sign-extended
        sign = 1 << (dtype.bits - 1)
        codes = ((codes ^ sign) - sign).astype(np.uint8)
    return codes.view(dtype.numpy)


def read_box(source: Source, dtype: DType, shape: Sequence[int], box: Box) -> np.ndarray:
    """Read a box of a tensor into an array of shape ``box.shape`` and type ``dtype.numpy``.

    Reads only the byte ranges that the box crosses, in slabs of about 4 MiB. A box that is one run of a
    mapped source comes without a copy.
    """
    run = box.run(shape)
    if box.size == 0:
        return np.empty(box.shape, dtype.numpy)
    if run is not None:
        return _read_run(source, dtype, run[0], run[1]).reshape(box.shape)
    out = np.empty(box.shape, dtype.numpy)
    _read_rows(source, dtype, 0, tuple(shape), box, out)
    return out


def _read_rows(
    source: Source, dtype: DType, base: int, shape: tuple[int, ...], box: Box, out: np.ndarray
) -> None:
    """Read the box of the sub-tensor of `shape` that begins at element `base`, a slab at a time."""
    row = math.prod(shape[1:])
    run = box.run(shape)
    if run is not None:
        out[...] = _read_run(source, dtype, base + run[0], base + run[1]).reshape(box.shape)
        return
    if row * dtype.bits > _SLAB_BYTES * 8:
        for index in range(box.shape[0]):
            start = base + (box.offset[0] + index) * row
            _read_rows(source, dtype, start, shape[1:], Box(box.offset[1:], box.shape[1:]), out[index])
        return
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = base + sum(map(operator.mul, box.offset, strides))
    tail = sum((count - 1) * stride for count, stride in zip(box.shape[1:], strides[1:], strict=True)) + 1
    rows = max(1, _SLAB_BYTES * 8 // (row * dtype.bits))
    for index in range(0, box.shape[0], rows):
        count = min(rows, box.shape[0] - index)
        start = first + index * row  # from the first element of the box to its last: no chunk beside it
        slab = _read_run(source, dtype, start, start + (count - 1) * row + tail)
        steps = [stride * slab.itemsize for stride in strides]
        inside = (count, *box.shape[1:])
        out[index : index + count] = np.ndarray(inside, slab.dtype, slab.view(np.uint8), strides=steps)


def _read_run(source: Source, dtype: DType, first: int, last: int) -> np.ndarray:
    """Read elements [`first`, `last`) as a 1-D array."""
    start, stop = first * dtype.bits // 8, (last * dtype.bits + 7) // 8
    data = source.view(start, stop)
    if data is None:
        data = np.empty(stop - start, np.uint8).data
        source.readinto(start, data)
    if not dtype.packed:
        return np.frombuffer(data, dtype.numpy)
    skip = first - start * 8 // dtype.bits
    return unpack(np.frombuffer(data, np.uint8), skip + last - first, dtype)[skip:]
