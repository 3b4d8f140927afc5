"""Where a node is: keys, their canonical encoding, and how a person reads and writes them.

A path is the tuple of keys from the root to a node. The encoding (section 6 of
``spec/ckptfmt-1.0.md``) orders paths and enters digests; the displayed form is for people and globs.
"""

from __future__ import annotations

import fnmatch
import json
import re
import struct
from typing import TYPE_CHECKING, TypeAlias

from ckptfmt.errors import TreeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "Key",
    "Path",
    "display",
    "dotted",
    "encode_key",
    "encode_path",
    "field",
    "glob_matcher",
    "int_payload",
    "key_kind",
    "key_payload",
    "u64",
]

Key: TypeAlias = "str | bool | int | float | bytes | tuple[Key, ...] | None"
Path: TypeAlias = "tuple[Key, ...]"

u64 = struct.Struct("<Q").pack
"""Encode a non-negative integer as 8 bytes, little-endian."""


def field(payload: bytes) -> bytes:
    """Return `payload` framed by its length."""
    return u64(len(payload)) + payload


def int_payload(value: int) -> bytes:
    """Return an integer as lower-case hexadecimal ASCII, `-` only for negatives."""
    return b"%x" % value if value >= 0 else b"-%x" % -value


def key_kind(key: Key) -> str:
    """Return the kind of a key: str, bool, int, float, none, bytes or tuple."""
    if isinstance(key, str):
        return "str"
    if isinstance(key, bool):
        return "bool"
    if key is None:
        return "none"
    for kind, cls in (("int", int), ("float", float), ("bytes", bytes), ("tuple", tuple)):
        if isinstance(key, cls):
            return kind
    message = f"a key must be str, bool, int, float, None, bytes or a tuple, not {type(key).__name__}"
    raise TreeError(message)


def key_payload(key: Key) -> bytes:
    """Return the bytes of a key without its kind.

    Raises
    ------
    TreeError
        The key is of no known kind, a NaN, or a string that is not valid Unicode.
    """
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            message = f"key {key!r} is not valid Unicode"
            raise TreeError(message) from None
    if isinstance(key, bool):
        return b"\x01" if key else b"\x00"
    if key is None:
        return b""
    if isinstance(key, int):
        return int_payload(key)
    if isinstance(key, bytes):
        return bytes(key)
    if isinstance(key, tuple):
        return u64(len(key)) + b"".join(map(encode_key, key))
    if isinstance(key, float):
        if key != key:  # noqa: PLR0124 - the one value that differs from itself
            message = "NaN cannot be a key: it equals nothing, itself included"
            raise TreeError(message)
        return struct.pack("<d", key)
    raise TreeError(f"a {type(key).__name__} cannot be a key")


_STR_KIND = field(b"str")


def encode_key(key: Key) -> bytes:
    """Return the canonical encoding of a key: ``field(kind) ‖ field(key bytes)``."""
    if type(key) is str and key.isascii():  # what most keys are
        return _STR_KIND + u64(len(key)) + key.encode()
    return field(key_kind(key).encode()) + field(key_payload(key))


def encode_path(path: Path) -> tuple[bytes, ...]:
    """Return the sort key of a path; paths are ordered as tuples of encoded keys."""
    return tuple(map(encode_key, path))


def dotted(path: Path) -> str:
    """Return the name of a tensor in a shard header, before it is made unique.

    Keys joined by ``.``: a str as it is, an int or list index in decimal, any other key as
    ``<kind>:<hex of its bytes>``.
    """
    return ".".join([key if isinstance(key, str) else _dotted_key(key) for key in path])


def _dotted_key(key: Key) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return _decimal(key)
    return f"{key_kind(key)}:{key_payload(key).hex()}"


_PIECE = 10**4000
_LONG = 1 << 64


def _decimal(number: int) -> str:
    """Return an integer in decimal; Python itself refuses to write more than 4,300 digits at once."""
    high, low = divmod(abs(number), _PIECE)
    return ("-" if number < 0 else "") + (f"{high}{low:04000d}" if high else str(low))


_LOOKS_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_LOOKS_OTHER = re.compile(r"-?[0-9]+|(bool|int|float|none|bytes|tuple):.*|", re.DOTALL)


def display(path: Path) -> str:
    """Return a path as a person reads it: keys joined by ``/``.

    A str that could be mistaken for another key or holds ``/``, quotes or control characters is shown as
    a JSON string, so that two paths never look alike.
    """
    return "/".join([_display_key(key) for key in path])


def _display_key(key: Key) -> str:
    if isinstance(key, int) and not -_LONG < key < _LONG:
        return f"int:{int_payload(key).decode()}"
    if not isinstance(key, str):
        return _dotted_key(key)
    if _LOOKS_PLAIN.fullmatch(key):  # what most keys are
        return key
    if _LOOKS_OTHER.fullmatch(key) or "/" in key or '"' in key or not key.isprintable():
        return json.dumps(key)
    return key


def glob_matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test of displayed paths against shell globs.

    A pattern matches a whole displayed path, or names a sub-tree: ``model`` and ``model/*`` both match
    everything below ``model``. ``*`` crosses ``/``.
    """
    compiled = [
        re.compile(fnmatch.translate(form)) for pattern in patterns for form in (pattern, f"{pattern}/*")
    ]
    return lambda shown: any(expression.match(shown) for expression in compiled)
