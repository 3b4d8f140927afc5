"""Opcodes that put a single value on the stack: numbers, text, bytes.

Text of Python 2 may have meant bytes; which of the two is decided by whoever knows what it is for.
"""

from __future__ import annotations

import codecs
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.machine import I4, U1, U2, U4, U8, decimal, refuse
from ckptfmt.containers.pickle.nodes import Call, FileBytes, Global, LegacyText

if TYPE_CHECKING:
    from ckptfmt.containers.pickle.machine import Machine, Opcode

__all__ = ["SCALARS"]

_F8 = struct.Struct(">d")
_FLOAT = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(inf|nan)", re.IGNORECASE)
_BYTEARRAY = Global("builtins", "bytearray")


def _none(m: Machine) -> None:
    m.stack.append(None)


def _true(m: Machine) -> None:
    m.stack.append(True)


def _false(m: Machine) -> None:
    m.stack.append(False)


def _int_line(m: Machine) -> None:
    text = m.line().strip()
    if text in (b"00", b"01"):  # how protocols 0 and 1 write booleans
        m.stack.append(text == b"01")
    else:
        m.stack.append(decimal(text))


def _long_line(m: Machine) -> None:
    m.stack.append(decimal(m.line().strip().removesuffix(b"L")))


def _binint(m: Machine) -> None:
    m.stack.append(m.number(I4))


def _binint1(m: Machine) -> None:
    m.stack.append(m.data[m.at])
    m.at += 1


def _binint2(m: Machine) -> None:
    m.stack.append(m.number(U2))


def _long1(m: Machine) -> None:
    m.stack.append(int.from_bytes(m.take(m.number(U1)), "little", signed=True))


def _long4(m: Machine) -> None:
    length = m.number(I4)
    if length < 0:
        refuse("an integer of negative length")
    m.stack.append(int.from_bytes(m.take(length), "little", signed=True))


def _float_line(m: Machine) -> None:
    text = m.line().strip()
    if not _FLOAT.fullmatch(text):
        refuse(f"not a number: {text[:40]!r}")
    m.stack.append(float(text))


def _binfloat(m: Machine) -> None:
    (value,) = _F8.unpack_from(m.data, m.at)
    m.at += 8
    m.stack.append(value)


def _string_line(m: Machine) -> None:
    m.made()
    text = m.line().strip()
    if len(text) < 2 or text[0] != text[-1] or text[:1] not in (b"'", b'"'):
        refuse("a string without quotes")
    m.stack.append(LegacyText(codecs.escape_decode(text[1:-1])[0]))


def _binstring(m: Machine) -> None:
    m.made()
    length = m.number(I4)
    if length < 0:
        refuse("a string of negative length")
    data = m.take_long(length)
    m.stack.append(replace(data, is_text=True) if isinstance(data, FileBytes) else LegacyText(data))


def _short_binstring(m: Machine) -> None:
    m.made()
    m.stack.append(LegacyText(m.take(m.number(U1))))


def _unicode_line(m: Machine) -> None:
    m.stack.append(m.line().decode("raw-unicode-escape"))


def _binunicode(m: Machine) -> None:
    m.stack.append(str(m.take(m.number(U4)), "utf-8", "surrogatepass"))


def _short_binunicode(m: Machine) -> None:
    m.stack.append(str(m.take(m.number(U1)), "utf-8", "surrogatepass"))


def _binunicode8(m: Machine) -> None:
    m.stack.append(str(m.take(m.number(U8)), "utf-8", "surrogatepass"))


def _binbytes(m: Machine) -> None:
    m.stack.append(m.take_long(m.number(U4)))


def _short_binbytes(m: Machine) -> None:
    m.stack.append(m.take(m.number(U1)))


def _binbytes8(m: Machine) -> None:
    m.stack.append(m.take_long(m.number(U8)))


def _bytearray8(m: Machine) -> None:
    m.made()
    m.stack.append(Call(_BYTEARRAY, (m.take_long(m.number(U8)),)))


SCALARS: dict[bytes, Opcode] = {
    b"F": _float_line,
    b"I": _int_line,
    b"J": _binint,
    b"K": _binint1,
    b"L": _long_line,
    b"M": _binint2,
    b"N": _none,
    b"S": _string_line,
    b"T": _binstring,
    b"U": _short_binstring,
    b"V": _unicode_line,
    b"X": _binunicode,
    b"G": _binfloat,
    b"\x88": _true,
    b"\x89": _false,
    b"\x8a": _long1,
    b"\x8b": _long4,
    b"B": _binbytes,
    b"C": _short_binbytes,
    b"\x8c": _short_binunicode,
    b"\x8d": _binunicode8,
    b"\x8e": _binbytes8,
    b"\x96": _bytearray8,
}
"""What each opcode does."""
