"""Archives of stored, aligned members whose bytes depend on nothing but names and data.

Dates are fixed at 1980-01-01, no attribute is set, and every member's data begins at a multiple of the
alignment, by a padding field in its local header. zip64 records are written where sizes need them.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO

from ckptfmt.containers.zip import records

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ZipWriter"]

_DATE = 0x0021  # 1980-01-01, the first that the format can express
_VERSION, _VERSION64 = 20, 45
_PADDING_ID = b"FB"
_SMALL = 64 << 10


class ZipWriter:
    """Writes an archive front to back; `close` ends it.

    Parameters
    ----------
    file : binary file
        Empty and writable; seekable unless `descriptors` is set. Not closed here.
    descriptors : bool
        Whether sizes and checksums follow the data, as PyTorch's own writer has it: its loader can be told
        to compute offsets under that assumption. Otherwise they stand in the local header, which the
        simplest readers need.
    alignment : int
        Of each member's data, in bytes.
    """

    def __init__(self, file: BinaryIO, *, descriptors: bool = False, alignment: int = 64) -> None:
        self._file = file
        self._descriptors = descriptors
        self._alignment = alignment
        self._at = 0
        self._directory: list[bytes] = []
        self._names: set[str] = set()

    def add(self, name: str, size: int, pieces: Iterable[bytes | memoryview]) -> int:
        """Write a member of exactly `size` bytes, given in pieces; return its checksum.

        Raises
        ------
        ValueError
            The name was used before or is too long, or the pieces are not `size` bytes.
        """
        encoded = name.encode()
        if name in self._names or len(encoded) > records.MAX16:
            raise ValueError(f"member {name[:80]!r} is there already, or its name is too long")
        self._names.add(name)
        if size <= _SMALL and not self._descriptors:
            data = b"".join(pieces)
            return self._add(encoded, size, (data,), zlib.crc32(data))
        return self._add(encoded, size, pieces, None)

    def _add(
        self, name: bytes, size: int, pieces: Iterable[bytes | memoryview], known_crc: int | None
    ) -> int:
        offset = self._at
        deferred = self._descriptors and size > 0
        flags = records.FLAG_UTF8 | (records.FLAG_DESCRIPTOR if deferred else 0)
        self._write(self._local_header(name, flags, 0 if deferred else size, known_crc or 0, size))
        crc = self._copy(pieces, size)
        if deferred:
            form = "<4sLQQ" if size >= records.MAX32 else "<4sLLL"
            self._write(struct.pack(form, records.DESCRIPTOR_MAGIC, crc, size, size))
        elif known_crc is None and crc:
            self._file.seek(offset + 14)
            self._file.write(struct.pack("<L", crc))
            self._file.seek(self._at)
        self._directory.append(_central_entry(name, flags, crc, size, offset))
        return crc

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)

    def _copy(self, pieces: Iterable[bytes | memoryview], size: int) -> int:
        crc = done = 0
        for piece in pieces:
            self._file.write(piece)
            crc = zlib.crc32(piece, crc)
            done += len(piece)
        if done != size:
            raise ValueError(f"{done} bytes where {size} were announced")
        self._at += done
        return crc

    def _local_header(self, name: bytes, flags: int, told: int, crc: int, size: int) -> bytes:
        """Return a local header; `told` is the size that it tells, `size` the one that is to come."""
        wide = size >= records.MAX32
        extra = struct.pack("<2H2Q", records.ZIP64_EXTRA, 16, told, told) if wide else b""
        end = self._at + records.LOCAL.size + len(name) + len(extra) + 4
        padding = -end % self._alignment
        extra += _PADDING_ID + struct.pack("<H", padding) + b"Z" * padding
        shown = records.MAX32 if wide else told
        version = _VERSION64 if wide else _VERSION
        head = records.LOCAL.pack(
            records.LOCAL_MAGIC, version, flags, 0, 0, _DATE, crc, shown, shown, len(name), len(extra)
        )
        return head + name + extra

    def close(self) -> None:
        """Write the directory and the end records."""
        offset, count = self._at, len(self._directory)
        directory = b"".join(self._directory)
        self._write(directory)
        size = len(directory)
        if count >= records.MAX16 or offset >= records.MAX32 or size >= records.MAX32:
            at = self._at
            versions = (_VERSION64, _VERSION64)
            end64 = (records.END64_MAGIC, 44, *versions, 0, 0, count, count, size, offset)
            self._write(records.END64.pack(*end64))
            self._write(records.LOCATOR.pack(records.LOCATOR_MAGIC, 0, at, 1))
        count = min(count, records.MAX16)
        size, offset = min(size, records.MAX32), min(offset, records.MAX32)
        self._write(records.END.pack(records.END_MAGIC, 0, 0, count, count, size, offset, 0))


def _central_entry(name: bytes, flags: int, crc: int, size: int, offset: int) -> bytes:
    wide = [value for value in (size, size, offset) if value >= records.MAX32]
    extra = struct.pack(f"<2H{len(wide)}Q", records.ZIP64_EXTRA, 8 * len(wide), *wide) if wide else b""
    version = _VERSION64 if wide else _VERSION
    size, offset = min(size, records.MAX32), min(offset, records.MAX32)
    sizes = (crc, size, size, len(name), len(extra), 0)
    head = records.CENTRAL.pack(
        records.CENTRAL_MAGIC, version, version, flags, 0, 0, _DATE, *sizes, 0, 0, 0, offset
    )
    return head + name + extra
