"""The element types of HDF5 files in our words.

A type is either one of ours, perhaps in the other byte order; or text of any length; or bytes that we keep as
they are (opaque, compound, bit fields, floats of no machine). References and sequences of any length are
addresses within the file and are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5t

from ckptfmt.errors import TreeError, UnsupportedVersionError
from ckptfmt.tree.dtypes import DType, dtype, dtype_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.containers.hdf5.attributes import Attribute

__all__ = ["TYPE_ATTRIBUTE", "ElementType", "element_type", "named_type"]

TYPE_ATTRIBUTE = "dtype"
"""The attribute of a dataset that names the type of its bytes, as Keras writes it for bfloat16
(keras/src/saving/saving_lib.py). Ours name every type of `ml_dtypes` that way."""
SHAPE_ATTRIBUTE = "shape"
"""The attribute that holds the shape of packed 4- and 2-bit elements; their dataset is a row of bytes."""

_ML_NAMES = {
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8_e4m3fn",
    "float8_e5m2": "f8_e5m2",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
    "float8_e5m2fnuz": "f8_e5m2fnuz",
    "float8_e4m3b11fnuz": "f8_e4m3b11fnuz",
    "float8_e8m0fnu": "f8_e8m0fnu",
    "float4_e2m1fn": "f4_e2m1fn",
    "int4": "i4",
    "uint4": "u4",
    "int2": "i2",
    "uint2": "u2",
}
ML_NAMES = {ours: theirs for theirs, ours in _ML_NAMES.items()}
"""By the name of a type of ours that HDF5 has no name for: what `TYPE_ATTRIBUTE` says."""

# (size, sign, exponent's place and width, mantissa's place and width, bias): ours
_FLOATS: dict[tuple[int, ...], str] = {
    (2, 15, 10, 5, 0, 10, 15): "f2",
    (4, 31, 23, 8, 0, 23, 127): "f4",
    (8, 63, 52, 11, 0, 52, 1023): "f8",
}
_BRAIN = (2, 15, 7, 8, 0, 7, 127)
_CLASSES = {
    h5t.TIME: "time",
    h5t.BITFIELD: "bit field",
    h5t.COMPOUND: "compound",
    h5t.ENUM: "enumeration",
    h5t.ARRAY: "array",
    h5t.INTEGER: "integer",
    h5t.FLOAT: "float",
}
_REFUSED = {h5t.REFERENCE: "references to other objects", h5t.VLEN: "sequences of any length"}
_MAX_WIDTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ElementType:
    """The type of the elements of a dataset or attribute.

    Attributes
    ----------
    words : str
        In HDF5's words, as far as numpy has them: ``"<f4"``, ``"|b1"``, ``"|S3"``, ``"|V2"``, ``"text"``.
    stored : numpy.dtype
        How an element lies in the file; raw bytes where numpy has no such type.
    dtype : DType or None
        What it is of ours; None for text and for raw bytes.
    labels : bool
        Whether it is an enumeration other than of false and true, whose names we do not keep.
    """

    words: str
    stored: np.dtype[np.generic]
    dtype: DType | None
    labels: bool = False

    @property
    def width(self) -> int:
        """Bytes of an element in the file."""
        return self.stored.itemsize

    @property
    def text(self) -> bool:
        """Whether elements are strings of any length."""
        return self.words == "text"

    @property
    def swapped(self) -> bool:
        """Whether elements are big-endian."""
        return self.stored.byteorder == ">"


def element_type(found: h5t.TypeID, *, file: str, name: str) -> ElementType:
    """Return the type of an HDF5 datatype.

    Raises
    ------
    UnsupportedVersionError
        References, sequences of any length, or structures that hold some; elements of no or immense width.
    """
    refused = next((text for code, text in _REFUSED.items() if _holds(found, code)), None)
    if refused is None and found.get_class() != h5t.STRING and _holds_text(found):
        refused = "structures with strings of any length"
    if refused is not None:
        raise UnsupportedVersionError(f"{refused} are not read", file=file, tensor=name)
    if not 0 < found.get_size() <= _MAX_WIDTH:
        message = f"elements of {found.get_size()} bytes"
        raise UnsupportedVersionError(message, file=file, tensor=name)
    return _known(found) or _raw(found)


def _holds(found: h5t.TypeID, code: int) -> bool:
    return bool(found.get_class() == code or found.detect_class(code))


def _holds_text(found: h5t.TypeID) -> bool:
    """Whether a structure or array holds strings of any length."""
    code = found.get_class()
    if code == h5t.STRING:
        return bool(found.is_variable_str())
    if code == h5t.COMPOUND:
        return any(_holds_text(found.get_member_type(index)) for index in range(found.get_nmembers()))
    return code == h5t.ARRAY and _holds_text(found.get_super())


def _known(found: h5t.TypeID) -> ElementType | None:
    code = found.get_class()
    if code == h5t.STRING:
        if found.is_variable_str():
            return ElementType("text", np.dtype("V16"), None)
        return _plain(np.dtype(f"S{found.get_size()}"))
    if code == h5t.FLOAT and _float_fields(found) == _BRAIN and found.get_order() == h5t.ORDER_LE:
        return ElementType("bfloat16", np.dtype("V2"), dtype("bf16"))
    if code == h5t.ENUM:
        return _enumeration(found)
    text = {h5t.INTEGER: _integer, h5t.FLOAT: _float, h5t.COMPOUND: _complex}.get(code, _nothing)(found)
    return None if text is None else _plain(np.dtype(text))


def _plain(stored: np.dtype[np.generic]) -> ElementType:
    return ElementType(stored.str, stored, dtype_of(stored))


def _nothing(_found: h5t.TypeID) -> None:
    return None


def _order(found: h5t.TypeID) -> str | None:
    return {h5t.ORDER_LE: "<", h5t.ORDER_BE: ">", h5t.ORDER_NONE: "<"}.get(found.get_order())


def _integer(found: h5t.TypeID) -> str | None:
    size, order = found.get_size(), _order(found)
    whole = size in (1, 2, 4, 8) and found.get_precision() == 8 * size and found.get_offset() == 0
    if not whole or order is None:
        return None
    return f"{order}{'i' if found.get_sign() == h5t.SGN_2 else 'u'}{size}"


def _float_fields(found: h5t.TypeID) -> tuple[int, ...]:
    return (found.get_size(), *found.get_fields(), found.get_ebias())


def _float(found: h5t.TypeID) -> str | None:
    code, order = _FLOATS.get(_float_fields(found)), _order(found)
    return None if code is None or order is None else order + code


def _complex(found: h5t.TypeID) -> str | None:
    """A compound of `r` and `i`, as h5py writes complex numbers."""
    if found.get_nmembers() != 2 or [found.get_member_name(at) for at in (0, 1)] != [b"r", b"i"]:
        return None
    parts = [found.get_member_type(at) for at in (0, 1)]
    codes = [_float(part) if part.get_class() == h5t.FLOAT else None for part in parts]
    half = parts[0].get_size()
    packed = (found.get_member_offset(0), found.get_member_offset(1)) == (0, half)
    if codes[0] is None or codes[0] != codes[1] or half < 4 or not packed or found.get_size() != 2 * half:
        return None
    return f"{codes[0][0]}c{2 * half}"


def _enumeration(found: h5t.TypeID) -> ElementType | None:
    base = _integer(found.get_super())
    if base is None:
        return None
    members = {
        found.get_member_name(at): found.get_member_value(at) for at in range(min(found.get_nmembers(), 3))
    }
    if members == {b"FALSE": 0, b"TRUE": 1} and found.get_size() == 1:
        return _plain(np.dtype("?"))
    stored = np.dtype(base)
    return ElementType(stored.str, stored, dtype_of(stored), labels=True)


def _raw(found: h5t.TypeID) -> ElementType:
    stored = np.dtype(f"V{found.get_size()}")
    named = _CLASSES.get(found.get_class())
    return ElementType(stored.str if named is None else f"{stored.str} ({named})", stored, None)


def named_type(
    kind: ElementType, shape: tuple[int, ...], attributes: Mapping[str, Attribute]
) -> tuple[DType, tuple[int, ...]] | None:
    """Return the type and shape that a dataset's attributes name for its bytes; None if they name none.

    An attribute that does not fit type and shape of the dataset is left as what it is: an attribute.
    """
    said = attributes.get(TYPE_ATTRIBUTE)
    ours = _ML_NAMES.get(said) if isinstance(said, str) else None
    if ours is None:
        return None
    wanted = dtype(ours)
    if not wanted.packed:
        fits = kind.words in (f"|V{wanted.bits // 8}", "|u1") and kind.width * 8 == wanted.bits
        return (wanted, shape) if fits else None
    extents = _extents(attributes.get(SHAPE_ATTRIBUTE))
    if kind.words != "|u1" or extents is None or shape != (wanted.nbytes(extents),):
        return None
    return wanted, extents


def _extents(value: Attribute) -> tuple[int, ...] | None:
    if (
        not isinstance(value, np.ndarray)
        or value.ndim != 1
        or value.dtype.kind not in "iu"
        or value.size > 64
    ):
        return None
    extents = tuple(int(extent) for extent in value)
    return extents if all(0 <= extent <= 2**53 for extent in extents) else None


def type_name(ours: DType) -> str:
    """Return what `TYPE_ATTRIBUTE` says of a type that HDF5 has no name for.

    Raises
    ------
    TreeError
        HDF5 has one.
    """
    if ours.name not in ML_NAMES:
        raise TreeError(f"{ours} needs no name")
    return ML_NAMES[ours.name]
