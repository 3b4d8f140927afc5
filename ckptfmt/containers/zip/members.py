"""The bytes of one member of an archive, as a reader.

A member's checksum is verified before any of its bytes are handed out, once; bytes that were replaced
in the file afterwards are not noticed. Deflated members are inflated as they are asked for, piece
by piece, and never to more than their declared size.
"""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.zip.checksum import crc32
from ckptfmt.errors import ChecksumError, FormatError
from ckptfmt.storage.reader import check_range
from ckptfmt.storage.slices import SliceReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.containers.zip.records import Entry
    from ckptfmt.storage.reader import ByteReader

__all__ = ["DeflatedMember", "Member", "StoredMember"]

_PIECE = 4 << 20
_INFLATED_PIECE = 1 << 20
_PEEKED_PIECE = 64 << 10


class Member(ABC):
    """What both kinds of member share: a name, a size, and a checksum that is verified once.

    Parameters
    ----------
    reader : ByteReader
        The archive.
    entry : Entry
    start : int
        Where the member's bytes begin in the archive.
    """

    def __init__(self, reader: ByteReader, entry: Entry, start: int) -> None:
        self.name = f"{reader.name}: {entry.name}"
        self.size = entry.size
        self._reader = reader
        self._entry = entry
        self._start = start
        self._verified = entry.size == entry.stored == entry.crc == 0
        self._lock = threading.RLock()

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes.

        Raises
        ------
        TruncatedError
            The member has not that many.
        ChecksumError
            The member's bytes are not those that were written.
        FormatError
            The member cannot be inflated to its declared size.
        """
        check_range(self, offset, length)
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    @abstractmethod
    def peek(self, length: int) -> bytes:
        """Return the first bytes, at most `length`, before anything is verified.

        For a look at what a large member is; what is read afterwards is verified as ever.
        """

    @abstractmethod
    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`; errors as `read`."""

    @abstractmethod
    def view(self, offset: int, length: int) -> memoryview | None:
        """Return bytes without a copy, or None; errors as `read`."""

    def _accept(self, crc: int) -> None:
        """Compare the checksum of all bytes with the recorded one; 0 means that none was recorded."""
        if crc != self._entry.crc and not self._entry.unverifiable:
            message = f"checksum {crc:08x} where {self._entry.crc:08x} was recorded: the bytes have changed"
            raise ChecksumError(message, file=self.name, offset=self._start)
        self._verified = True


