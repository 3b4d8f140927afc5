"""How far apart two arrays of one type and shape are, element by element, in numpy.

Equality is of bits: NaN payloads and the sign of zero count, and are counted apart. Distances are in
units in the last place (ULP): the number of steps between neighbours of the type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ckptfmt.tree.dtypes import dtype as dtype_named

if TYPE_CHECKING:
    from ckptfmt.tree.dtypes import DType

__all__ = ["Difference", "difference", "merged"]

_Number = TypeVar("_Number", int, float)

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_PARTS = {"c64": dtype_named("f32"), "c128": dtype_named("f64")}


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two arrays; of complex numbers, parts count as elements in all but `count`.

    Attributes
    ----------
    elements : int
        Elements compared.
    count : int
        Elements whose bits differ.
    first : int or None
        Index of the first of them in C order.
    max_ulp : int or None
        Greatest distance of two finite floats; None if the type is not one of floats.
    max_abs : float or None
        Greatest difference of two finite numbers; of 64-bit integers as near as a float is, and infinite for
        floats that are farther apart than any float is from zero.
    max_rel : float or None
        Greatest difference relative to the greater magnitude.
    nan : int
        Elements of which one is NaN and the other not.
    nan_payload : int
        Elements that are NaN on both sides, with other bits.
    zero_sign : int
        Elements that are 0.0 on one side and -0.0 on the other.
    """

    elements: int
    count: int
    first: int | None = None
    max_ulp: int | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    nan: int = 0
    nan_payload: int = 0
    zero_sign: int = 0


def merged(one: Difference, other: Difference) -> Difference:
    """Return the difference of two arrays from those of their first and second piece."""
    first = one.first
    if first is None and other.first is not None:
        first = one.elements + other.first
    return Difference(
        one.elements + other.elements,
        one.count + other.count,
        first,
        _greater(one.max_ulp, other.max_ulp),
        _greater(one.max_abs, other.max_abs),
        _greater(one.max_rel, other.max_rel),
        one.nan + other.nan,
        one.nan_payload + other.nan_payload,
        one.zero_sign + other.zero_sign,
    )


def _greater(one: _Number | None, other: _Number | None) -> _Number | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def difference(a: np.ndarray, b: np.ndarray, dtype: DType) -> Difference:
    """Return what differs between two 1-D arrays of `dtype.numpy` and one length."""
    unequal = _bits(a, dtype) != _bits(b, dtype)
    if unequal.ndim > 1:  # byte strings
        unequal = unequal.any(axis=1)
    count = int(np.count_nonzero(unequal))
    result = Difference(a.size, count, int(np.argmax(unequal)) if count else None)
    if dtype.name[0] == "s" or dtype.name == "bool":
        return result
    if dtype.name in _PARTS:
        part = _PARTS[dtype.name]
        return _float_statistics(result, a[unequal].view(part.numpy), b[unequal].view(part.numpy), part)
    if dtype.is_float:
        return _float_statistics(result, a[unequal], b[unequal], dtype)
    return _integer_statistics(result, a[unequal], b[unequal])


def _bits(array: np.ndarray, dtype: DType) -> np.ndarray:
    width = dtype.numpy.itemsize
    array = np.ascontiguousarray(array)
    if width in _UNSIGNED:
        return array.view(_UNSIGNED[width])
    return array.view(np.uint8).reshape(-1, width)


def _ranks(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return floats as unsigned integers in the order of their values, -0.0 and 0.0 alike."""
    codes: np.ndarray = _bits(array, dtype).astype(np.uint64)
    if dtype.name == "f8_e8m0fnu":  # has no sign
        return codes
    half = np.uint64(1 << (dtype.bits - 1))
    magnitude = codes & (half - np.uint64(1))
    ranks: np.ndarray = np.where(codes & half, half - magnitude, half + magnitude)
    return ranks


def _float_statistics(result: Difference, a: np.ndarray, b: np.ndarray, dtype: DType) -> Difference:
    wide = np.dtype("<f8")
    with np.errstate(all="ignore"):
        x, y = a.astype(wide), b.astype(wide)
        nan_x, nan_y = np.isnan(x), np.isnan(y)
        both = np.isfinite(x) & np.isfinite(y)
        gap = np.abs(x - y)[both]
        scale = np.maximum(np.abs(x), np.abs(y))[both]
        relative = np.divide(gap, scale, out=np.zeros_like(gap), where=scale > 0)
        beyond = np.isinf(gap)  # farther apart than a float can tell
        relative[beyond] = np.abs(x / 2 - y / 2)[both][beyond] / (scale / 2)[beyond]
    ranks_a, ranks_b = _ranks(a, dtype), _ranks(b, dtype)
    steps = np.where(ranks_a > ranks_b, ranks_a - ranks_b, ranks_b - ranks_a)[both]
    return replace(
        result,
        max_ulp=int(steps.max()) if steps.size else 0,
        max_abs=float(gap.max()) if gap.size else 0.0,
        max_rel=float(relative.max()) if relative.size else 0.0,
        nan=int(np.count_nonzero(nan_x != nan_y)),
        nan_payload=int(np.count_nonzero((_bits(a, dtype) != _bits(b, dtype)) & nan_x & nan_y)),
        zero_sign=int(np.count_nonzero((_bits(a, dtype) != _bits(b, dtype)) & (x == 0) & (y == 0))),
    )


def _integer_statistics(result: Difference, a: np.ndarray, b: np.ndarray) -> Difference:
    if not a.size:
        return replace(result, max_abs=0.0)
    if a.dtype.itemsize == 8:  # no wider integer to subtract in
        low, high = np.minimum(a, b), np.maximum(a, b)
        gap = (high.astype(np.uint64) - low.astype(np.uint64)).max()
    else:
        gap = np.abs(a.astype(np.int64) - b.astype(np.int64)).max()
    return replace(result, max_abs=float(gap))
