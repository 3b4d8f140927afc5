"""The types of elements, as TensorFlow numbers them, and ours.

Source: ``tensorflow/core/framework/types.proto``. Elements narrower than a byte lie one in a byte. Quantised
types are integers whose scale is elsewhere: a tag keeps their name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.nodes import Tag

if TYPE_CHECKING:
    from ckptfmt.tree.dtypes import DType

__all__ = ["NAMES", "STRING", "VARIANT", "base_number", "dtype_of_number", "number_of", "tag_of_number"]

STRING, VARIANT = 7, 21

_REFERENCE = 100
_TAG_PREFIX = "tensorflow."

_KINDS = {
    1: ("float32", "f32"),
    2: ("float64", "f64"),
    3: ("int32", "i32"),
    4: ("uint8", "u8"),
    5: ("int16", "i16"),
    6: ("int8", "i8"),
    8: ("complex64", "c64"),
    9: ("int64", "i64"),
    10: ("bool", "bool"),
    11: ("qint8", "i8"),
    12: ("quint8", "u8"),
    13: ("qint32", "i32"),
    14: ("bfloat16", "bf16"),
    15: ("qint16", "i16"),
    16: ("quint16", "u16"),
    17: ("uint16", "u16"),
    18: ("complex128", "c128"),
    19: ("float16", "f16"),
    22: ("uint32", "u32"),
    23: ("uint64", "u64"),
    24: ("float8_e5m2", "f8_e5m2"),
    25: ("float8_e4m3fn", "f8_e4m3fn"),
    26: ("float8_e4m3fnuz", "f8_e4m3fnuz"),
    27: ("float8_e4m3b11fnuz", "f8_e4m3b11fnuz"),
    28: ("float8_e5m2fnuz", "f8_e5m2fnuz"),
    29: ("int4", "i4"),
    30: ("uint4", "u4"),
    31: ("int2", "i2"),
    32: ("uint2", "u2"),
    33: ("float4_e2m1fn", "f4_e2m1fn"),
}

NAMES: dict[int, str] = {number: name for number, (name, _) in _KINDS.items()} | {
    STRING: "string",
    VARIANT: "variant",
}
"""What TensorFlow calls each type that a bundle can hold."""

_QUANTISED = {number: name for number, name in NAMES.items() if name[:4] in {"qint", "quin"}}
_BY_TAG = {_TAG_PREFIX + name: number for number, name in _QUANTISED.items()}
_BY_OURS = {ours: number for number, (_, ours) in _KINDS.items() if number not in _QUANTISED}


def base_number(number: int) -> int:
    """Return the number of a type whose reference, which graphs hold, `number` may be."""
    return number - _REFERENCE if number > _REFERENCE else number


def dtype_of_number(number: int) -> DType | None:
    """Return our type of the elements of a numbered one; None for strings, variants and unknown numbers."""
    kind = _KINDS.get(base_number(number))
    return None if kind is None else dtype(kind[1])


def tag_of_number(number: int) -> Tag | None:
    """Return the tag of a tensor whose type ours does not name: a quantised one."""
    name = _QUANTISED.get(base_number(number))
    return None if name is None else Tag(_TAG_PREFIX + name)


def number_of(kind: DType, tag: Tag | None = None) -> int | None:
    """Return the number of a type, a tensor's tag honoured where it fits; None if there is none."""
    tagged = _BY_TAG.get(tag.name) if tag is not None else None
    if tagged is not None and _KINDS[tagged][1] == kind.name:
        return tagged
    return _BY_OURS.get(kind.name)
