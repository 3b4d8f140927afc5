"""Shapes as foreign files tell them, checked before anything is computed or allocated from them."""

from __future__ import annotations

from ckptfmt.errors import LimitError

__all__ = ["MAX_DIMENSION", "MAX_NDIM", "checked_count"]

MAX_NDIM = 64
"""Greatest number of dimensions."""
MAX_DIMENSION = 2**53
"""Greatest extent of one of them."""
_MAX_COUNT = 2**64 - 1


def checked_count(shape: tuple[int, ...], *, file: str, tensor: str | None = None) -> int:
    """Return the number of elements of a shape, none of whose extents is negative.

    A product that passes 2^64 is refused even if a later extent is zero, as checked arithmetic would.

    Raises
    ------
    LimitError
        The shape is larger than any tensor.
    """
    if len(shape) > MAX_NDIM or max(shape, default=0) > MAX_DIMENSION:
        raise LimitError("a shape beyond 64 dimensions of 2^53", file=file, tensor=tensor)
    count = 1
    for extent in shape:
        count *= extent
        if count > _MAX_COUNT:
            raise LimitError("a shape of more than 2^64 elements", file=file, tensor=tensor)
    return count
