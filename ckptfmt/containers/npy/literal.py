"""The subset of Python's notation in which npy headers are written: parsed, never evaluated.

Strings, non-negative integers (with the `L` of Python 2), True and False, tuples, lists and dicts with
str keys. Nesting is bounded, and time and memory are linear in the text.
"""

from __future__ import annotations

import re
from typing import NoReturn, TypeAlias

from ckptfmt.errors import FormatError, LimitError

__all__ = ["Literal", "parse_literal"]

Literal: TypeAlias = "str | int | bool | tuple[Literal, ...] | list[Literal] | dict[str, Literal]"

_MAX_NESTING = 32
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
        (?P<int>0|[1-9][0-9]{0,19})L?(?![0-9A-Za-z_.])
      | (?P<word>True|False)(?![0-9A-Za-z_])
      | '(?P<single>(?:[^'\\\n]|\\[^\n])*)'
      | "(?P<double>(?:[^"\\\n]|\\[^\n])*)"
      | (?P<mark>[()\[\]{},:])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def parse_literal(text: str) -> Literal:
    """Return the value that a text denotes.

    Raises
    ------
    FormatError
        It denotes none, or something other than the module says; `offset` counts characters.
    LimitError
        It is nested too deeply.
    """
    parser = _Parser(text)
    value = parser.value(0)
    if parser.kind != "end":
        parser.fail("something after the end")
    return value


class _Parser:
    """One token of look-ahead: its `kind` and its `text`."""

    def __init__(self, text: str) -> None:
        self._source = text
        self._at = 0
        self.kind = ""
        self.text = ""
        self._next()

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"malformed header: {message}", offset=self._at)

    def _next(self) -> None:
        match = _TOKEN.match(self._source, self._at)
        if match is None:
            self.fail(f"{self._source[self._at : self._at + 20]!r} cannot stand there")
        self.kind = str(match.lastgroup)
        self.text = match[self.kind]
        self._at = match.end()

    def _take(self, mark: str) -> bool:
        if self.kind == "mark" and self.text == mark:
            self._next()
            return True
        return False

    def value(self, depth: int) -> Literal:
        if depth > _MAX_NESTING:
            raise LimitError("a header that is nested too deeply", offset=self._at)
        kind, text = self.kind, self.text
        self._next()
        if kind == "int":
            return int(text)
        if kind == "word":
            return text == "True"
        if kind in ("single", "double"):
            return self._unescaped(text)
        if kind == "mark" and text == "(":
            return self._tuple(depth)
        if kind == "mark" and text == "[":
            return self._items("]", depth)[0]
        if kind == "mark" and text == "{":
            return self._dict(depth)
        return self.fail("a value is missing")

    def _unescaped(self, text: str) -> str:
        if "\\" not in text:
            return text

        def character(match: re.Match[str]) -> str:
            code = match[1] or match[2] or match[3]
            if code and int(code, 16) < 0x110000:
                return chr(int(code, 16))
            if match[4] not in _PLAIN_ESCAPES:
                self.fail(f"escape {match[0]!r}")
            return _PLAIN_ESCAPES[match[4]]

        return _ESCAPE.sub(character, text)

    def _items(self, end: str, depth: int) -> tuple[list[Literal], bool]:
        """Return the items up to `end`, and whether a comma stood after the last of them."""
        items: list[Literal] = []
        comma = True
        while not self._take(end):
            if not comma:
                self.fail("a comma is missing")
            items.append(self.value(depth + 1))
            comma = self._take(",")
        return items, comma

    def _tuple(self, depth: int) -> Literal:
        items, comma = self._items(")", depth)
        return items[0] if len(items) == 1 and not comma else tuple(items)

    def _dict(self, depth: int) -> dict[str, Literal]:
        made: dict[str, Literal] = {}
        comma = True
        while not self._take("}"):
            if not comma:
                self.fail("a comma is missing")
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in made:
                self.fail("a key that is no string, or is there twice")
            if not self._take(":"):
                self.fail("a colon is missing")
            made[key] = self.value(depth + 1)
            comma = self._take(",")
        return made
