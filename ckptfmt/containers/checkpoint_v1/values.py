"""The elements of a slice: a list of the type's own, packed where numbers are.

Types narrower than their list are checked to fit it. Source: ``tensorflow/core/framework/tensor.proto`` and
``tensorflow/core/util/saved_tensor_slice_util.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.bundle.kinds import STRING
from ckptfmt.containers.bundle.messages import number, part
from ckptfmt.containers.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields, packed_varints, varint
from ckptfmt.errors import FormatError

if TYPE_CHECKING:
    from ckptfmt.tree.dtypes import DType

__all__ = ["LISTS", "decode_numbers", "decode_text", "plain_bytes"]

_FIXED = {1: (5, FIXED32), 2: (6, FIXED64), 8: (9, FIXED32), 18: (12, FIXED64)}
_VARINTS = {3: 7, 4: 7, 5: 7, 6: 7, 11: 7, 12: 7, 13: 7, 15: 7, 16: 7, 17: 7}
_VARINTS |= {9: 10, 10: 11, 14: 13, 19: 13, 22: 16, 23: 17}
_TEXT = 8
_BITS = {14, 19}  # 16-bit floats stand as the integers that have their bits

LISTS = frozenset({*_FIXED, *_VARINTS, STRING})
"""The numbers of the types that have a list."""


def _chunks(tensor: memoryview, wanted: int, wire: int) -> list[memoryview]:
    """Return what stands in a list, each packed part, and each number that is by itself, as bytes."""
    found = []
    for field, kind, value in fields(tensor):
        if field == wanted and kind == BYTES:
            found.append(part(kind, value))
        elif field == wanted:
            alone = number(kind, value, wire=wire)
            width = 4 if wire == FIXED32 else 8
            found.append(memoryview(varint(alone) if wire == VARINT else alone.to_bytes(width, "little")))
    return found


def plain_bytes(tensor: memoryview, dtype_number: int) -> memoryview | None:
    """Return the canonical bytes of a slice where they stand in the message as they are, else None."""
    if dtype_number not in _FIXED:
        return None
    found = _chunks(tensor, *_FIXED[dtype_number])
    return found[0] if len(found) == 1 else None


def decode_numbers(tensor: memoryview, dtype_number: int, dtype: DType) -> np.ndarray:
    """Return the elements of a slice, 1-D, of ``dtype.numpy``.

    Raises
    ------
    FormatError
        The message is malformed, or an element does not fit its type.
    """
    if dtype_number in _FIXED:
        data = b"".join(_chunks(tensor, *_FIXED[dtype_number]))
        if len(data) % dtype.numpy.itemsize:
            raise FormatError(f"{len(data)} bytes are no whole number of elements of {dtype}")
        return np.frombuffer(data, dtype.numpy)
    values = packed_varints(memoryview(b"".join(_chunks(tensor, _VARINTS[dtype_number], VARINT))))
    if dtype_number in _BITS:
        return _narrowed(values, np.dtype("<u2")).view(dtype.numpy)
    return _narrowed(values, dtype.numpy)


def _narrowed(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Cast 64-bit numbers to a type that must hold them; negative ones have their sign extended."""
    cast: np.ndarray = values.view(np.int64).astype(kind)
    if not np.array_equal(cast.astype(np.int64), values.view(np.int64)):
        raise FormatError(f"a number that is none of {kind}")
    return cast


def decode_text(tensor: memoryview) -> tuple[bytes, ...]:
    """Return the strings of a slice; errors as for `decode_numbers`."""
    return tuple(bytes(part(kind, value)) for field, kind, value in fields(tensor) if field == _TEXT)
