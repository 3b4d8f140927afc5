"""Archives of aligned members whose bytes depend on nothing but names and data.

Dates are fixed at 1980-01-01, no attribute is set, and every member's data begins at a multiple of the
alignment, by a padding field in its local header. zip64 records are written where sizes need them. Members
are stored, or deflated on request; the bytes of deflated ones depend on the version of zlib, too.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO

from ckptfmt.containers.zip import records
from ckptfmt.containers.zip.archive import MAX_RATIO
from ckptfmt.containers.zip.checksum import crc32
from ckptfmt.containers.zip.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
        encoded = self._claimed(name)
        if size <= _SMALL and not self._descriptors:
            data = b"".join(pieces)
            return self._add(encoded, size, (data,), crc32(data))
        return self._add(encoded, size, pieces, None)

    def add_deflated(self, name: str, size: int, pieces: Callable[[], Iterable[bytes | memoryview]]) -> int:
        """Write a member deflated; stored where that does not shrink it, or shrinks it as only a bomb does.

        Parameters
        ----------
        name, size
            As for `add`; errors and result, too.
        pieces : callable
            Gives the bytes; called a second time if the member is stored after all.
        """
        encoded = self._claimed(name)
        offset = self._at
        flags = records.FLAG_UTF8
        wide = size + size // 1000 + 64 >= records.MAX32  # room for what cannot be deflated
        self._write(self._local_header(encoded, flags, size, 0, wide=wide, method=records.DEFLATED))
        start = self._at
        crc = self._deflate(pieces(), size)
        stored = self._at - start
        if not stored < size <= MAX_RATIO * stored:
            self._file.seek(offset)
            self._file.truncate()
            self._at = offset
            return self._add(encoded, size, pieces(), None)
        self._file.seek(offset)
        self._file.write(
            self._local_header(
                encoded, flags, size, crc, wide=wide, method=records.DEFLATED, stored=stored, at=offset
            )
        )
        self._file.seek(self._at)
        self._directory.append(_central_entry(encoded, flags, crc, size, offset, stored=stored))
        return crc

    def add_written(self, name: str, write: Callable[[Window], object], *, most: int) -> int:
        """Write a member whose bytes `write` puts into a window, in any order; return its checksum.

        Parameters
        ----------
        name : str
        write : callable
            Is given the window, which begins empty.
        most : int
            A length that the member has at most, which decides how wide its header is.

        Raises
        ------
        ValueError
            As `add`; also where the member is longer than `most`.
        """
        encoded = self._claimed(name)
        offset, flags, wide = self._at, records.FLAG_UTF8, most >= records.MAX32
        self._write(self._local_header(encoded, flags, 0, 0, wide=wide))
        window = Window(self._file, self._at)
        write(window)
        size, crc = window.end(), 0
        if size > most:
            raise ValueError(f"{size} bytes where at most {most} were announced")
        for piece in window.pieces():
            crc = crc32(piece, crc)
        self._file.seek(offset)
        self._file.write(self._local_header(encoded, flags, size, crc, wide=wide, at=offset))
        self._at += size
        self._file.seek(self._at)
        self._directory.append(_central_entry(encoded, flags, crc, size, offset, stored=None))
        return crc

    def _deflate(self, pieces: Iterable[bytes | memoryview], size: int) -> int:
        engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        crc = done = 0
        for piece in pieces:
            self._write(engine.compress(piece))
            crc = crc32(piece, crc)
            done += len(piece)
        self._write(engine.flush())
        if done != size:
            raise ValueError(f"{done} bytes where {size} were announced")
        return crc

    def _claimed(self, name: str) -> bytes:
        encoded = name.encode()
        if name in self._names or len(encoded) > records.MAX16:
            raise ValueError(f"member {name[:80]!r} is there already, or its name is too long")
        self._names.add(name)
        return encoded

    def _add(
        self, name: bytes, size: int, pieces: Iterable[bytes | memoryview], known_crc: int | None
    ) -> int:
        offset = self._at
        deferred = self._descriptors and size > 0
        flags = records.FLAG_UTF8 | (records.FLAG_DESCRIPTOR if deferred else 0)
        wide = size >= records.MAX32
        self._write(self._local_header(name, flags, 0 if deferred else size, known_crc or 0, wide=wide))
        crc = self._copy(pieces, size)
        if deferred:
            form = "<4sLQQ" if size >= records.MAX32 else "<4sLLL"
            self._write(struct.pack(form, records.DESCRIPTOR_MAGIC, crc, size, size))
        elif known_crc is None and crc:
            self._file.seek(offset + 14)
            self._file.write(struct.pack("<L", crc))
            self._file.seek(self._at)
        self._directory.append(_central_entry(name, flags, crc, size, offset, stored=None))
        return crc

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)

    def _copy(self, pieces: Iterable[bytes | memoryview], size: int) -> int:
        crc = done = 0
        for piece in pieces:
            self._file.write(piece)
            crc = crc32(piece, crc)
            done += len(piece)
        if done != size:
            raise ValueError(f"{done} bytes where {size} were announced")
        self._at += done
        return crc

    def _local_header(
        self,
        name: bytes,
        flags: int,
        told: int,
        crc: int,
        *,
        wide: bool,
        method: int = records.STORED,
        stored: int | None = None,
        at: int | None = None,
    ) -> bytes:
        """Return a local header; `told` is the size that it tells, `wide` whether in 64 bits."""
        stored = told if stored is None else stored
        extra = struct.pack("<2H2Q", records.ZIP64_EXTRA, 16, told, stored) if wide else b""
        end = (self._at if at is None else at) + records.LOCAL.size + len(name) + len(extra) + 4
        padding = -end % self._alignment
        extra += _PADDING_ID + struct.pack("<H", padding) + b"Z" * padding
        sizes = (records.MAX32, records.MAX32) if wide else (stored, told)
        version = _VERSION64 if wide else _VERSION
        head = records.LOCAL.pack(
            records.LOCAL_MAGIC, version, flags, method, 0, _DATE, crc, *sizes, len(name), len(extra)
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


def _central_entry(name: bytes, flags: int, crc: int, size: int, offset: int, *, stored: int | None) -> bytes:
    """Return the directory's entry of a member, deflated to `stored` bytes unless that is None."""
    method = records.STORED if stored is None else records.DEFLATED
    stored = size if stored is None else stored
    wide = [value for value in (size, stored, offset) if value >= records.MAX32]
    extra = struct.pack(f"<2H{len(wide)}Q", records.ZIP64_EXTRA, 8 * len(wide), *wide) if wide else b""
    version = _VERSION64 if wide else _VERSION
    size, stored, offset = (min(value, records.MAX32) for value in (size, stored, offset))
    sizes = (crc, stored, size, len(name), len(extra), 0)
    head = records.CENTRAL.pack(
        records.CENTRAL_MAGIC, version, version, flags, method, 0, _DATE, *sizes, 0, 0, 0, offset
    )
    return head + name + extra
