"""Data of a bundle that is verified before any of it is handed out, once, however it is asked for.

A whole tensor is verified by what was read of it; a part has the whole verified first, piece by piece.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.crc32c import mask, update
from ckptfmt.errors import ChecksumError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.tree.source import pack

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.source import Source

__all__ = ["CheckedSource", "NarrowSource", "check_crc"]

_PIECE = 4 << 20
_CACHED = 1 << 20  # what is still in the processor's cache when its checksum is taken


def check_crc(crc: int, recorded: int, *, file: str, tensor: str, offset: int) -> None:
    """Raise ChecksumError unless a checksum is the recorded one, which is masked."""
    if mask(crc) != recorded:
        message = f"checksum {mask(crc):08x} where {recorded:08x} was recorded: the bytes have changed"
        raise ChecksumError(message, file=file, tensor=tensor, offset=offset)


class CheckedSource:
    """A range of a file with a checksum.

    Parameters
    ----------
    reader : ByteReader
    offset, length : int
        The range, checked against the reader's size here.
    crc : int
        The masked CRC-32C of its bytes.
    tensor : str
        What to call it in errors.
    """

    __slots__ = ("_crc", "_length", "_lock", "_offset", "_range", "_reader", "_tensor", "_verified")

    def __init__(self, reader: ByteReader, offset: int, length: int, *, crc: int, tensor: str) -> None:
        self._range = RangeSource(reader, offset, length)
        self._reader = reader
        self._offset = offset
        self._length = length
        self._crc = crc
        self._tensor = tensor
        self._lock = threading.Lock()
        self._verified = False
        if length == 0:
            self._accept(0)

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes.

        Raises
        ------
        ChecksumError
            The bytes are not those that were written.
        """
        self._verify()
        return self._range.view(start, stop)

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`; errors as `view`."""
        if self._verified or len(out) < self._length:
            self._verify()
            self._range.readinto(start, out)
            return
        crc = 0
        for at in range(0, len(out), _CACHED):
            part = out[at : at + _CACHED]
            self._range.readinto(at, part)
            crc = update(crc, part)
        self._accept(crc)

    def _accept(self, crc: int) -> None:
        check_crc(crc, self._crc, file=self._reader.name, tensor=self._tensor, offset=self._offset)
        self._verified = True

    def _verify(self) -> None:
        with self._lock:
            if self._verified:
                return
            mapped = self._reader.view(self._offset, self._length)
            self._accept(self._crc_of_pieces() if mapped is None else update(0, mapped))

    def _crc_of_pieces(self) -> int:
        crc = 0
        buffer = memoryview(bytearray(min(_PIECE, self._length)))
        for at in range(0, self._length, _PIECE):
            piece = buffer[: min(_PIECE, self._length - at)]
            self._reader.readinto(self._offset + at, piece)
            crc = update(crc, piece)
        return crc


class NarrowSource:
    """Packed elements from elements that lie one in a byte, in its lowest bits.

    Parameters
    ----------
    source : Source
        One byte for each element.
    count : int
        The number of elements.
    bits : int
        2 or 4.
    """

    __slots__ = ("_bits", "_count", "_source")

    def __init__(self, source: Source, count: int, bits: int) -> None:
        self._source = source
        self._count = count
        self._bits = bits

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - the protocol
        """Return None: packed bytes lie nowhere."""
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        """Read and pack the elements that make up the bytes from `start` on."""
        per_byte = 8 // self._bits
        piece = _PIECE // per_byte
        for at in range(0, len(out), piece):
            part = out[at : at + piece]
            first = (start + at) * per_byte
            codes = np.empty(min(len(part) * per_byte, self._count - first), np.uint8)
            self._source.readinto(first, codes.data)
            part[:] = pack(codes, self._bits).data
