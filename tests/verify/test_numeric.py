"""Distances of numbers against slow references: every step between two floats is counted one by one."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ckptfmt.testing.strategies import arrays
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.verify.numeric import Difference, difference, merged

FIXED = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
SMALL_FLOATS = [name for name in DTYPE_NAMES if dtype(name).is_float and dtype(name).bits <= 8]
FLOATS = [name for name in DTYPE_NAMES if dtype(name).is_float]


def of(name: str, one: object, other: object) -> Difference:
    kind = dtype(name)
    a, b = (np.array([value], kind.numpy) for value in (one, other))
    return difference(a, b, kind)


def finite_values(name: str) -> list[float]:
    """Return every finite value of a type of at most 8 bits, once, in order."""
    kind = dtype(name)
    values = np.arange(1 << kind.bits, dtype=np.uint8).view(kind.numpy).astype("f8")
    return sorted({float(value) + 0.0 for value in values[np.isfinite(values)]})


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_every_pair_of_small_floats_is_as_far_apart_as_there_are_steps_between(name: str) -> None:
    kind, order = dtype(name), finite_values(name)
    rank = {value: index for index, value in enumerate(order)}
    values = np.array(order).astype(kind.numpy)
    for start in values[:: max(1, len(values) // 24)]:
        for end in values:
            found = difference(np.array([start]), np.array([end]), kind)
            steps = abs(rank[float(start) + 0.0] - rank[float(end) + 0.0])
            assert (found.max_ulp or 0) == steps
            assert found.count == int(steps > 0)


@FIXED
@given(
    name=st.sampled_from(["f16", "f32", "f64"]),
    start=st.floats(allow_nan=False, allow_infinity=False),
    steps=st.integers(1, 60),
    up=st.booleans(),
)
def test_ulps_are_the_steps_of_nextafter(name: str, start: float, steps: int, up: bool) -> None:  # noqa: FBT001
    kind = dtype(name)
    with np.errstate(over="ignore"):
        first = np.array([start]).astype(kind.numpy)
    assume(np.isfinite(first[0]))
    last, goal = first.copy(), np.array(np.inf if up else -np.inf, kind.numpy)
    with np.errstate(all="ignore"):
        for _ in range(steps):
            last = np.nextafter(last, goal)
    assume(np.isfinite(last[0]))
    assert difference(first, last, kind).max_ulp == steps
    assert difference(last, first, kind).max_ulp == steps


@pytest.mark.parametrize(("start", "steps"), [(1.0, 3), (-1e-40, 7), (3e38, 2), (-2.5, 100)])
def test_ulps_of_bf16_are_the_steps_of_nextafter(start: float, steps: int) -> None:
    first = np.array([start], ml_dtypes.bfloat16)
    last, goal = first, np.array([np.inf], ml_dtypes.bfloat16)
    for _ in range(steps):
        last = np.nextafter(last, goal)
    assert difference(first, last, dtype("bf16")).max_ulp == steps


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_ulps_are_counted_across_zero(name: str) -> None:
    kind = dtype(name)
    tiny = np.array([1], f"u{kind.bits // 8}").view(kind.numpy)  # the least positive number
    assert difference(-tiny, tiny, kind).max_ulp == 2
    assert difference(tiny, np.zeros(1, kind.numpy), kind).max_ulp == 1


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64", "f8_e5m2", "f8_e4m3fn", "f4_e2m1fn"])
def test_the_sign_of_zero_counts_apart_and_is_no_distance(name: str) -> None:
    found = of(name, 0.0, -0.0)
    assert (found.count, found.zero_sign, found.max_ulp, found.max_abs) == (1, 1, 0, 0.0)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("f32", 0x7FC00000, 0x7FC00001), ("f16", 0x7E00, 0xFE00), ("bf16", 0x7FC0, 0x7FC1)],
)
def test_payloads_of_nan_count_apart(name: str, one: int, other: int) -> None:
    kind = dtype(name)
    a, b = (np.array([bits], f"<u{kind.bits // 8}").view(kind.numpy) for bits in (one, other))
    found = difference(a, b, kind)
    assert (found.count, found.nan, found.nan_payload, found.max_ulp) == (1, 0, 1, 0)


def test_nan_against_a_number_counts_apart() -> None:
    found = of("f32", float("nan"), 1.0)
    assert (found.count, found.nan, found.nan_payload, found.max_ulp) == (1, 1, 0, 0)


def test_infinities_are_no_finite_distance() -> None:
    found = of("f64", float("inf"), 1.0)
    assert (found.count, found.max_ulp, found.max_abs, found.max_rel) == (1, 0, 0.0, 0.0)


@FIXED
@given(data=st.data(), name=st.sampled_from(FLOATS))
def test_float_statistics_are_those_of_a_loop(data: st.DataObject, name: str) -> None:
    kind = dtype(name)
    a, b = (data.draw(arrays(kind, (5,))) for _ in range(2))
    found = difference(a, b, kind)
    x, y = ([float(value) for value in array.astype("f8")] for array in (a, b))
    unequal = [i for i in range(5) if a[i].tobytes() != b[i].tobytes()]
    finite = [i for i in unequal if math.isfinite(x[i]) and math.isfinite(y[i])]
    gaps = [abs(Fraction(x[i]) - Fraction(y[i])) for i in finite]
    assert found.count == len(unequal)
    assert found.first == (unequal[0] if unequal else None)
    assert found.nan == sum(math.isnan(x[i]) != math.isnan(y[i]) for i in unequal)
    assert found.nan_payload == sum(math.isnan(x[i]) and math.isnan(y[i]) for i in unequal)
    assert found.zero_sign == sum(x[i] == y[i] == 0 for i in unequal)
    limit = Fraction(np.finfo("f8").max.item())
    expected = max((float(gap) if gap <= limit else math.inf for gap in gaps), default=0.0)
    assert found.max_abs == pytest.approx(expected, rel=1e-12)


@FIXED
@given(data=st.data(), name=st.sampled_from(["u8", "i8", "i16", "u32", "i64", "u64", "i4", "u4", "i2", "u2"]))
def test_integer_statistics_are_those_of_a_loop(data: st.DataObject, name: str) -> None:
    kind = dtype(name)
    a, b = (data.draw(arrays(kind, (4,))) for _ in range(2))
    found = difference(a, b, kind)
    gaps = [abs(int(x) - int(y)) for x, y in zip(a, b, strict=True)]
    assert found.count == sum(gap != 0 for gap in gaps)
    assert found.max_abs == float(max(gaps))
    assert found.max_ulp is None


@pytest.mark.parametrize("name", ["c64", "c128"])
def test_complex_numbers_are_compared_by_parts(name: str) -> None:
    kind = dtype(name)
    part = {"c64": "f4", "c128": "f8"}[name]
    one = np.array([1.0, 2.0], part)
    other = np.array([1.0, np.nextafter(one.dtype.type(2), one.dtype.type(3))], part)
    found = difference(one.view(kind.numpy), other.view(kind.numpy), kind)
    assert (found.elements, found.count, found.max_ulp) == (1, 1, 1)


@pytest.mark.parametrize(("name", "one", "other"), [("bool", True, False), ("s3", b"abc", b"abd")])
def test_other_types_have_no_distance(name: str, one: object, other: object) -> None:
    found = of(name, one, other)
    assert (found.count, found.first, found.max_ulp, found.max_abs) == (1, 0, None, None)


@FIXED
@given(data=st.data(), name=st.sampled_from([*DTYPE_NAMES, "s3"]), cut=st.integers(0, 6))
def test_pieces_tell_what_the_whole_tells(data: st.DataObject, name: str, cut: int) -> None:
    kind = dtype(name)
    a, b = (data.draw(arrays(kind, (6,))) for _ in range(2))
    whole = difference(a, b, kind)
    assert merged(difference(a[:cut], b[:cut], kind), difference(a[cut:], b[cut:], kind)) == whole


@pytest.mark.parametrize(("name", "ulps"), [("f64", 2 * 0x7FEFFFFFFFFFFFFF), ("f32", 2 * 0x7F7FFFFF)])
def test_the_two_greatest_floats_are_twice_themselves_apart(name: str, ulps: int) -> None:
    greatest = np.finfo({"f64": "f8", "f32": "f4"}[name]).max
    found = of(name, -greatest, greatest)
    assert (found.max_ulp, found.max_rel) == (ulps, 2.0)
    assert found.max_abs == (math.inf if name == "f64" else 2 * float(greatest))


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("i64", -(2**63), 2**63 - 1),
        ("u64", 0, 2**64 - 1),
        ("i64", 2**63 - 1, 2**63 - 2),
        ("u64", 2**64 - 1, 2**64 - 2),
        ("i8", -128, 127),
        ("i4", -8, 7),
        ("u2", 0, 3),
    ],
)
def test_extremes_of_integers_do_not_wrap(name: str, one: int, other: int) -> None:
    for a, b in ((one, other), (other, one)):
        found = of(name, a, b)
        assert (found.count, found.max_abs, found.max_ulp) == (1, float(abs(one - other)), None)


@pytest.mark.parametrize("name", ["c64", "c128"])
def test_parts_of_complex_numbers_count_nan_and_zero_signs_apart(name: str) -> None:
    kind = dtype(name)
    a = np.array([complex(0.0, 1.0), complex(math.nan, 1.0), complex(2.0, 3.0)], kind.numpy)
    b = np.array([complex(-0.0, 1.0), complex(1.0, math.nan), complex(2.0, 3.0)], kind.numpy)
    found = difference(a, b, kind)
    assert (found.elements, found.count, found.first) == (3, 2, 0)
    assert (found.zero_sign, found.nan, found.nan_payload, found.max_ulp) == (1, 2, 0, 0)
