"""Element types in numpy's notation, checked against a grammar before numpy sees them.

``<f4`` and its like, and the lists of members that structures are. Objects never pass.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ckptfmt.errors import FormatError, LimitError, UnsupportedVersionError

if TYPE_CHECKING:
    from ckptfmt.containers.npy.literal import Literal

__all__ = ["is_long_double", "simple_type", "structured_type"]

_SIMPLE = re.compile(
    r"([<>|])(?:(b1|[iu][1248]|f(?:1|2|4|8|12|16)|c(?:8|16|24|32)|[SUV][1-9][0-9]{0,9})"
    r"|([Mm]8)(?:\[([1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\])?)"
)
_MAX_WIDTH = 2**31 - 1
_MAX_MEMBERS = 1 << 16
_MAX_LEVELS = 16


def simple_type(descr: str, *, file: str) -> tuple[str, str, int]:
    """Return byte order, code (numpy's `dtype.kind`) and width in bytes of a simple type.

    Raises
    ------
    UnsupportedVersionError
        Objects.
    LimitError
        Elements of 2^31 bytes or more.
    FormatError
        No such type, or one without a byte order that needs one.
    """
    match = _SIMPLE.fullmatch(descr)
    if match is None:
        if descr in ("|O", "O", "|O8", "|O4"):
            raise UnsupportedVersionError("Python objects as members of a structure", file=file)
        raise FormatError(f"unknown element type {descr[:40]!r}", file=file)
    text = match[2] or match[3]
    order, code, width = match[1], text[0], int(text[1:])
    if code == "U":
        width *= 4
    if width > _MAX_WIDTH:
        raise LimitError(f"elements of {width} bytes", file=file)
    if order == "|" and width > 1 and code not in "SV":
        raise FormatError(f"element type {descr!r} has no byte order", file=file)
    return order, code, width


def is_long_double(code: str, width: int) -> bool:
    """Whether a type is a platform's own long double, real or complex."""
    return (code, width) in (("f", 12), ("f", 16), ("c", 24), ("c", 32))


def structured_type(descr: Literal, *, file: str) -> np.dtype:
    """Return the type of a structure.

    Parameters
    ----------
    descr : list
        Members as ``(name, type)`` or ``(name, type, shape)``; a name may be ``(title, name)``, and an
        empty name of raw bytes is padding.

    Raises
    ------
    FormatError, LimitError, UnsupportedVersionError
        As `simple_type`; and for anything that is no such list.
    """
    counter = _Structures(file)
    return counter.build(descr, 0)


class _Structures:
    def __init__(self, file: str) -> None:
        self._file = file
        self._members = 0

    def _fail(self, message: str) -> NoReturn:
        raise FormatError(f"malformed structure: {message}", file=self._file)

    def build(self, descr: Literal, level: int) -> np.dtype:
        if isinstance(descr, str):
            _, code, width = simple_type(descr, file=self._file)
            if is_long_double(code, width) or (code, width) == ("f", 1):
                raise UnsupportedVersionError(f"{descr} as a member of a structure", file=self._file)
            return np.dtype(descr)
        if not isinstance(descr, list) or not descr:
            self._fail("it is no list of members")
        if level >= _MAX_LEVELS:
            raise LimitError("a structure that is nested too deeply", file=self._file)
        names, kinds, offsets = [], [], []
        end = 0
        for member in descr:
            name, kind = self._member(member, level)
            if name:
                names.append(name)
                kinds.append(kind)
                offsets.append(end)
            end += kind.itemsize
            if end > _MAX_WIDTH:
                raise LimitError("a structure of 2^31 bytes or more", file=self._file)
        if not names or len(set(names)) != len(names):
            self._fail("it has no names, or a name twice")
        return np.dtype({"names": names, "formats": kinds, "offsets": offsets, "itemsize": end})

    def _member(self, member: Literal, level: int) -> tuple[str, np.dtype]:
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise LimitError(f"a structure of more than {_MAX_MEMBERS} members", file=self._file)
        if not isinstance(member, tuple) or len(member) not in (2, 3):
            self._fail("a member is no name and type")
        name = member[0][1] if isinstance(member[0], tuple) and len(member[0]) == 2 else member[0]
        if not isinstance(name, str):
            self._fail("a name is no string")
        kind = self.build(member[1], level + 1)
        if not name and (kind.kind != "V" or kind.names):
            self._fail("a member has no name")
        return name, self._array(kind, member[2]) if len(member) == 3 else kind

    def _array(self, kind: np.dtype, shape: Literal) -> np.dtype:
        extents = shape if isinstance(shape, tuple) else (shape,)
        if not all(type(extent) is int for extent in extents) or len(extents) > 16:
            self._fail("a member's shape is no tuple of integers")
        if math.prod(extents) * kind.itemsize > _MAX_WIDTH or max(extents, default=0) > _MAX_WIDTH:  # type: ignore[arg-type, operator, type-var] # integers, as checked
            raise LimitError("a member of 2^31 bytes or more", file=self._file)
        return np.dtype((kind, extents))
