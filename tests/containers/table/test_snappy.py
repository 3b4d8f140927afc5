"""Snappy: every kind of element, after the description of the format; lies are refused in little memory."""

from __future__ import annotations

import pytest

from ckptfmt.containers.protobuf import varint
from ckptfmt.containers.table.snappy import decompress
from ckptfmt.errors import FormatError, LimitError, TruncatedError


def literal(data: bytes, width: int) -> bytes:
    length = len(data) - 1
    tag = bytes([length << 2]) if width == 0 else bytes([59 + width << 2]) + length.to_bytes(width, "little")
    return tag + data


def copy(distance: int, length: int, width: int) -> bytes:
    if width == 1:
        return bytes([distance >> 8 << 5 | length - 4 << 2 | 1, distance & 0xFF])
    return bytes([length - 1 << 2 | (2 if width == 2 else 3)]) + distance.to_bytes(width, "little")


LONG = bytes(range(256)) * 300
READ = {
    "nothing": (b"", b""),
    "short literal": (literal(b"abc", 0), b"abc"),
    "literal of sixty": (literal(bytes(60), 0), bytes(60)),
    **{f"literal, length of {width}": (literal(LONG[:200], width), LONG[:200]) for width in (1, 2, 3, 4)},
    "literal of thousands": (literal(LONG, 3), LONG),
    "copy of one byte distance": (literal(b"abcdef", 0) + copy(6, 11, 1), b"abcdefabcdefabcde"),
    "copy of eleven bits distance": (literal(LONG[:2000], 2) + copy(1999, 4, 1), LONG[:2000] + LONG[1:5]),
    "copy of two bytes distance": (literal(LONG, 3) + copy(60_000, 64, 2), LONG + LONG[16800:16864]),
    "copy of four bytes distance": (literal(LONG, 3) + copy(70_000, 1, 4), LONG + LONG[6800:6801]),
    "copy into itself": (literal(b"ab", 0) + copy(1, 5, 2) + copy(7, 9, 2), b"abbbbbb" + b"abbbbbbab"),
}


@pytest.mark.parametrize("case", READ)
def test_every_kind_of_element_is_read(case: str) -> None:
    elements, plain = READ[case]
    assert decompress(memoryview(varint(len(plain)) + elements), most=1 << 20) == plain


@pytest.mark.parametrize("case", [case for case in READ if case != "nothing"])
def test_what_is_cut_anywhere_is_refused(case: str) -> None:
    elements, plain = READ[case]
    data = varint(len(plain)) + elements
    step = max(1, len(data) // 300)
    for length in {*range(0, len(data), step), *range(len(data) - 9, len(data))} - {-1, -2, -3, -4, -5, -6}:
        with pytest.raises(FormatError):
            decompress(memoryview(data[:length]), most=1 << 20)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (varint(1 << 60) + literal(b"abc", 0), FormatError),
        (varint(2) + literal(b"abc", 0), FormatError),
        (varint(4) + literal(b"abc", 0), TruncatedError),
        (varint(9) + literal(b"abc", 0) + copy(4, 6, 2), FormatError),
        (varint(9) + literal(b"abc", 0) + copy(0, 6, 2), FormatError),
        (varint(9) + copy(1, 9, 2), FormatError),
        (varint(9) + bytes([63 << 2]) + b"\xff" * 4, TruncatedError),
        (b"", TruncatedError),
    ],
    ids=["huge", "more", "less", "from before", "from here", "from nothing", "cut literal", "empty"],
)
def test_what_lies_is_refused(data: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        decompress(memoryview(data), most=1 << 20)


def test_more_than_is_allowed_is_refused_before_it_is_made() -> None:
    with pytest.raises(LimitError, match="at most 9"):
        decompress(memoryview(varint(10) + literal(bytes(10), 0)), most=9)
