"""Canonical JSON: the one encoding of a JSON value, so that equal values are equal bytes.

Section 5.1 of ``spec/ckptfmt-1.0.md``: UTF-8, members sorted by code point, no white space, no escapes
beyond JSON's need, no fractions, no duplicate members. A reader refuses any other encoding of a value.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ckptfmt.errors import FormatError, LimitError, TreeError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["JSON", "MAX_JSON_INT", "MAX_NESTING", "check_nesting", "dumps", "loads", "parse"]

JSON: TypeAlias = "bool | int | str | list[JSON] | dict[str, JSON] | None"

MAX_JSON_INT = 2**53
"""Integers beyond this, either sign, are written as hexadecimal strings."""
MAX_NESTING = 512
"""How deep objects and arrays are nested at most."""

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
).encode


def dumps(value: JSON) -> bytes:
    """Return the canonical encoding of a value.

    Raises
    ------
    TreeError
        A string is not valid Unicode (it holds a lone surrogate).
    """
    try:
        return _encode(value).encode()
    except UnicodeEncodeError as error:
        bad = error.object[max(0, error.start - 20) : error.end + 20]
        message = f"a string is not valid Unicode: {bad!r}"
        raise TreeError(message) from None


def _has_long_number(data: bytes) -> bool:
    """Return whether 16 digits stand together outside of strings, or perhaps inside; in a few passes."""
    text = np.frombuffer(b":" + data, np.uint8)
    run = (text - ord("0")) < 10  # wraps around below the digits
    for step in (1, 2, 4, 8):
        run = run[step:] & run[:-step] if run.size > step else run[:0]
    before = text[np.flatnonzero(run[1:])]
    return bool(np.isin(before, np.frombuffer(b"[,:-", np.uint8)).any())


def check_nesting(value: JSON, most: int) -> None:
    """Raise LimitError if objects and arrays are nested more than `most` deep, the outermost included."""
    layer: list[JSON] = [value]
    for _ in range(most):
        layer = [item for part in layer for item in _members(part) if isinstance(item, list | dict)]
        if not layer:
            return
    raise LimitError(f"JSON nested more than {most} deep", rule="R-015")


def _members(value: JSON) -> Iterable[JSON]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def parse(data: bytes) -> JSON:
    """Return the value that some UTF-8 JSON encodes, canonical or not, without fractions.

    Raises
    ------
    FormatError
        It is not JSON, or holds a fraction, a NaN, an infinity, or an integer beyond 2^53.
    LimitError
        It is nested deeper than Python's own reader follows.
    """
    try:
        parse_int = _small if _has_long_number(data) else None  # a call for every integer takes long
        value: JSON = json.loads(
            data.decode(), parse_float=_refuse, parse_constant=_refuse, parse_int=parse_int
        )
    except RecursionError:
        message = "JSON nested too deeply"
        raise LimitError(message, rule="R-015") from None
    except UnicodeDecodeError as error:
        message = "not UTF-8"
        raise FormatError(message, offset=error.start) from None
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        raise FormatError(message, offset=len(error.doc[: error.pos].encode())) from None
    except ValueError as error:  # a fraction, or an integer of thousands of digits
        message = f"not canonical JSON: {error}"
        raise FormatError(message) from None
    return value


def _refuse(text: str) -> JSON:
    message = f"the number {text[:40]} is not an integer"
    raise ValueError(message)


def _small(text: str) -> int:
    value = int(text)
    if abs(value) > MAX_JSON_INT:
        raise ValueError(f"the number {text[:40]} is beyond 2^53")
    return value


def loads(data: bytes) -> JSON:
    """Return the value of a canonical encoding.

    Raises
    ------
    FormatError
        It is not JSON, or not the canonical encoding of its value.
    LimitError
        It is nested too deeply.
    """
    value = parse(data)
    try:
        again = dumps(value)
    except TreeError as error:
        raise FormatError(str(error)) from None
    if again != data:
        offset = next(
            (i for i, (a, b) in enumerate(zip(again, data, strict=False)) if a != b),
            min(len(again), len(data)),
        )
        message = "JSON that is not in canonical form"
        raise FormatError(message, offset=offset)
    return value
