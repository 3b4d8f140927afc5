"""The structures of a zip archive as bytes: end records, central entries, local headers, extra fields.

Little-endian throughout (PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5). Only layout: what is acceptable is
decided in `directory` and `archive`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ckptfmt.errors import FormatError

__all__ = [
    "ATTRIBUTE_DIRECTORY",
    "CENTRAL",
    "DEFLATED",
    "DESCRIPTOR_MAGIC",
    "END",
    "END64",
    "END64_MAGIC",
    "END_MAGIC",
    "FLAG_DESCRIPTOR",
    "FLAG_UTF8",
    "LOCAL",
    "LOCATOR",
    "LOCATOR_MAGIC",
    "MAX16",
    "MAX32",
    "STORED",
    "Entry",
    "extra_fields",
    "widened",
]

LOCAL = struct.Struct("<4s5H3L2H")
"""Magic, version needed, flags, method, time, date, crc, stored size, size, name length, extra length."""
CENTRAL = struct.Struct("<4s6H3L5H2L")
"""Magic, version made, version needed, flags, method, time, date, crc, stored size, size, lengths of name,
extra and comment, disk, internal attributes, external attributes, offset of the local header."""
END = struct.Struct("<4s4H2LH")
"""Magic, disk, directory's disk, entries here, entries, directory size, directory offset, comment length."""
LOCATOR = struct.Struct("<4sLQL")
"""Magic, disk of the zip64 end record, its offset, number of disks."""
END64 = struct.Struct("<4sQ2H2L4Q")
"""Magic, size of what follows, versions made and needed, disk, directory's disk, entries here, entries,
directory size, directory offset."""

LOCAL_MAGIC = b"PK\x03\x04"
CENTRAL_MAGIC = b"PK\x01\x02"
END_MAGIC = b"PK\x05\x06"
END64_MAGIC = b"PK\x06\x06"
LOCATOR_MAGIC = b"PK\x06\x07"
DESCRIPTOR_MAGIC = b"PK\x07\x08"

STORED, DEFLATED = 0, 8
FLAG_DESCRIPTOR = 0x0008
FLAG_UTF8 = 0x0800
ATTRIBUTE_DIRECTORY = 0x10  # of MS-DOS, in the lowest byte of the external attributes
MAX16, MAX32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 0x0001
UNICODE_PATH_EXTRA = 0x7075


class Entry(NamedTuple):
    """One member as the central directory tells it; a tuple, for there may be a hundred thousand.

    Attributes
    ----------
    name : str
    flags, method, crc : int
    stored : int
        Bytes that it takes in the archive.
    size : int
        Bytes that it holds.
    offset : int
        Of its local header.
    limit : int
        Where the next record begins: nothing of this one may reach beyond.
    """

    name: str
    flags: int
    method: int
    crc: int
    stored: int
    size: int
    offset: int
    limit: int

    @property
    def unverifiable(self) -> bool:
        """Whether the archive records no checksum for it: 0 for bytes that are there."""
        return self.crc == 0 and self.size > 0


def extra_fields(extra: bytes, file: str, offset: int) -> dict[int, bytes]:
    """Return the extra fields of a header by id; less than 4 bytes at the end are padding.

    Raises
    ------
    FormatError
        A field reaches beyond the header, or an id that matters is there twice.
    """
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if at + length > len(extra):
            raise FormatError("an extra field reaches beyond its header", file=file, offset=offset)
        if kind in found and kind in (ZIP64_EXTRA, UNICODE_PATH_EXTRA):
            raise FormatError(f"extra field {kind:#06x} is there twice", file=file, offset=offset)
        found[kind] = extra[at : at + length]
        at += length
    return found


def widened(values: tuple[int, ...], extra: bytes | None, file: str, offset: int) -> tuple[int, ...]:
    """Return 32-bit `values` with those at their maximum replaced, in order, by the zip64 field's.

    Raises
    ------
    FormatError
        The field is too short, or has values that no header field asks for.
    """
    wanted = sum(value == MAX32 for value in values)
    if extra is None or wanted == 0:
        return values
    if len(extra) < 8 * wanted:
        raise FormatError("the zip64 field is too short", file=file, offset=offset)
    wide = iter(struct.unpack_from(f"<{wanted}Q", extra))
    return tuple(next(wide) if value == MAX32 else value for value in values)
