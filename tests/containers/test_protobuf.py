"""The wire format: numbers of every length, bounds, and what is skipped or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfmt.containers.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    bytes_field,
    fields,
    fixed32_field,
    int_field,
    packed_varints,
    signed,
    varint,
    varint_at,
    varints,
)
from ckptfmt.errors import FormatError, TruncatedError

U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)


@given(value=U64)
def test_a_number_that_is_written_is_read(value: int) -> None:
    assert varint_at(memoryview(b"x" + varint(value) + b"y"), 1) == (value, 1 + len(varint(value)))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_a_negative_number_keeps_its_sign(value: int) -> None:
    assert signed(varint_at(memoryview(varint(value)), 0)[0]) == value


@given(values=st.lists(U64))
def test_numbers_one_after_the_other_are_read_at_once(values: list[int]) -> None:
    found = packed_varints(memoryview(varints(values)))
    assert found.dtype == np.uint64
    assert found.tolist() == values


@pytest.mark.parametrize("data", [b"\x80" * 10 + b"\x00", b"\xff" * 9 + b"\x02", b"\x80" * 11])
def test_a_number_of_more_than_64_bits_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="64 bits"):
        varint_at(memoryview(data), 0)
    with pytest.raises(FormatError, match=r"64 bits|ends inside"):
        packed_varints(memoryview(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_a_number_that_is_cut_is_refused(data: bytes) -> None:
    with pytest.raises(TruncatedError):
        varint_at(memoryview(data), 0)
    if data:
        with pytest.raises(TruncatedError):
            packed_varints(memoryview(b"\x05" + data))


def test_fields_come_in_their_order_whatever_their_number() -> None:
    message = (
        int_field(3, 300) + bytes_field(1, b"ab") + fixed32_field(2, 7) + b"\x21" + bytes(8) + int_field(3, 1)
    )
    found = [
        (n, kind, bytes(v) if isinstance(v, memoryview) else v) for n, kind, v in fields(memoryview(message))
    ]
    assert found == [
        (3, VARINT, 300),
        (1, BYTES, b"ab"),
        (2, FIXED32, 7),
        (4, FIXED64, 0),
        (3, VARINT, 1),
    ]


def test_what_is_zero_is_not_written() -> None:
    assert int_field(1, 0) == fixed32_field(1, 0) == b""
    assert bytes_field(1, b"") == b"\x0a\x00"


@pytest.mark.parametrize(
    "data",
    [b"\x0b", b"\x0c", b"\x0e\x01", b"\x0f\x01", b"\x00\x01", b"\x02\x01a", varint(1 << 32) + b"\x01"],
    ids=["group", "end of group", "6", "7", "number 0", "bytes 0", "number too large"],
)
def test_what_no_message_here_has_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        list(fields(memoryview(data)))


@pytest.mark.parametrize("message", [bytes_field(1, b"abc"), fixed32_field(1, 9), int_field(1, 300)])
def test_a_message_that_is_cut_anywhere_is_refused(message: bytes) -> None:
    for length in range(1, len(message)):
        with pytest.raises(TruncatedError):
            list(fields(memoryview(message[:length])))


def test_a_length_that_is_huge_allocates_nothing() -> None:
    with pytest.raises(TruncatedError, match="18446744073709551615"):
        list(fields(memoryview(b"\x0a" + varint(2**64 - 1))))
