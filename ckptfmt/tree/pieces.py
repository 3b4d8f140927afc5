"""One global tensor out of pieces that lie in different places: shards of ranks, chunks of other files.

Every element comes from exactly one piece; pieces of one and the same box are replicas, which are compared
where they are read. Nothing is read when a source is made, and reading holds a slab at a time.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.tree.box import Box
from ckptfmt.tree.source import pack, read_box
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.source import Source

__all__ = ["AgreeingSource", "JoinedSource", "part"]

_SLAB_BYTES = 4 << 20
_MOST_PAIRS = 1 << 26
_FEW = 512


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box of the global tensor, where it begins and ends there if it is one run, and its bytes."""

    box: Box
    run: tuple[int, int] | None
    source: Source


class _Elements(ABC):
    """A source that knows how to read boxes, and makes byte ranges out of them, a slab at a time."""

    __slots__ = ("_dtype", "_shape")

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape

    @abstractmethod
    def _read_box(self, box: Box, out: np.ndarray) -> None:
        """Fill `out` with the elements of a box."""

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        for at in range(0, len(out), _SLAB_BYTES):
            part = out[at : at + _SLAB_BYTES]
            if self._dtype.packed:
                self._read_packed(start + at, part)
            else:
                self._read_bytes(start + at, part)

    def _read_packed(self, start: int, out: memoryview) -> None:
        per_byte = 8 // self._dtype.bits
        first = start * per_byte
        last = min(first + len(out) * per_byte, math.prod(self._shape))
        elements = np.empty(last - first, self._dtype.numpy)
        self._read(first, elements)
        out[:] = pack(elements.view(np.uint8), self._dtype.bits).data

    def _read_bytes(self, start: int, out: memoryview) -> None:
        width = self._dtype.numpy.itemsize
        if start % width == 0 and len(out) % width == 0:
            self._read(start // width, np.frombuffer(out, self._dtype.numpy))
            return
        first, last = start // width, -(-(start + len(out)) // width)
        elements = np.empty(last - first, self._dtype.numpy)  # a range that cuts elements
        self._read(first, elements)
        skip = start - first * width
        out[:] = elements.view(np.uint8).data[skip : skip + len(out)]

    def _read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` (1-D) with the elements from `first` on."""
        done = 0
        for box in _boxes_of_run(self._shape, first, first + out.size):
            self._read_box(box, out[done : done + box.size].reshape(box.shape))
            done += box.size


class JoinedSource(_Elements):
    """The canonical bytes of a tensor whose pieces are tensors of their own.

    Parameters
    ----------
    dtype : DType
    shape : tuple of int
        Of the whole.
    pieces : sequence of (Box, Tensor)
        Where each lies in the whole. They must cover it and not overlap, except that several may have one
        and the same box: these are replicas, and their bytes must be equal. Empty ones are ignored.

    Raises
    ------
    FormatError
        A piece does not lie in the whole, is of another type or shape than its box, overlaps another, or
        elements have no piece.
    LimitError
        There are more pieces, laid out more oddly, than can be compared.
    """

    __slots__ = ("_pieces", "_starts", "_stops")

    def __init__(self, dtype: DType, shape: tuple[int, ...], pieces: Sequence[tuple[Box, Tensor]]) -> None:
        super().__init__(dtype, shape)
        self._pieces = [
            _Piece(box, box.run(shape), _agreeing(found))
            for box, found in _by_box(dtype, shape, pieces).items()
        ]
        boxes = [piece.box for piece in self._pieces]
        columns = (len(boxes), len(shape))
        self._starts = np.array([box.offset for box in boxes], np.int64).reshape(columns)
        self._stops = self._starts + np.array([box.shape for box in boxes], np.int64).reshape(columns)
        _check_apart(self._starts, self._stops)
        _check_cover(shape, boxes)

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes of one piece where all of them lie in it, one after the other."""
        if self._dtype.packed and len(self._pieces) > 1:
            return None
        width = self._dtype.bits
        for piece in self._pieces if len(self._pieces) <= _FEW else ():
            if piece.run is None:
                continue
            first, last = (at * width for at in piece.run)
            if first <= start * 8 and (stop * 8 <= last or len(self._pieces) == 1):
                return piece.source.view(start - first // 8, stop - first // 8)
        return None

    def _read_box(self, box: Box, out: np.ndarray) -> None:
        low = np.array(box.offset, np.int64)
        high = low + np.array(box.shape, np.int64)
        touched = np.all((self._starts < high) & (self._stops > low), axis=1)
        for index in np.flatnonzero(touched):
            piece = self._pieces[index]
            begin = np.maximum(low, self._starts[index])
            extent = tuple((np.minimum(high, self._stops[index]) - begin).tolist())
            inside = Box(tuple((begin - self._starts[index]).tolist()), extent)
            place = tuple(
                slice(at, at + length) for at, length in zip((begin - low).tolist(), extent, strict=True)
            )
            out[place] = read_box(piece.source, self._dtype, piece.box.shape, inside)


class AgreeingSource:
    """Replicas of the same bytes: the first is handed out, once all others were found equal.

    Parameters
    ----------
    sources : sequence of Source
        One or more.
    names : sequence of str, optional
        What to call each in errors; numbers from 1 on otherwise.
    """

    __slots__ = ("_names", "_others", "_source")

    def __init__(self, sources: Sequence[Source], names: Sequence[str] = ()) -> None:
        self._source = sources[0]
        self._others = sources[1:]
        self._names = names or [f"number {number}" for number in range(1, len(sources) + 1)]

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return the first one's bytes where it has a view."""
        found = self._source.view(start, stop)
        if found is not None:
            self._compare(start, found)
        return found

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out` from the first.

        Raises
        ------
        FormatError
            Another one has other bytes there.
        """
        self._source.readinto(start, out)
        self._compare(start, out)

    def _compare(self, start: int, data: memoryview) -> None:
        for name, other in zip(self._names[1:], self._others, strict=True):
            for at in range(0, len(data), _SLAB_BYTES):
                mine = data[at : at + _SLAB_BYTES]
                if not _same(other, start + at, mine):
                    message = f"replicas differ: {name} has other bytes than {self._names[0]}"
                    raise FormatError(message, offset=start + at)


def part(tensor: Tensor, box: Box) -> Tensor:
    """Return a box of a tensor as a tensor; the tensor itself where that is all of it.

    Nothing is read.

    Raises
    ------
    FormatError
        The box does not lie inside the tensor.
    """
    if box == Box.whole(tensor.shape):
        return tensor
    if not box.fits(tensor.shape):
        raise FormatError(f"a piece {_shown(box)} does not lie inside a tensor of shape {tensor.shape}")
    identity = None if tensor.identity is None else (tensor.identity, box)
    return Tensor(tensor.dtype, box.shape, _PartSource(tensor, box), identity=identity)


class _PartSource(_Elements):
    """A box of another tensor."""

    __slots__ = ("_box", "_tensor")

    def __init__(self, tensor: Tensor, box: Box) -> None:
        super().__init__(tensor.dtype, box.shape)
        self._tensor = tensor
        self._box = box

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes where they follow each other in the whole, too."""
        run = self._box.run(self._tensor.shape)
        if run is None or self._dtype.packed:
            return None
        first = run[0] * self._dtype.bits // 8
        return self._tensor.source.view(first + start, first + stop)

    def _read_box(self, box: Box, out: np.ndarray) -> None:
        offset = tuple(map(operator.add, self._box.offset, box.offset))
        out[...] = self._tensor.read(Box(offset, box.shape))


def _same(source: Source, start: int, data: memoryview) -> bool:
    found = source.view(start, start + len(data))
    if found is None:
        found = np.empty(len(data), np.uint8).data
        source.readinto(start, found)
    return np.array_equal(np.frombuffer(found, np.uint8), np.frombuffer(data, np.uint8))


def _agreeing(found: list[Tensor]) -> Source:
    sources: list[Source] = []
    seen: set[object] = set()
    for tensor in found:
        if tensor.identity is None or tensor.identity not in seen:
            sources.append(tensor.source)
        seen.add(tensor.identity)
    return sources[0] if len(sources) == 1 else AgreeingSource(sources)


def _by_box(
    dtype: DType, shape: tuple[int, ...], pieces: Sequence[tuple[Box, Tensor]]
) -> dict[Box, list[Tensor]]:
    """Return the pieces that have elements, replicas together."""
    found: dict[Box, list[Tensor]] = {}
    for box, tensor in pieces:
        if not box.fits(shape):
            raise FormatError(f"a piece {_shown(box)} does not lie inside a tensor of shape {shape}")
        if tensor.dtype != dtype:
            raise FormatError(f"a piece {_shown(box)} is of {tensor.dtype}, the whole of {dtype}")
        if tensor.shape != box.shape:
            raise FormatError(f"a piece {_shown(box)} has the shape {tensor.shape}")
        if box.size:
            found.setdefault(box, []).append(tensor)
    return found


def _shown(box: Box) -> str:
    ranges = ", ".join(
        f"{start}:{start + length}" for start, length in zip(box.offset, box.shape, strict=True)
    )
    return f"[{ranges}]"


def _check_apart(starts: np.ndarray, stops: np.ndarray) -> None:
    """Raise FormatError if two boxes have an element in common.

    Boxes are sorted along the axis with most cuts, so each is compared with those only that begin before it
    ends there.
    """
    count, ndim = starts.shape
    if count < 2:
        return
    axis = max(range(ndim), key=lambda axis: np.unique(starts[:, axis]).size)
    order = np.argsort(starts[:, axis], kind="stable")
    starts, stops = starts[order], stops[order]
    reach = np.searchsorted(starts[:, axis], stops[:, axis], side="left")
    if int(np.sum(reach - np.arange(count) - 1)) > _MOST_PAIRS:
        raise LimitError(f"{count} pieces lie so that too many would have to be compared")
    for index in np.flatnonzero(reach > np.arange(count) + 1):
        others = slice(index + 1, int(reach[index]))
        common = np.all((starts[others] < stops[index]) & (stops[others] > starts[index]), axis=1)
        if common.any():
            other = index + 1 + int(np.argmax(common))
            boxes = [
                _shown(Box(tuple(starts[at].tolist()), tuple((stops[at] - starts[at]).tolist())))
                for at in (index, other)
            ]
            raise FormatError(f"pieces overlap: {boxes[0]} and {boxes[1]}")


def _check_cover(shape: tuple[int, ...], boxes: list[Box]) -> None:
    """Raise FormatError unless boxes that lie apart cover a tensor."""
    missing = math.prod(shape) - sum(box.size for box in boxes)
    if missing:
        where = f", the first at {list(_first_gap(shape, boxes))}" if len(boxes) <= _FEW else ""
        raise FormatError(f"pieces are missing: {missing} of {math.prod(shape)} elements lie in none{where}")


def _first_gap(shape: tuple[int, ...], boxes: list[Box], axis: int = 0) -> tuple[int, ...]:
    """Return the rest, from `axis` on, of the first index that no box has; empty where there is none."""
    if axis == len(shape):
        return ()
    cuts = {0, *(box.offset[axis] for box in boxes), *(box.offset[axis] + box.shape[axis] for box in boxes)}
    for cut in sorted(cuts):
        if cut >= shape[axis]:
            break
        active = [box for box in boxes if box.offset[axis] <= cut < box.offset[axis] + box.shape[axis]]
        if not active:
            return (cut, *(0,) * (len(shape) - axis - 1))
        below = _first_gap(shape, active, axis + 1)
        if below:
            return (cut, *below)
    return ()


def _boxes_of_run(shape: tuple[int, ...], first: int, last: int) -> Iterator[Box]:
    """Yield boxes that have the elements [`first`, `last`) of a tensor of `shape`, in order."""
    if first >= last:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    index, within = divmod(first, row)
    if within or last - first < row:
        stop = min(last, (index + 1) * row)
        for box in _boxes_of_run(shape[1:], within, stop - index * row):
            yield Box((index, *box.offset), (1, *box.shape))
        first = stop
    rows = (last - first) // row
    if rows:
        yield Box((first // row, *(0,) * (len(shape) - 1)), (rows, *shape[1:]))
        first += rows * row
    if first < last:
        for box in _boxes_of_run(shape[1:], 0, last - first):
            yield Box((first // row, *box.offset), (1, *box.shape))
