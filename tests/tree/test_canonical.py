"""One encoding of a JSON value, and every other refused."""

from __future__ import annotations

import pytest

from ckptfmt.errors import FormatError, LimitError, TreeError
from ckptfmt.tree.canonical import check_nesting, dumps, loads

GOOD = ["null", "[]", "{}", '{"a":1,"b":[true,false]}', '"\\u0001\\n\\"\\\\é/"', "9007199254740992", "-5"]
BAD = [
    "",
    " 1",
    "1 ",
    "[1, 2]",
    '{"b":1,"a":2}',
    '{"a":1,"a":1}',
    "1.0",
    "1e3",
    "NaN",
    "Infinity",
    "-0",
    "01",
    "9007199254740993",
    "-9007199254740993",
    "[9007199254740993]",
    "1" * 5000,
    '"\\u00e9"',
    '"\\/"',
    '"\\u001F"',
    '"\\ud800"',
    "[1,]",
    "\ufeff1",
    "1\x00",
    "'a'",
]


@pytest.mark.parametrize("text", GOOD)
def test_the_canonical_form_is_read_and_written(text: str) -> None:
    assert dumps(loads(text.encode())) == text.encode()


@pytest.mark.parametrize("text", BAD, ids=repr)
def test_every_other_form_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        loads(text.encode())


def test_bytes_that_are_not_utf_8_are_refused_with_their_place() -> None:
    with pytest.raises(FormatError) as caught:
        loads(b'"ab\xff"')
    assert caught.value.offset == 3


def test_a_lone_surrogate_is_not_written() -> None:
    with pytest.raises(TreeError):
        dumps(["\udc80"])


def test_nesting_beyond_the_limit_and_beyond_python_is_refused() -> None:
    value: object = []
    for _ in range(511):
        value = [value]
    check_nesting(value, 512)  # type: ignore[arg-type] # lists in lists
    with pytest.raises(LimitError):
        check_nesting([value], 512)  # type: ignore[list-item] # lists in lists
    with pytest.raises(FormatError):
        loads(b"[" * 200_000)


def test_members_are_sorted_by_code_point() -> None:
    assert dumps({"é": 1, "z": 2, "Z": 3, "\U0001f600": 4, "\uffff": 5}) == (
        '{"Z":3,"z":2,"é":1,"\uffff":5,"\U0001f600":4}'.encode()
    )