class StoredMember(Member):
    """A member whose bytes lie in the archive as they are."""

    def peek(self, length: int) -> bytes:
        """Return the first bytes as they lie there."""
        return self._reader.read(self._start, min(length, self.size))

    def verify(self) -> None:
        """Read the whole member and compare its checksum, unless that was done.

        Raises
        ------
        ChecksumError
            It does not match.
        """
        self._verify()

    def unverified(self) -> ByteReader:
        """Return a reader of the same bytes that compares no checksum.

        For a large member that is a file of many parts: its checksum is that of all of it, and comparing that
        before the first part is read would be reading all of it.
        """
        return SliceReader(self._reader, self._start, self.size, name=self.name)

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`, reading the whole member first unless it was verified before."""
        check_range(self, offset, len(out))
        if self._verified or len(out) < self.size:
            self._verify()
            self._reader.readinto(self._start + offset, out)
            return
        self._reader.readinto(self._start, out)
        self._accept(crc32(out))

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return the archive's own mapped bytes."""
        check_range(self, offset, length)
        data = self._reader.view(self._start + offset, length)
        if data is not None:  # else whoever asks reads, and verifies then
            self._verify()
        return data

    def _verify(self) -> None:
        with self._lock:
            if self._verified or self._entry.unverifiable:
                return
            mapped = self._reader.view(self._start, self.size)
            self._accept(self._crc() if mapped is None else crc32(mapped))

    def _crc(self) -> int:
        crc = 0
        buffer = memoryview(bytearray(min(_PIECE, self.size)))
        for at in range(0, self.size, _PIECE):
            piece = buffer[: min(_PIECE, self.size - at)]
            self._reader.readinto(self._start + at, piece)
            crc = crc32(piece, crc)
        return crc


class DeflatedMember(Member):
    """A member whose bytes are inflated on the way.

    Reading front to back keeps no more than a piece in memory. Reading in any other order keeps the
    inflated member, once, for as long as this reader is kept.
    """

    def __init__(self, reader: ByteReader, entry: Entry, start: int) -> None:
        super().__init__(reader, entry, start)
        self._held: memoryview | None = None
        self._pieces: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")
        self._position = -1

    def peek(self, length: int) -> bytes:
        """Return what the first of the deflated bytes inflate to, at most a MiB."""
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        length = min(length, self.size, _INFLATED_PIECE)
        stored = self._reader.read(self._start, min(_PEEKED_PIECE, self._entry.stored))
        try:
            return engine.decompress(stored, max(1, length))[:length]
        except zlib.error as error:
            raise FormatError(f"cannot be inflated: {error}", file=self.name, offset=self._start) from None

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fill `out`, going on from the last call where that is possible."""
        check_range(self, offset, len(out))
        with self._lock:
            self._verify(whole=len(out) == self.size)
            if self._held is None and offset not in (0, self._position):
                self._held = self._inflate_all()
            if self._held is not None:
                out[:] = self._held[offset : offset + len(out)]
                return
            if offset == 0:
                self._restart()
            self._position = -1  # until this pass has come through
            self._take(out)
            self._position = offset + len(out)

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return bytes of the inflated member where it is kept."""
        check_range(self, offset, length)
        held = self._held
        return None if held is None else held[offset : offset + length]

    def _restart(self) -> None:
        self._pieces, self._rest = self._inflated(), memoryview(b"")

    def _verify(self, *, whole: bool) -> None:
        """Inflate everything once before a part is handed out; a whole read verifies itself."""
        if not self._verified and not whole:
            for _ in self._inflated():
                pass

    def _take(self, out: memoryview) -> None:
        done = 0
        while done < len(out):
            if not self._rest:
                self._rest = next(self._pieces)
            count = min(len(self._rest), len(out) - done)
            out[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        if done == self.size:  # past the last piece lie the checks
            for _ in self._pieces:
                pass

    def _inflate_all(self) -> memoryview:
        whole = np.empty(self.size, np.uint8).data
        done = 0
        for piece in self._inflated():
            whole[done : done + len(piece)] = piece
            done += len(piece)
        return whole

    def _inflated(self) -> Iterator[memoryview]:
        """Yield the member's bytes in pieces; the size and the checksum are checked on the way."""
        produced = crc = 0
        for piece in self._raw_pieces():
            produced += len(piece)
            if produced > self.size:
                raise FormatError(f"inflates to more than the declared {self.size} bytes", file=self.name)
            crc = crc32(piece, crc)
            yield memoryview(piece)
        if produced != self.size:
            message = f"inflates to {produced} bytes where {self.size} are declared"
            raise FormatError(message, file=self.name, offset=self._start)
        self._accept(crc)

    def _raw_pieces(self) -> Iterator[bytes]:
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for at in range(0, self._entry.stored, _PIECE):
                length = min(_PIECE, self._entry.stored - at)
                pending = self._reader.read(self._start + at, length)
                while pending and not engine.eof:
                    yield engine.decompress(pending, _INFLATED_PIECE)
                    pending = engine.unconsumed_tail
                if engine.eof and (engine.unused_data or at + length < self._entry.stored):
                    raise FormatError("bytes follow the end of the deflated data", file=self.name)
            while not engine.eof:
                piece = engine.decompress(b"", _INFLATED_PIECE)
                if not piece:
                    break
                yield piece
        except zlib.error as error:
            message = f"cannot be inflated: {error}"
            raise FormatError(message, file=self.name, offset=self._start) from None
        if not engine.eof:
            raise FormatError("the deflated data ends too early", file=self.name, offset=self._start)
