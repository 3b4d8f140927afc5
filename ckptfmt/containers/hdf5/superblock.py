"""Where an HDF5 file begins, which version it is, and where it says that it ends.

Read before the HDF5 library sees a file, without it: a file that is cut short, that is still open for writing
or that is of a newer version is told as that. Source: HDF5 File Format Specification 3.0, section II.A.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.errors import FormatError, TruncatedError, UnsupportedVersionError

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["SIGNATURE", "Superblock", "find_signature", "read_superblock"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""The first eight bytes, at offset 0 or at a power of two from 512 on."""

_FIRST_USER_BLOCK = 512
_WIDTH = 8  # of addresses and lengths; others are allowed, and nobody writes them
_LONGEST = 112
_ADDRESSES = {0: 24, 1: 28, 2: 12, 3: 12}
_NEWEST = max(_ADDRESSES)
_WRITING = 0x01 | 0x04  # open for writing, open for single-writer/multiple-reader access


@dataclass(frozen=True, slots=True)
class Superblock:
    """The head of an HDF5 file.

    Attributes
    ----------
    offset : int
        Where it stands: the size of the user block before it.
    version : int
    end : int
        Where the file must not end before, in bytes from the beginning of the user block.
    """

    offset: int
    version: int
    end: int


def find_signature(reader: ByteReader) -> int | None:
    """Return where the signature of an HDF5 file stands, or None where there is none."""
    at = 0
    while at + len(SIGNATURE) <= reader.size:
        if reader.read(at, len(SIGNATURE)) == SIGNATURE:
            return at
        at = max(_FIRST_USER_BLOCK, 2 * at)
    return None


def read_superblock(reader: ByteReader) -> Superblock:
    """Return the superblock of a file, checked against the size of the file.

    Raises
    ------
    FormatError
        There is no signature, or the file was not closed by who wrote it.
    TruncatedError
        The file ends within the superblock, or before the end that this records.
    UnsupportedVersionError
        A version later than 3, or addresses of a width that no writer uses.
    """
    offset = find_signature(reader)
    if offset is None:
        raise FormatError("no HDF5 signature", file=reader.name, offset=0)
    data = reader.read(offset, min(_LONGEST, reader.size - offset))
    version = data[8] if len(data) > 8 else -1
    if version > _NEWEST:
        message = f"an HDF5 superblock of version {version}; at most {_NEWEST} is read"
        raise UnsupportedVersionError(message, file=reader.name, offset=offset + 8)
    if version < 0 or len(data) < _ADDRESSES[version]:
        _cut_short(reader)
    if version == _NEWEST and data[11] & _WRITING:
        message = (
            "the file is open for writing, or its writer died: copy it when it is closed, or run h5clear -s"
        )
        raise FormatError(message, file=reader.name, offset=offset + 11)
    base, end = _addresses(reader, data, version)
    if end - base + offset > reader.size:
        _cut_short(reader, end - base + offset)
    return Superblock(offset, version, end - base + offset)


def _addresses(reader: ByteReader, data: bytes, version: int) -> tuple[int, int]:
    """Return the base address and the end of the file as the superblock has them."""
    widths = tuple(data[9:11] if version >= 2 else data[13:15])
    if widths != (_WIDTH, _WIDTH):
        message = f"HDF5 addresses and lengths of {widths} bytes; {_WIDTH} are read"
        raise UnsupportedVersionError(message, file=reader.name)
    start = _ADDRESSES[version]
    if len(data) < start + 4 * _WIDTH:
        _cut_short(reader)
    base, _, end, _ = struct.unpack_from("<QQQQ", data, start)
    return base, end


def _cut_short(reader: ByteReader, end: int | None = None) -> NoReturn:
    of = "" if end is None else f" of {end}"
    message = f"an HDF5 file that is cut short after {reader.size} bytes{of}: download or copy it again"
    raise TruncatedError(message, file=reader.name, offset=reader.size)
