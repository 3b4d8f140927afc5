"""Slices of tensors, and the keys under which a table holds them.

A key is an ordered code, so that slices of a tensor stand together: 0, the name, the number of dimensions,
and for each its start and length; -1 is the length of a whole dimension. Source:
``tensorflow/core/util/saved_tensor_slice_util.cc``, ``tensorflow/core/lib/strings/ordered_code.cc``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from ckptfmt.errors import FormatError
from ckptfmt.tree.box import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Slice", "box_of", "slice_key"]

Slice: TypeAlias = "tuple[tuple[int, int], ...]"
"""Start and length for each dimension; a length of -1 is all of it."""

_SPECIAL = re.compile(rb"[\x00\xff]")


def box_of(piece: Slice, shape: Sequence[int]) -> Box:
    """Return where a slice lies in a tensor of `shape`.

    Raises
    ------
    FormatError
        It does not lie inside it.
    """
    if len(piece) == len(shape):
        lengths = (extent if length < 0 else length for (_, length), extent in zip(piece, shape, strict=True))
        box = Box(tuple(start for start, _ in piece), tuple(lengths))
        if box.fits(shape):
            return box
    raise FormatError(f"the slice {list(piece)} does not lie in a tensor of shape {list(shape)}")


def slice_key(name: bytes, piece: Slice) -> bytes:
    """Return the key of a slice of the tensor called `name`."""
    numbers = b"".join(_signed(start) + _signed(length) for start, length in piece)
    return _unsigned(0) + _string(name) + _unsigned(len(piece)) + numbers


def _string(text: bytes) -> bytes:
    """Encode a string so that longer ones come later: 0 and 255 are marked, and the end is."""
    return _SPECIAL.sub(lambda found: b"\x00\xff" if found[0] == b"\x00" else b"\xff\x00", text) + b"\x00\x01"


def _unsigned(number: int) -> bytes:
    """Encode a number so that larger ones come later: how many bytes, then those."""
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(data)]) + data


def _signed(number: int) -> bytes:
    """Encode a signed number so that larger ones come later: leading ones (or zeros) tell how many bytes."""
    size = (number if number >= 0 else ~number).bit_length() // 7 + 1
    code = (number & (1 << 8 * size) - 1) ^ ((1 << size) - 1 << 7 * size)
    return code.to_bytes(size, "big")
