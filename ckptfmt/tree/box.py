"""Half-open hyper-rectangles of a tensor, and where their elements lie in canonical order.

Pure arithmetic: nothing here reads.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import EllipsisType

__all__ = ["Box", "Index", "box_of_index"]

Index: TypeAlias = "SupportsIndex | slice | EllipsisType | tuple[SupportsIndex | slice | EllipsisType, ...]"


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open hyper-rectangle: elements ``offset[d] <= i[d] < offset[d] + shape[d]``.

    Attributes
    ----------
    offset, shape : tuple of int
        In elements, one for each dimension of the tensor.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box that is all of a tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the box lies inside a tensor of `shape`."""
        return len(shape) == len(self.shape) == len(self.offset) and all(
            start >= 0 and length >= 0 and start + length <= extent
            for start, length, extent in zip(self.offset, self.shape, shape, strict=True)
        )

    def run(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """Return ``(start, stop)`` in elements if the box is one run of a tensor of `shape`, else None."""
        start = 0
        inner_is_whole = True
        stride = 1
        for extent, first, length in zip(
            reversed(shape), reversed(self.offset), reversed(self.shape), strict=True
        ):
            if not inner_is_whole and length != 1:
                return None
            inner_is_whole = inner_is_whole and length == extent
            start += first * stride
            stride *= extent
        return start, start + self.size


def box_of_index(index: Index, shape: Sequence[int]) -> tuple[Box, tuple[int, ...]]:
    """Return the box that a basic index selects, and the shape of the result.

    Integers, slices of step 1 and one ``...`` are understood, as numpy does.

    Raises
    ------
    IndexError
        Too many indices, or one out of range.
    TypeError
        An index of another kind, such as an array, a bool or None: take a box and index it in memory.
    ValueError
        A slice with a step other than 1.
    """
    offset, extent, result = [], [], []
    for part, length in zip(_full_index(index, len(shape)), shape, strict=True):
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            if step != 1:
                message = "a tensor is sliced with step 1 only; take a box and step through it in memory"
                raise ValueError(message)
            count = max(0, stop - start)
            result.append(count)
        else:
            start, count = part + (length if part < 0 else 0), 1
            if not 0 <= start < length:
                raise IndexError(f"index {part} is out of range for a dimension of {length}")
        offset.append(start)
        extent.append(count)
    return Box(tuple(offset), tuple(extent)), tuple(result)


def _full_index(index: Index, ndim: int) -> list[int | slice]:
    """Return an integer or slice for each dimension."""
    parts = [_part(part) for part in (index if isinstance(index, tuple) else (index,))]
    dots = sum(part is None for part in parts)
    if dots > 1:
        message = "an index can only have a single ellipsis"
        raise IndexError(message)
    given = len(parts) - dots
    if given > ndim:
        message = f"too many indices: {given} for a tensor of {ndim} dimensions"
        raise IndexError(message)
    at = parts.index(None) if dots else given
    filler: list[int | slice | None] = [slice(None)] * (ndim - given)
    return [part for part in (*parts[:at], *filler, *parts[at:]) if part is not None]


def _part(part: SupportsIndex | slice | EllipsisType) -> int | slice | None:
    """Return one index, checked; None for ``...``."""
    if part is ...:
        return None
    if isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool | np.bool_):
            return operator.index(part)
    except TypeError:
        pass
    raise TypeError(f"a tensor is indexed by integers, slices and ..., not by {type(part).__name__}")
