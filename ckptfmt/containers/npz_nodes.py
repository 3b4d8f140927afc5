"""Nodes of a tree as arrays of an NPZ file, as every writer of such files needs them.

Tensors keep their type where numpy can name it and their bits where it cannot; strings become unicode arrays
where those give them back; the structure note is one array of bytes that is never deflated. No framework's
names are known here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.noted.note import NOTE
from ckptfmt.containers.noted.planning import Held, pieces
from ckptfmt.containers.npy.objects import NONE_PICKLE
from ckptfmt.containers.npy.values import MAX_STRINGS
from ckptfmt.errors import TreeError
from ckptfmt.tree.paths import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.containers.noted.planning import Row
    from ckptfmt.containers.npz import NpzWriter
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.nodes import Strings
    from ckptfmt.tree.paths import Path

__all__ = [
    "NpzNames",
    "add_none",
    "add_note",
    "add_row",
    "add_strings",
    "strings_fit",
]

_SLAB = 1 << 16


class NpzNames:
    """What planning must know of NPZ."""

    reserved: frozenset[str] = frozenset()

    @staticmethod
    def name(path: Path) -> str:
        """Return the keys of a path joined by ``/``; no zip archive holds a NUL in a name."""
        return "/".join(dotted((key,)) for key in path).replace("\0", "\\0")

    @staticmethod
    def held(dtype: DType, shape: tuple[int, ...]) -> Held:
        """Return how NPZ holds a tensor."""
        if dtype.packed:
            return Held("|u1", (dtype.nbytes(shape),), exact=False)
        if dtype.numpy.isbuiltin == 1 or dtype.numpy.kind == "S":
            return Held(dtype.numpy.str, shape, exact=True)
        return Held(f"|V{dtype.bits // 8}", shape, exact=False)


def strings_fit(strings: Strings) -> bool:
    """Whether a unicode array gives these strings back, and is not much larger than they are.

    Raises
    ------
    TreeError
        A string is not valid Unicode.
    """
    values = strings.values
    _check_text(values)
    if len(values) > MAX_STRINGS or any(isinstance(text, bytes) or text.endswith("\0") for text in values):
        return False
    longest = max(map(len, values), default=0)
    return longest * len(values) <= _SLAB + 16 * sum(map(len, values))


def _check_text(values: tuple[str, ...] | tuple[bytes, ...]) -> None:
    try:
        "".join(text for text in values if isinstance(text, str)).encode()
    except UnicodeEncodeError as error:
        raise TreeError(f"a string is not valid Unicode: {error.object[error.start : error.end]!r}") from None


def add_note(writer: NpzWriter, note: bytes) -> None:
    """Write a structure note."""
    writer.add(NOTE, "|u1", (len(note),), len(note), lambda: (note,), stored=True)


def add_row(writer: NpzWriter, row: Row) -> None:
    """Write a tensor as it was planned, piece by piece."""
    writer.add(row.name, row.kind, row.shape, row.tensor.nbytes, partial(pieces, row.tensor))


def add_none(writer: NpzWriter, name: str) -> None:
    """Write None as ``numpy.save`` does: an array of objects whose pickle is the one that is read again."""
    writer.add(name, "|O", (), len(NONE_PICKLE), lambda: (NONE_PICKLE,), stored=True)


def add_strings(writer: NpzWriter, name: str, strings: Strings) -> None:
    """Write strings that fit as a unicode array."""
    values = strings.values
    width = max(1, max(map(len, values), default=1))
    nbytes = 4 * width * len(values)
    writer.add(name, f"<U{width}", strings.shape, nbytes, partial(_string_pieces, strings, width))


def _string_pieces(strings: Strings, width: int) -> Iterator[bytes]:
    step = max(1, _SLAB // width)
    for first in range(0, len(strings.values), step):
        values = strings.values[first : first + step]
        yield np.array(values, f"<U{width}").tobytes()
