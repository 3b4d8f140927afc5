"""From the end of an archive to its entries: the end records, then the central directory.

Only the tail of the file and the directory are read. The directory must lie directly before the end
records and fill its place exactly; what the records say twice must agree; nothing may follow the comment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.containers.zip import records
from ckptfmt.containers.zip.records import Entry
from ckptfmt.errors import FormatError, LimitError, TruncatedError, UnsupportedVersionError

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["MAX_DIRECTORY", "MAX_ENTRIES", "read_entries"]

MAX_ENTRIES = 1 << 19
"""Greatest number of members: some ten times what the largest known checkpoints hold."""
MAX_DIRECTORY = 256 << 20
"""Greatest size of the central directory in bytes."""

_KNOWN_FLAGS = 0x0002 | 0x0004 | records.FLAG_DESCRIPTOR | records.FLAG_UTF8
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000


@dataclass(frozen=True, slots=True)
class _End:
    count: int
    size: int
    offset: int
    at: int


def read_entries(reader: ByteReader) -> tuple[Entry, ...]:
    """Return the members of an archive in the order of its central directory, folders left out.

    Raises
    ------
    TruncatedError
        There is no end record: the file is cut short, or no zip archive at all.
    FormatError
        The archive breaks the format or is ambiguous; see the policy of the package.
    LimitError
        More than `MAX_ENTRIES` members, or a directory of more than `MAX_DIRECTORY` bytes.
    UnsupportedVersionError
        Encrypted members, several disks, a method other than stored and deflated.
    """
    end = _find_end(reader)
    _check_end(end, reader.name)
    entries = _parse_directory(reader.read(end.offset, end.size), end, reader.name)
    return tuple(entry for entry in _with_limits(entries, end.offset, reader.name) if entry.name[-1] != "/")


def _find_end(reader: ByteReader) -> _End:
    """Return the end record, the zip64 one where there is one."""
    start = max(0, reader.size - records.END.size - records.MAX16)
    tail = reader.read(start, reader.size - start)
    at = _end_in_tail(tail, start, reader.name)
    _, disk, first_disk, here, count, size, offset, _ = records.END.unpack_from(tail, at - start)
    locator_at = at - records.LOCATOR.size
    magic = reader.read(locator_at, 4) if locator_at >= 0 else b""
    if magic == records.LOCATOR_MAGIC:
        wide = _find_end64(reader, locator_at)
        for narrow, value, most in (
            (count, wide.count, records.MAX16),
            (here, wide.count, records.MAX16),
            (size, wide.size, records.MAX32),
            (offset, wide.offset, records.MAX32),
        ):
            if narrow not in (value, most):
                message = "the two end records contradict each other"
                raise FormatError(message, file=reader.name, offset=at)
        return wide
    if disk or first_disk or here != count:
        raise UnsupportedVersionError("an archive of several disks", file=reader.name, offset=at)
    return _End(count, size, offset, at)


def _end_in_tail(tail: bytes, start: int, file: str) -> int:
    """Return the offset of the one end record whose comment ends with the file."""
    fits = []
    at = tail.find(records.END_MAGIC)
    seen = at >= 0
    while at >= 0:
        if at + records.END.size <= len(tail):
            (comment,) = struct.unpack_from("<H", tail, at + records.END.size - 2)
            if at + records.END.size + comment == len(tail):
                fits.append(at)
        at = tail.find(records.END_MAGIC, at + 1)
    if not fits:
        if seen:
            raise FormatError("bytes follow the end record, or it is cut short", file=file)
        message = "no end record: the file is cut short, or is no zip archive"
        raise TruncatedError(message, file=file, offset=start + len(tail))
    if len(fits) > 1:
        raise FormatError("more than one end record fits", file=file, offset=start + fits[0])
    return start + fits[0]


def _find_end64(reader: ByteReader, locator_at: int) -> _End:
    _, disk, at, disks = records.LOCATOR.unpack(reader.read(locator_at, records.LOCATOR.size))
    if disk or disks > 1:
        raise UnsupportedVersionError("an archive of several disks", file=reader.name, offset=locator_at)
    if at + records.END64.size > locator_at:
        raise FormatError("the zip64 end record is not where its locator says", file=reader.name, offset=at)
    found = records.END64.unpack(reader.read(at, records.END64.size))
    magic, length, _, _, disk, first_disk, here, count, size, offset = found
    if magic != records.END64_MAGIC or at + 12 + length != locator_at:
        raise FormatError("the zip64 end record is not where its locator says", file=reader.name, offset=at)
    if disk or first_disk or here != count:
        raise UnsupportedVersionError("an archive of several disks", file=reader.name, offset=at)
    return _End(count, size, offset, at)


def _check_end(end: _End, file: str) -> None:
    if end.offset + end.size != end.at:
        message = f"the directory ({end.size} bytes at {end.offset}) does not end where the end record begins"
        raise FormatError(message, file=file, offset=end.at)
    if end.count * records.CENTRAL.size > end.size:
        message = f"{end.count} members cannot be listed in {end.size} bytes"
        raise FormatError(message, file=file, offset=end.at)
    if end.count > MAX_ENTRIES:
        raise LimitError(f"{end.count} members, of at most {MAX_ENTRIES}", file=file, offset=end.at)
    if end.size > MAX_DIRECTORY:
        raise LimitError(f"a directory of {end.size} bytes", file=file, offset=end.at)


def _parse_directory(data: bytes, end: _End, file: str) -> list[Entry]:
    entries: list[Entry] = []
    at = 0
    for _ in range(end.count):
        if at + records.CENTRAL.size > len(data):
            raise FormatError("the directory ends too early", file=file, offset=end.at)
        entry, at = _parse_entry(data, at, end.offset, file)
        entries.append(entry)
    if at != len(data):
        raise FormatError("the directory lists more than it counts", file=file, offset=end.offset + at)
    if len({entry.name for entry in entries}) != len(entries):
        _refuse_duplicate(entries, file)
    return entries


def _refuse_duplicate(entries: list[Entry], file: str) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise FormatError(f"member {entry.name!r} is there twice", file=file, offset=entry.offset)
        seen.add(entry.name)


def _parse_entry(data: bytes, at: int, base: int, file: str) -> tuple[Entry, int]:
    fields = records.CENTRAL.unpack_from(data, at)
    magic, _, _, flags, method, _, _, crc, stored, size, named, extended, commented, disk = fields[:14]
    where = base + at
    name_at = at + records.CENTRAL.size
    stop = name_at + named + extended + commented
    if magic != records.CENTRAL_MAGIC or stop > len(data):
        raise FormatError("malformed entry of the directory", file=file, offset=where)
    name = decode_name(data[name_at : name_at + named], flags, file, where)
    offset = fields[-1]
    if extended:
        extra = data[name_at + named : name_at + named + extended]
        size, stored, offset = _extended(extra, name, (size, stored, offset), file, where)
    if disk not in (0, records.MAX16):
        raise UnsupportedVersionError("an archive of several disks", file=file, offset=where)
    _check_method(name, flags, method, file, where)
    if size and (fields[-2] & records.ATTRIBUTE_DIRECTORY or name.endswith("/")):  # some readers read nothing
        raise FormatError(f"member {name!r} is a directory that holds bytes", file=file, offset=where)
    if method == records.STORED and stored != size:
        raise FormatError(f"member {name!r} is stored in {stored} of {size} bytes", file=file, offset=where)
    return Entry(name, flags, method, crc, stored, size, offset, 0), stop


def _extended(
    extra: bytes, name: str, values: tuple[int, int, int], file: str, where: int
) -> tuple[int, ...]:
    found = records.extra_fields(extra, file, where)
    other_name = found.get(records.UNICODE_PATH_EXTRA)
    if other_name is not None and other_name[5:] != name.encode():
        raise FormatError(f"member {name!r} has a second, other name", file=file, offset=where)
    return records.widened(values, found.get(records.ZIP64_EXTRA), file, where)


def decode_name(raw: bytes, flags: int, file: str, offset: int) -> str:
    """Return a member's name: UTF-8 where the header says so, else ASCII.

    Raises
    ------
    FormatError
        It is empty, cannot be decoded, or holds a NUL, at which some readers stop.
    """
    try:
        name = raw.decode("utf-8" if flags & records.FLAG_UTF8 else "ascii")
    except UnicodeDecodeError:
        message = f"a member's name cannot be decoded: {raw[:80]!r}"
        raise FormatError(message, file=file, offset=offset) from None
    if not name or "\0" in name:
        raise FormatError("a member's name is empty or holds a NUL", file=file, offset=offset)
    return name


def _check_method(name: str, flags: int, method: int, file: str, where: int) -> None:
    if flags & _ENCRYPTED:
        raise UnsupportedVersionError(f"member {name!r} is encrypted", file=file, offset=where)
    if flags & ~_KNOWN_FLAGS:
        message = f"member {name!r} has unknown flags {flags:#06x}"
        raise UnsupportedVersionError(message, file=file, offset=where)
    if method not in (records.STORED, records.DEFLATED):
        message = f"member {name!r} is compressed by method {method}; only stored and deflated are read"
        raise UnsupportedVersionError(message, file=file, offset=where)


def _with_limits(entries: list[Entry], stop: int, file: str) -> list[Entry]:
    """Give each entry the offset at which the next record begins; refuse records that overlap."""
    order = sorted(range(len(entries)), key=lambda index: entries[index].offset)
    limit = stop
    placed = list(entries)
    for index in reversed(order):
        entry = entries[index]
        if entry.offset + records.LOCAL.size + len(entry.name.encode()) + entry.stored > limit:
            message = f"member {entry.name!r} reaches into the next record"
            raise FormatError(message, file=file, offset=entry.offset)
        placed[index] = entry._replace(limit=limit)
        limit = entry.offset
    if limit != 0 and entries:
        raise FormatError("the archive does not begin with a member", file=file, offset=0)
    return placed
