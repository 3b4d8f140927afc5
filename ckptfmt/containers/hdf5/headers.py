"""Where the values of attributes lie, as far as they are in an object's own header.

The library gives strings of any length only with what they point to, of whatever length that claims to be;
so their pointers are read here. Attributes that are stored densely (many or large ones of one object, in
files of HDF5 1.8 and later) are not found. Source: HDF5 File Format 3.0, sections IV.A.1 and IV.A.2.m.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.storage.reader import ByteReader

__all__ = ["attribute_values"]

_OLD = struct.Struct("<BxHLL4x")  # version, messages, references, length
_OLD_MESSAGE = struct.Struct("<HHB3x")  # type, length, flags
_MESSAGE = struct.Struct("<BHB")  # the same; two bytes of order may follow
_CONTINUATION = struct.Struct("<QQ")
_ATTRIBUTE = struct.Struct("<BBHHH")  # version, flags, lengths of name, type and space
_ATTRIBUTE_TYPE, _CONTINUATION_TYPE = 0x0C, 0x10
_SHARED = 0x02
_MOST_BLOCKS = 1 << 12


def attribute_values(reader: ByteReader, base: int, address: int) -> dict[bytes, tuple[int, int]]:
    """Return by name where an attribute's value is in the file, and how many bytes follow there.

    Parameters
    ----------
    reader : ByteReader
    base : int
        What addresses in the file are counted from.
    address : int
        Of the object's header.

    Raises
    ------
    FormatError, TruncatedError
        The header is damaged.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for kind, flags, offset, length in _messages(reader, base, base + address):
        if kind == _ATTRIBUTE_TYPE and not flags & _SHARED:
            name, skipped = _attribute(reader.read(offset, length), reader.name, offset)
            found[name] = (offset + skipped, length - skipped)
    return found


def _attribute(data: bytes, file: str, offset: int) -> tuple[bytes, int]:
    """Return the name of an attribute, and how many bytes of its message come before its value."""
    if len(data) < _ATTRIBUTE.size:
        raise FormatError("an attribute that is cut short", file=file, offset=offset)
    version, _, named, typed, spaced = _ATTRIBUTE.unpack_from(data)
    start = _ATTRIBUTE.size + (version >= 3)
    lengths = [-(-length // 8) * 8 if version == 1 else length for length in (named, typed, spaced)]
    skipped = start + sum(lengths)
    if skipped > len(data):
        raise FormatError("an attribute that is cut short", file=file, offset=offset)
    return data[start : start + named].partition(b"\0")[0], skipped


def _messages(reader: ByteReader, base: int, offset: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield type, flags, offset and length of each message of a header."""
    ordered = False
    if reader.read(offset, 4) == b"OHDR":
        flags = reader.read(offset + 5, 1)[0]
        start = offset + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        blocks = [(start + width, int.from_bytes(reader.read(start, width), "little"))]
        old, ordered = False, bool(flags & 4)
    else:
        version, _, _, length = _OLD.unpack(reader.read(offset, _OLD.size))
        if version != 1:
            raise FormatError("an object header of another version", file=reader.name, offset=offset)
        old, blocks = True, [(offset + _OLD.size, length)]
    done = 0
    while done < len(blocks):
        start, length = blocks[done]
        done += 1
        for kind, flags, at, size in _block(reader, start, length, old=old, ordered=ordered):
            if kind != _CONTINUATION_TYPE:
                yield kind, flags, at, size
                continue
            if size < _CONTINUATION.size or len(blocks) >= _MOST_BLOCKS:
                raise FormatError("an object header that is damaged", file=reader.name, offset=at)
            where, more = _CONTINUATION.unpack(reader.read(at, _CONTINUATION.size))
            blocks.append((base + where, more) if old else (base + where + 4, max(0, more - 8)))


def _block(
    reader: ByteReader, start: int, length: int, *, old: bool, ordered: bool
) -> Iterator[tuple[int, int, int, int]]:
    data = reader.read(start, length)
    head = _OLD_MESSAGE if old else _MESSAGE
    at = 0
    while at + head.size <= length:
        kind, size, flags = head.unpack_from(data, at)
        at += head.size + (2 if ordered else 0)
        if at + size > length:
            return  # a gap
        yield kind, flags, start + at, size
        at += size
