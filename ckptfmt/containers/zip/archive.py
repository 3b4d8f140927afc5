"""Members of an archive by name, each a reader of its own.

Opening reads the directory only. A member's local header is compared with the directory when the member
is opened. Sizes that the file cannot hold and bytes that expand without measure are refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptfmt.containers.zip import records
from ckptfmt.containers.zip.directory import read_entries
from ckptfmt.containers.zip.members import DeflatedMember, StoredMember
from ckptfmt.errors import FormatError, LimitError, MissingFileError
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.containers.zip.members import Member
    from ckptfmt.containers.zip.records import Entry
    from ckptfmt.storage.reader import ByteReader

__all__ = ["FREE_EXPANSION", "MAX_RATIO", "MEMBER_RATIO", "ZipArchive"]

FREE_EXPANSION = 128 << 20
"""Bytes to which the deflated members of an archive may expand, however small it is."""
MAX_RATIO = 200
"""Beyond that: how many times the size of the archive they may expand to."""
MEMBER_RATIO = 1032
"""No deflate stream expands further than this; a member that claims to is lying."""


class ZipArchive:
    """An archive that is open for reading.

    Parameters
    ----------
    reader : ByteReader
        The whole file. It stays open as long as members are read; closing it is the caller's.

    Raises
    ------
    FormatError, TruncatedError, LimitError, UnsupportedVersionError
        As `ckptfmt.containers.zip.directory.read_entries`; LimitError also for members that would
        expand to more than `FREE_EXPANSION` bytes and `MAX_RATIO` times the archive.
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        entries = read_entries(reader)
        _check_expansion(entries, reader)
        self._entries = {entry.name: entry for entry in entries}
        self._members: dict[str, Member] = {}

    @property
    def name(self) -> str:
        """The archive's own name in errors."""
        return self._reader.name

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The members by name, in the directory's order."""
        return self._entries

    def open(self, name: str) -> Member:
        """Return a reader of a member; the same one each time.

        Raises
        ------
        MissingFileError
            There is no such member.
        FormatError
            Its local header or data descriptor contradicts the directory.
        """
        member = self._members.get(name)
        if member is None:
            entry = self._entries.get(name)
            if entry is None:
                raise MissingFileError(f"there is no member {name!r}", file=self.name)
            start = _locate(self._reader, entry)
            kind = StoredMember if entry.method == records.STORED else DeflatedMember
            member = self._members.setdefault(name, kind(self._reader, entry, start))
        return member

    def findings(self) -> tuple[Finding, ...]:
        """Return what is worth telling: members without a checksum."""
        names = [entry.name for entry in self._entries.values() if entry.unverifiable]
        if not names:
            return ()
        message = (
            f"{len(names)} members have no checksum, {names[0]} among them:"
            " nobody can tell whether their bytes have changed"
        )
        return (Finding("crc-absent", "", Severity.INFO, message, file=self.name),)


def _check_expansion(entries: tuple[Entry, ...], reader: ByteReader) -> None:
    total = 0
    for entry in entries:
        if entry.method == records.DEFLATED:
            total += entry.size
            if entry.size > entry.stored * MEMBER_RATIO:
                message = f"member {entry.name!r} cannot expand from {entry.stored} to {entry.size} bytes"
                raise LimitError(message, file=reader.name, offset=entry.offset)
    if total > max(FREE_EXPANSION, MAX_RATIO * reader.size):
        message = f"{reader.size} bytes claim to expand to {total}"
        raise LimitError(message, file=reader.name)


def _locate(reader: ByteReader, entry: Entry) -> int:
    """Return where a member's bytes begin, after comparing its local header with the directory."""
    head = records.LOCAL.unpack(reader.read(entry.offset, records.LOCAL.size))
    magic, _, flags, method, _, _, crc, stored, size, named, extended = head
    rest = reader.read(entry.offset + records.LOCAL.size, named + extended)
    start: int = entry.offset + records.LOCAL.size + named + extended
    if magic != records.LOCAL_MAGIC or start + entry.stored > entry.limit:
        message = f"the local header of {entry.name!r} is malformed, or its bytes reach into the next record"
        raise FormatError(message, file=reader.name, offset=entry.offset)
    wide = None
    if extended:
        fields = records.extra_fields(rest[named:], reader.name, entry.offset)
        wide = fields.get(records.ZIP64_EXTRA)
    size, stored = records.widened((size, stored), wide, reader.name, entry.offset)
    deferred = bool(entry.flags & records.FLAG_DESCRIPTOR)
    matches = (crc, size, stored) == (entry.crc, entry.size, entry.stored)
    if deferred and not matches:
        matches = (crc, size, stored) == (0, 0, 0)
    if (flags, method) != (entry.flags, entry.method) or not matches:
        message = f"the local header of {entry.name!r} contradicts the directory"
        raise FormatError(message, file=reader.name, offset=entry.offset)
    if rest[:named] != entry.name.encode():
        message = f"member {entry.name!r} has another name in its local header"
        raise FormatError(message, file=reader.name, offset=entry.offset)
    if deferred:
        _check_descriptor(reader, entry, start + entry.stored)
    return start


def _check_descriptor(reader: ByteReader, entry: Entry, at: int) -> None:
    """Compare the record after a member's bytes, in any of its four forms, with the directory."""
    data = reader.read(at, min(24, entry.limit - at))
    for form, most in (("<LLL", records.MAX32), ("<LQQ", (1 << 64) - 1)):
        expected = struct.pack(form, entry.crc, entry.stored & most, entry.size & most)
        if data.startswith((expected, records.DESCRIPTOR_MAGIC + expected)):
            return
    message = f"the data descriptor of {entry.name!r} contradicts the directory"
    raise FormatError(message, file=reader.name, offset=at)
