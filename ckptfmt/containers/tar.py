"""Tar archives (POSIX ustar, pax, GNU) to the places of their members.

One strict policy: checksums of headers are verified, sizes compared with the file, two members of one name
refused, and the end mark must be there. Nothing is unpacked; a member's name is never a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, LimitError, TruncatedError
from ckptfmt.storage.slices import SliceReader

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["TarMember", "read_tar"]

_BLOCK = 512
_MAX_MEMBERS = 1 << 16
_MAX_HEADER = 1 << 20
_REGULAR = b"0\x007"
_PAX_RECORD = re.compile(rb"([0-9]{1,9}) ([^=]{1,100})=")


@dataclass(frozen=True, slots=True)
class TarMember:
    """A regular file of an archive.

    Attributes
    ----------
    name : str
    offset, size : int
        Where its bytes lie in the archive.
    """

    name: str
    offset: int
    size: int

    def open(self, reader: ByteReader) -> SliceReader:
        """Return its bytes as a reader, given that of the archive."""
        return SliceReader(reader, self.offset, self.size, name=f"{reader.name}: {self.name}")


@dataclass(slots=True)
class _Said:
    """What headers for the next member say of it, in place of its own header."""

    name: str | None = None
    size: int | None = None


def read_tar(reader: ByteReader) -> dict[str, TarMember]:
    """Return the regular files of an archive by name; directories, links and devices are left out.

    Parameters
    ----------
    reader : ByteReader

    Raises
    ------
    TruncatedError
        It ends within a member, or without its end mark of two empty blocks.
    FormatError
        A header is damaged, or two members have one name.
    LimitError
        There are too many members.
    """
    members: dict[str, TarMember] = {}
    said, always = _Said(), _Said()
    at = 0
    for _ in range(_MAX_MEMBERS):
        header = _header(reader, at)
        if header is None:
            return members
        kind, start = header[156:157], at + _BLOCK
        size = _number(header[124:136], reader, at)
        if kind not in b"xgLK" and said.size is not None:
            size = said.size
        at = _after(reader, start, size)
        if kind in b"xgLK":
            _listen(reader, kind, start, size, always if kind == b"g" else said)
            continue
        if kind in _REGULAR:
            member = TarMember(said.name or always.name or _name(header), start, size)
            _add(members, member, reader)
        said = _Said()
    raise LimitError(f"more than {_MAX_MEMBERS} members", file=reader.name, offset=at)


def _add(members: dict[str, TarMember], member: TarMember, reader: ByteReader) -> None:
    if member.name in members:
        message = f"two members are called {member.name[:80]!r}"
        raise FormatError(message, file=reader.name, offset=member.offset)
    members[member.name] = member


def _header(reader: ByteReader, at: int) -> bytes | None:
    """Return the header at an offset, or None for the end mark."""
    if at + _BLOCK > reader.size:
        message = "the archive ends without its end mark"
        raise TruncatedError(message, file=reader.name, offset=reader.size)
    block = reader.read(at, _BLOCK)
    if not any(block):
        if at + 2 * _BLOCK > reader.size:
            message = "the archive ends within its end mark"
            raise TruncatedError(message, file=reader.name, offset=reader.size)
        return None
    stated = _number(block[148:156], reader, at)
    if sum(block[:148]) + sum(block[156:]) + 8 * ord(" ") != stated:
        raise FormatError("a member's header does not match its checksum", file=reader.name, offset=at)
    return block


def _number(field: bytes, reader: ByteReader, at: int) -> int:
    """Return a number: octal digits, or binary as GNU tar writes large ones."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0") or b"0"
    if not digits.isdigit() or not set(digits) <= set(b"01234567"):
        raise FormatError(f"not an octal number: {field!r}", file=reader.name, offset=at)
    return int(digits, 8)


def _after(reader: ByteReader, start: int, size: int) -> int:
    """Return where the next header is."""
    if start + size > reader.size:
        message = f"a member of {size} bytes, {reader.size - start} are left"
        raise TruncatedError(message, file=reader.name, offset=reader.size)
    return start + -(-size // _BLOCK) * _BLOCK


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape").removeprefix("./")


def _listen(reader: ByteReader, kind: bytes, start: int, size: int, said: _Said) -> None:
    """Note what a pax header, or a GNU header with a long name, says."""
    if size > _MAX_HEADER:
        raise LimitError(f"a header of {size} bytes", file=reader.name, offset=start)
    data = reader.read(start, size)
    if kind == b"L":
        said.name = _text(data.partition(b"\0")[0])
    elif kind != b"K":  # the long target of a link
        _pax(data, said, reader, start)


def _pax(data: bytes, said: _Said, reader: ByteReader, start: int) -> None:
    at = 0
    while at < len(data) and data[at]:
        record = _PAX_RECORD.match(data, at)
        end = at + int(record[1]) if record else 0
        if record is None or end <= record.end() or end > len(data) or data[end - 1 : end] != b"\n":
            raise FormatError("a malformed pax header", file=reader.name, offset=start + at)
        value = data[record.end() : end - 1]
        if record[2] == b"path":
            said.name = _text(value)
        elif record[2] == b"size":
            if not value.isdigit() or len(value) > 20:
                raise FormatError("a malformed size in a pax header", file=reader.name, offset=start + at)
            said.size = int(value)
        elif record[2].startswith(b"GNU.sparse"):
            raise FormatError("a sparse member", file=reader.name, offset=start + at)
        at = end
