"""Attributes of groups and datasets as plain values: text, numbers, arrays of them.

Every size is checked before anything is read. An attribute of a kind that we do not read (references, as of
dimension scales; structures) is told, not guessed at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import h5py
import numpy as np
from h5py import h5a, h5s, h5t

from ckptfmt.containers.hdf5.elements import element_type
from ckptfmt.containers.hdf5.library import NATIVE_ORDER, translated
from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import LimitError, UnsupportedVersionError
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Strings

if TYPE_CHECKING:
    from ckptfmt.containers.hdf5.budget import Budget
    from ckptfmt.storage.reader import ByteReader

__all__ = ["Attribute", "decoded", "read_attributes"]

Attribute: TypeAlias = "str | bytes | np.ndarray | Strings | None"
"""A text; bytes where that is no UTF-8; numbers in their stored type, 0-d or more; an array of strings; None
where the attribute is empty."""

_MAX_COUNT = 1 << 16
_MAX_STRINGS_BYTES = 128 << 20


def read_attributes(
    found: h5py.h5o.ObjectID, reader: ByteReader, path: str, budget: Budget, findings: list[Finding]
) -> dict[str, Attribute]:
    """Return the attributes of an object by name, in the order of their names.

    Raises
    ------
    LimitError, FormatError
        There are more, or larger ones, than any file needs; or the library cannot read one.
    """
    names: list[bytes] = []
    with translated(reader.name, path):
        if h5a.get_num_attrs(found) > _MAX_COUNT:
            raise LimitError(f"more than {_MAX_COUNT} attributes", file=reader.name, tensor=path)
        h5a.iterate(found, names.append, order=NATIVE_ORDER)
    made: dict[str, Attribute] = {}
    for raw in sorted(names):
        shown = raw.decode("utf-8", "backslashreplace")
        with translated(reader.name, f"{path}@{shown}"):
            try:
                made[shown] = _value(h5a.open(found, raw), reader, f"{path}@{shown}", budget)
            except UnsupportedVersionError as error:
                message = f"attribute {shown!r} is left out: {error.message}"
                findings.append(Finding("attribute-unread", path, Severity.LOSS, message, file=reader.name))
    return made


def _value(found: h5a.AttrID, reader: ByteReader, name: str, budget: Budget) -> Attribute:
    space = found.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        return None
    shape: tuple[int, ...] = space.get_simple_extent_dims()
    count = checked_count(shape, file=reader.name, tensor=name)
    kind = element_type(found.get_type(), file=reader.name, name=name)
    nbytes = count * kind.width
    budget.attribute(nbytes, name)
    if kind.text:
        return _texts(found, shape, count, name, budget)
    out = np.empty(shape, kind.stored)
    if nbytes:
        found.read(out, mtype=found.get_type())
    if kind.words.startswith("|S"):
        return _fixed(found.get_type(), out)
    if kind.dtype is None or kind.labels:
        raise UnsupportedVersionError(
            f"values of type {kind.words} are not read", file=reader.name, tensor=name
        )
    return out


def _texts(found: h5a.AttrID, shape: tuple[int, ...], count: int, name: str, budget: Budget) -> Attribute:
    if count > 1 and count * budget.longest_string() > _MAX_STRINGS_BYTES:
        raise LimitError(f"{count} strings of up to {budget.longest_string()} bytes", tensor=name)
    out = np.empty(shape, h5py.string_dtype())
    if count:
        found.read(out)
    values = [_bytes(value) for value in out.reshape(-1).tolist()]
    budget.text(sum(map(len, values)), name)
    return decoded(shape, values)


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
