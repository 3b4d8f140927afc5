"""What a pickle describes, inertly: names, calls and outside references that stand for themselves.

Values that Python has literals for are themselves. Everything else is one of the kinds below, and stays
that: a `Call` is never made, a `Global` never looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["Call", "FileBytes", "Global", "LegacyText", "PersistentId", "PickledDict", "shown"]


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function, after the alias table of the specification.

    Attributes
    ----------
    module, name : str
        `name` may be dotted.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Call:
    """An object: the call that would make it, and what would be done to it afterwards.

    Not frozen, for a pickle tells in this order, and may refer to the object before it is complete.

    Attributes
    ----------
    function : object
        Usually a `Global`.
    args : tuple
    state : object
        What ``__setstate__`` would be given, or None.
    items : list or None
        What would be appended or added to it.
    pairs : list of tuple or None
        Keys and values that would be set.
    """

    function: object
    args: tuple[object, ...]
    state: object = None
    items: list[object] | None = None
    pairs: list[tuple[object, object]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PersistentId:
    """A reference to something that lies outside of the pickle.

    Attributes
    ----------
    value : object
        What the file has for it: a tuple, usually.
    """

    value: object


@dataclass(frozen=True, slots=True, eq=False)
class FileBytes:
    """Long bytes, or a long string of Python 2, that were left where they are.

    Attributes
    ----------
    reader : ByteReader
    offset, length : int
        The range of it, which has been checked to be there.
    is_text : bool
        Whether it is a `LegacyText`.
    """

    reader: ByteReader
    offset: int
    length: int
    is_text: bool = False

    def read(self) -> bytes:
        """Return the bytes themselves."""
        data = self.reader.read(self.offset, self.length)
        return LegacyText(data) if self.is_text else data


class LegacyText(bytes):
    """A string of Python 2: bytes that may have meant text."""

    __slots__ = ()

    def text(self) -> str:
        """Return it as UTF-8, or as latin-1 where it is not that."""
        try:
            return self.decode()
        except UnicodeDecodeError:
            return self.decode("latin-1")


class PickledDict(dict[object, object]):
    """A dict whose keys may be nodes; equal nodes made apart are different keys."""

    __slots__ = ()


_SHOWN = 80
_SHOWN_PARTS = 6
_LONG_INTEGER = 1 << 64


def shown(value: object) -> str:
    """Return a value in a few words, for errors: of bounded length and depth, whatever a file holds."""
    if isinstance(value, tuple) and len(value) <= _SHOWN_PARTS:
        parts = [f"a {type(part).__name__}" if isinstance(part, tuple) else shown(part) for part in value]
        return f"({', '.join(parts)})"
    if isinstance(value, Global):
        return f"{value.module[:_SHOWN]}.{value.name[:_SHOWN]}"
    if isinstance(value, int) and not -_LONG_INTEGER < value < _LONG_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return repr(value[:_SHOWN])
    if value is None or isinstance(value, int | float | complex):
        return str(value)
    return f"a {type(value).__name__}"
