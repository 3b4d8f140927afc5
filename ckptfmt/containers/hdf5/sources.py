"""The elements of datasets as canonical bytes, read by us: chunks, constants.

A chunked dataset is read by slabs, all chunks that share a place along the first axis: a slab is decoded
straight into what is asked for, or kept, one for a whole file, while it is asked for in pieces.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.hdf5.filters import undo
from ckptfmt.errors import FormatError

if TYPE_CHECKING:
    from ckptfmt.containers.hdf5.filters import Filter
    from ckptfmt.storage.reader import ByteReader

__all__ = ["ChunkedSource", "Chunks", "ConstantSource", "SlabCache"]


class ConstantSource:
    """Elements that were never written: each is the fill value.

    Parameters
    ----------
    element : bytes
        In canonical byte order.
    """

    __slots__ = ("_element",)

    def __init__(self, element: bytes) -> None:
        self._element = np.frombuffer(element, np.uint8)

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - there is nothing to view
        """Return None."""
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`."""
        flat = np.frombuffer(out, np.uint8)
        if not self._element.any():
            flat[:] = 0
            return
        width = self._element.size
        turned = np.roll(self._element, -(start % width))
        whole = flat.size // width * width
        flat[:whole].reshape(-1, width)[...] = turned
        flat[whole:] = turned[: flat.size - whole]


class SlabCache:
    """The last slab that was decoded for a file, kept while it is read in pieces."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.key: tuple[int, int] | None = None
        self.data = memoryview(b"")

    def drop(self) -> None:
        """Let go of it."""
        self.key, self.data = None, memoryview(b"")


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Where the chunks of a dataset lie.

    Attributes
    ----------
    shape, chunk : tuple of int
        Of the dataset and of a chunk, in elements.
    place : numpy.ndarray
        For each chunk that was written its place in the grid of chunks, C order; 1-D int64, ascending.
    start, size : numpy.ndarray
        Where its bytes are in the file, and how many; 1-D int64.
    mask : numpy.ndarray
        Which filters it did not go through; 1-D int64.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    place: np.ndarray
    start: np.ndarray
    size: np.ndarray
    mask: np.ndarray

    @property
    def grid(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return tuple(-(-extent // step) for extent, step in zip(self.shape, self.chunk, strict=True))

    @property
    def whole(self) -> bool:
        """Whether every chunk was written."""
        return self.place.size == math.prod(self.grid)


class ChunkedSource:
    """A dataset in chunks.

    Parameters
    ----------
    reader : ByteReader
    name : str
        The dataset's, for errors.
    chunks : Chunks
    pipeline : tuple of Filter
    stored, canonical : numpy.dtype
        An element as it lies in a chunk, and in canonical order; of one width, no conversion but byte order.
    fill : bytes
        An element of a chunk that was never written.
    cache : SlabCache
        Of the file.
    """

    def __init__(
        self,
        reader: ByteReader,
        name: str,
        chunks: Chunks,
        pipeline: tuple[Filter, ...],
        *,
        stored: np.dtype,
        canonical: np.dtype,
        fill: bytes,
        cache: SlabCache,
    ) -> None:
        self._reader = reader
        self._name = name
        self._chunks = chunks
        self._pipeline = pipeline
        self._stored = stored
        self._canonical = canonical
        self._fill = ConstantSource(fill)
        self._cache = cache
        self._row = math.prod(chunks.shape[1:]) * canonical.itemsize
        self._total = chunks.shape[0] * self._row

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - nothing lies as it is asked for
        """Return None."""
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`; a slab that is cut stays decoded until its last byte was read, or another is cut."""
        step = self._chunks.chunk[0] * self._row
        done = 0
        while done < len(out):
            slab, within = divmod(start + done, step)
            length = min(step, self._total - slab * step)
            count = min(length - within, len(out) - done)
            piece = out[done : done + count]
            if count == length:
                self._decode(slab, piece)
            else:
                self._copy(slab, within, length, piece)
            done += count

    def _copy(self, slab: int, within: int, length: int, out: memoryview) -> None:
        cache = self._cache
        with cache.lock:
            if cache.key != (id(self), slab):
                cache.drop()
                data = np.empty(length, np.uint8).data
                self._decode(slab, data)
                cache.key, cache.data = (id(self), slab), data
            out[:] = cache.data[within : within + len(out)]
            if within + len(out) == length:
                cache.drop()

    def _decode(self, slab: int, out: memoryview) -> None:
        """Fill `out` with all elements of a slab."""
        chunks = self._chunks
        across = math.prod(chunks.grid[1:])
        first, last = np.searchsorted(chunks.place, (slab * across, (slab + 1) * across))
        if last - first < across:
            self._fill.readinto(0, out)
        target = np.frombuffer(out, self._canonical).reshape(-1, *chunks.shape[1:])
        for index in range(int(first), int(last)):
            place = np.unravel_index(int(chunks.place[index]) - slab * across, (1, *chunks.grid[1:]))
            corner = [int(p) * step for p, step in zip(place, chunks.chunk, strict=True)]
            box = tuple(
                slice(at, min(at + step, extent))
                for at, step, extent in zip(corner, chunks.chunk, target.shape, strict=True)
            )
            held = self._chunk(index)
            target[box] = held[tuple(slice(0, part.stop - part.start) for part in box)]

    def _chunk(self, index: int) -> np.ndarray:
        """Return the elements of a chunk, in the shape of a chunk."""
        chunks = self._chunks
        start, size = int(chunks.start[index]), int(chunks.size[index])
        nbytes = math.prod(chunks.chunk) * self._stored.itemsize
        data = self._reader.read(start, size)
        try:
            held = undo(data, self._pipeline, int(chunks.mask[index]), nbytes)
        except FormatError as error:
            raise error.located(file=self._reader.name, tensor=self._name, offset=start) from error
        return np.frombuffer(held, self._stored).reshape(chunks.chunk)
