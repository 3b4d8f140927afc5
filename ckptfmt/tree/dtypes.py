"""The element types of a checkpoint: one table of names, widths and numpy counterparts.

Names and canonical bytes are those of section 4 of ``spec/ckptfmt-1.0.md``: little-endian, C order;
4- and 2-bit elements packed, the first element in the lowest bits. Nothing here reads or writes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from ckptfmt.errors import TreeError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DTYPE_NAMES", "DType", "dtype", "dtype_of"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes
    ----------
    name : str
        The name in the specification, such as ``"bf16"`` or ``"s12"``.
    bits : int
        Bits per element in canonical bytes: 2, 4 or a multiple of 8.
    numpy : numpy.dtype
        The little-endian numpy type that holds one element; for 4- and 2-bit types a one-byte type of
        `ml_dtypes`, so that an array in memory is wider than its canonical bytes.
    """

    name: str
    bits: int
    numpy: np.dtype[np.generic]

    @property
    def packed(self) -> bool:
        """Whether several elements share a byte of the canonical bytes."""
        return self.bits < 8

    @property
    def is_float(self) -> bool:
        """Whether elements are real floating-point numbers (of any width)."""
        return self.name[0] == "f" or self.name == "bf16"

    def nbytes(self, shape: Sequence[int]) -> int:
        """Return the length in bytes of the canonical bytes of a tensor of `shape`."""
        return (math.prod(shape) * self.bits + 7) // 8

    def __str__(self) -> str:
        return self.name


def _table() -> dict[str, DType]:
    plain = {
        "bool": "?",
        "u8": "u1",
        "u16": "<u2",
        "u32": "<u4",
        "u64": "<u8",
        "i8": "i1",
        "i16": "<i2",
        "i32": "<i4",
        "i64": "<i8",
        "f16": "<f2",
        "f32": "<f4",
        "f64": "<f8",
        "c64": "<c8",
        "c128": "<c16",
    }
    extended = {
        "bf16": (16, ml_dtypes.bfloat16),
        "f8_e4m3fn": (8, ml_dtypes.float8_e4m3fn),
        "f8_e5m2": (8, ml_dtypes.float8_e5m2),
        "f8_e4m3fnuz": (8, ml_dtypes.float8_e4m3fnuz),
        "f8_e5m2fnuz": (8, ml_dtypes.float8_e5m2fnuz),
        "f8_e4m3b11fnuz": (8, ml_dtypes.float8_e4m3b11fnuz),
        "f8_e8m0fnu": (8, ml_dtypes.float8_e8m0fnu),
        "f4_e2m1fn": (4, ml_dtypes.float4_e2m1fn),
        "i4": (4, ml_dtypes.int4),
        "u4": (4, ml_dtypes.uint4),
        "i2": (2, ml_dtypes.int2),
        "u2": (2, ml_dtypes.uint2),
    }
    table = {name: DType(name, np.dtype(code).itemsize * 8, np.dtype(code)) for name, code in plain.items()}
    table |= {name: DType(name, bits, np.dtype(kind)) for name, (bits, kind) in extended.items()}
    return table


_BY_NAME = _table()
_BY_NUMPY = {entry.numpy: entry for entry in _BY_NAME.values()}
_BYTES_NAME = re.compile(r"s([1-9][0-9]{0,9})")
_MAX_BYTES_WIDTH = 2**31 - 1

DTYPE_NAMES: tuple[str, ...] = tuple(_BY_NAME)
"""All fixed names; besides them there is ``s<N>``, N bytes padded with NUL, N from 1 to 2^31 - 1."""


@lru_cache(maxsize=256)
def dtype(name: str) -> DType:
    """Return the type called `name`.

    Raises
    ------
    TreeError
        There is none of that name.
    """
    known = _BY_NAME.get(name)
    if known is not None:
        return known
    match = _BYTES_NAME.fullmatch(name)
    if match is None or int(match[1]) > _MAX_BYTES_WIDTH:
        message = f"unknown element type {name!r}"
        raise TreeError(message)
    width = int(match[1])
    return DType(name, width * 8, np.dtype(f"S{width}"))


def dtype_of(kind: np.dtype[np.generic]) -> DType:
    """Return the type of a numpy array's elements, whatever their byte order.

    Raises
    ------
    TreeError
        No type of the specification holds such elements (objects, unicode, structures, long doubles,
        times): those are other kinds of node.
    """
    found = _BY_NUMPY.get(kind)
    if found is None and kind.kind == "S" and kind.itemsize:
        return dtype(f"s{kind.itemsize}")
    if found is None and kind.byteorder not in "=|<":
        found = _BY_NUMPY.get(kind.newbyteorder("<"))
    if found is None:
        message = f"no element type for numpy dtype {kind}"
        raise TreeError(message)
    return found
