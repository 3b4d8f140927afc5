"""Attributes of groups and datasets as plain values: text, numbers, arrays of them.

Every size is checked before anything is read. An attribute of a kind that we do not read (references, as of
dimension scales; structures) is told, not guessed at.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import h5py
import numpy as np
from h5py import h5a, h5o, h5s, h5t

from ckptfmt.containers.hdf5.elements import element_type
from ckptfmt.containers.hdf5.headers import attribute_values
from ckptfmt.containers.hdf5.library import NATIVE_ORDER, translated
from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import LimitError, UnsupportedVersionError
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Strings

if TYPE_CHECKING:
    from ckptfmt.containers.hdf5.budget import Budget
    from ckptfmt.containers.hdf5.heaps import Heaps
    from ckptfmt.storage.reader import ByteReader

__all__ = ["Attribute", "AttributeReader", "decoded"]

Attribute: TypeAlias = "str | bytes | np.ndarray | Strings | None"
"""A text; bytes where that is no UTF-8; numbers in their stored type, 0-d or more; an array of strings; None
where the attribute is empty."""

_MAX_COUNT = 1 << 16
_POINTER_BYTES = 16
_MAX_STRINGS_BYTES = 128 << 20


class AttributeReader:
    """Reads the attributes of the objects of one file.

    Parameters
    ----------
    reader : ByteReader
    base : int
        What addresses in the file are counted from.
    heaps : Heaps
    budget : Budget
    findings : list of Finding
        Grows.
    """

    def __init__(
        self, reader: ByteReader, base: int, heaps: Heaps, budget: Budget, findings: list[Finding]
    ) -> None:
        self._reader = reader
        self._base = base
        self._heaps = heaps
        self._budget = budget
        self._findings = findings

    def read(self, found: h5o.ObjectID, path: str) -> dict[str, Attribute]:
        """Return the attributes of an object by name, in the order of their names.

        Raises
        ------
        LimitError, FormatError
            There are more, or larger ones, than any file needs; or one cannot be read.
        """
        file = self._reader.name
        names: list[bytes] = []
        with translated(file, path):
            if h5a.get_num_attrs(found) > _MAX_COUNT:
                raise LimitError(f"more than {_MAX_COUNT} attributes", file=file, tensor=path)
            h5a.iterate(found, names.append, order=NATIVE_ORDER)
        made: dict[str, Attribute] = {}
        for raw in sorted(names):
            shown = raw.decode("utf-8", "backslashreplace")
            with translated(file, f"{path}@{shown}"):
                try:
                    made[shown] = self._value(h5a.open(found, raw), found, raw, f"{path}@{shown}")
                except UnsupportedVersionError as error:
                    message = f"attribute {shown!r} is left out: {error.message}"
                    self._findings.append(
                        Finding("attribute-unread", path, Severity.LOSS, message, file=file)
                    )
        return made

    def _value(self, found: h5a.AttrID, owner: h5o.ObjectID, raw: bytes, name: str) -> Attribute:
        file = self._reader.name
        space = found.get_space()
        if space.get_simple_extent_type() == h5s.NULL:
            return None
        shape: tuple[int, ...] = space.get_simple_extent_dims()
        count = checked_count(shape, file=file, tensor=name)
        kind = element_type(found.get_type(), file=file, name=name)
        nbytes = count * kind.width
        self._budget.attribute(nbytes, name)
        if kind.text:
            return decoded(shape, self._texts(found, owner, raw, shape, name) if count else [])
        out = np.empty(shape, kind.stored)
        if nbytes:
            found.read(out, mtype=found.get_type())
        if kind.words.startswith("|S"):
            return _fixed(found.get_type(), out)
        if kind.dtype is None or kind.labels:
            raise UnsupportedVersionError(f"values of type {kind.words} are not read", file=file, tensor=name)
        return out

    def _texts(
        self, found: h5a.AttrID, owner: h5o.ObjectID, raw: bytes, shape: tuple[int, ...], name: str
    ) -> list[bytes]:
        """Return strings of any length by following their pointers, or, where those lie densely, as given."""
        count = math.prod(shape)
        places = attribute_values(self._reader, self._base, h5o.get_info(owner).addr)
        start, length = places.get(raw, (0, 0))
        if length >= count * _POINTER_BYTES:
            pointers = self._reader.read(start, count * _POINTER_BYTES)
            return self._heaps.strings(pointers, self._budget, name)
        if count * self._budget.longest_string() > _MAX_STRINGS_BYTES:
            raise LimitError(f"{count} strings of up to {self._budget.longest_string()} bytes", tensor=name)
        out = np.empty(shape, h5py.string_dtype())
        found.read(out)
        values = [_bytes(value) for value in out.reshape(-1).tolist()]
        self._budget.text(sum(map(len, values)), name)
        return values


def _bytes(value: str | bytes | int | None) -> bytes:
    """Return a string as the library gives it; one that was never written is empty (or the number 0)."""
    return value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else b""


def _fixed(found: h5t.TypeStringID, values: np.ndarray) -> Attribute:
    """Return strings of a fixed width, their padding taken off as their type has it."""
    texts = [bytes(value) for value in values.reshape(-1).tolist()]
    if found.get_strpad() == h5t.STR_SPACEPAD:
        texts = [text.rstrip(b" ") for text in texts]
    elif found.get_strpad() == h5t.STR_NULLTERM:
        texts = [text.partition(b"\0")[0] for text in texts]
    return decoded(values.shape, texts)


def decoded(shape: tuple[int, ...], values: list[bytes]) -> str | bytes | Strings:
    """Return strings as text where all of them are UTF-8, else as bytes; one alone where the shape is ()."""
    texts: tuple[str, ...] | tuple[bytes, ...]
    try:
        texts = tuple(value.decode() for value in values)
    except UnicodeDecodeError:
        texts = tuple(values)
    return texts[0] if shape == () else Strings(shape, texts)
