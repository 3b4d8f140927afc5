"""Canonical bytes of arrays that lie in another byte order or index order.

Turned on the way, piece by piece; only an array in Fortran order that cannot be mapped is read as a whole,
when first asked for, for its canonical order crosses all of it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.tree.dtypes import dtype_of
from ckptfmt.tree.source import ArraySource

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.source import Source

__all__ = ["FortranSource", "SwappedSource"]


class SwappedSource:
    """Bytes of big-endian elements in C order.

    Parameters
    ----------
    source : Source
        The bytes as they lie.
    kind : numpy.dtype
        Their type; each half of a complex number is turned by itself.
    """

    __slots__ = ("_source", "_word")

    def __init__(self, source: Source, kind: np.dtype) -> None:
        self._source = source
        width = kind.itemsize // 2 if kind.kind == "c" else kind.itemsize
        self._word = np.dtype(f"u{width}")

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - the protocol
        """Return None: these bytes lie nowhere."""
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        """Read and turn the elements that the range touches."""
        width = self._word.itemsize
        skip = start % width
        if skip == 0 and len(out) % width == 0:
            self._source.readinto(start, out)
            np.frombuffer(out, self._word).byteswap(inplace=True)
            return
        length = -(-(skip + len(out)) // width) * width  # a range that cuts elements
        words = np.empty(length, np.uint8)
        self.readinto(start - skip, words.data)
        out[:] = words[skip : skip + len(out)].data


class FortranSource:
    """Bytes of an array whose first index varies fastest in the file.

    Parameters
    ----------
    reader : ByteReader
    offset : int
        Where its elements begin; the caller has checked that they are all there.
    kind : numpy.dtype
        Of any byte order.
    shape : tuple of int
        No extent is zero.
    width : int, optional
        Each element is `width` items of `kind`: one more dimension, the last.
    """

    __slots__ = ("_held", "_kind", "_lock", "_offset", "_reader", "_shape", "_width")

    def __init__(
        self,
        reader: ByteReader,
        offset: int,
        kind: np.dtype,
        shape: tuple[int, ...],
        *,
        width: int | None = None,
    ) -> None:
        self._reader = reader
        self._offset = offset
        self._kind = kind
        self._shape = shape
        self._width = width
        self._held: ArraySource | None = None
        self._lock = threading.Lock()

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return None, as a rule: canonical bytes lie nowhere."""
        return self._array().view(start, stop)

    def readinto(self, start: int, out: memoryview) -> None:
        """Gather the elements that make up the bytes from `start` on."""
        self._array().readinto(start, out)

    def _array(self) -> ArraySource:
        with self._lock:
            if self._held is None:
                self._held = ArraySource(self._load(), dtype_of(self._kind))
            return self._held

    def _load(self) -> np.ndarray:
        shape = self._shape if self._width is None else (self._width, *self._shape)
        length = int(np.prod(shape, dtype=object)) * self._kind.itemsize
        data = self._reader.view(self._offset, length)
        if data is None:
            data = np.empty(length, np.uint8).data
            self._reader.readinto(self._offset, data)
        array = np.frombuffer(data, self._kind).reshape(shape, order="F")
        return array if self._width is None else np.moveaxis(array, 0, -1)
