"""The canonical bytes of one row of an opened checkpoint, verified when they are handed out.

Each chunk is compared with its digest once where it is mapped, and at every read where it is copied. Only the
chunks that a range crosses are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import ChecksumError, FormatError, StorageError
from ckptfmt.format.codecs import decode_chunk, plane_width
from ckptfmt.format.constants import CHUNK, DIGEST
from ckptfmt.format.digests import chunk_digest, tensor_digest
from ckptfmt.format.planning import chunk_count
from ckptfmt.tree.paths import display
from ckptfmt.tree.source import copy_bytes

if TYPE_CHECKING:
    from ckptfmt.format.rows import TensorRow
    from ckptfmt.parallel.opened import OpenedCheckpoint
    from ckptfmt.storage.reader import FileReader

__all__ = ["RowSource"]

_UNLIKELY = 64  # bits: two digests of different data are this near with a chance of 2^-55


class RowSource:
    """The canonical bytes of one row, verified when they are handed out.

    Parameters
    ----------
    opened : OpenedCheckpoint
    row : TensorRow
    verify : bool
        Whether to compare digests; each chunk once where it is mapped, at every read where it is copied.
    """

    __slots__ = ("_digests", "_looked", "_opened", "_problem", "_row", "_shown", "_stored", "_trusted")

    def __init__(self, opened: OpenedCheckpoint, row: TensorRow, *, verify: bool) -> None:
        self._opened = opened
        self._row = row
        self._trusted: bytearray | None = None if verify else bytearray(b"\x01") * chunk_count(row.nbytes)
        self._digests: bytes | None = None
        self._stored: list[tuple[int, int, bytes]] | None = None
        self._shown = False
        self._looked = False
        self._problem: FormatError | StorageError | None = None

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes of a raw row after verifying the chunks they lie in."""
        data = self._view(start, stop)
        self._shown = self._shown or data is not None
        return data

    def _view(self, start: int, stop: int) -> memoryview | None:
        row = self._row
        if row.codec != "raw" or start == stop:
            return None
        reader = self._opened.shard(row.shard)
        base = self._opened.header_sizes[row.shard] + row.offset
        data = reader.view(base + start, stop - start)
        if data is None:
            return None
        if stop - start > CHUNK and not self._trusts_all():
            reader.prefetch(base + start, stop - start)
        if self._trusted is None and stop - start == row.nbytes <= CHUNK:
            self._opened.check_header(row.shard)
            self.check(0, data)
            self._trusted = bytearray(b"\x01")
            return data
        for index in range(start // CHUNK, (stop - 1) // CHUNK + 1):
            if not self._is_trusted(index):
                self._verify_mapped(reader, base, index)
        return data

    def _trusts_all(self) -> bool:
        return self._trusted is not None and all(self._trusted)

    def _is_trusted(self, index: int) -> bool:
        if self._trusted is None:
            self._opened.check_header(self._row.shard)
            self._trusted = bytearray(chunk_count(self._row.nbytes))
        return bool(self._trusted[index])

    def _verify_mapped(self, reader: FileReader, base: int, index: int) -> None:
        start, stop = index * CHUNK, min((index + 1) * CHUNK, self._row.nbytes)
        data = reader.view(base + start, stop - start)
        if data is None or self._trusted is None:
            raise AssertionError(index)
        self.check(index, data)
        self._trusted[index] = 1

    def check(self, index: int, data: memoryview | bytes) -> None:
        """Compare a chunk with its digest.

        Raises
        ------
        ChecksumError
            They differ (R-051, R-052).
        """
        row, found = self._row, chunk_digest(data)
        if row.chunks is None:
            good = tensor_digest(row.dtype.name, row.shape, found) == row.digest
        else:
            if self._digests is None:
                self._digests = self._opened.digests_of(row)
            good = found == self._digests[index * DIGEST : (index + 1) * DIGEST]
        if not good:
            raise ChecksumError(
                "the data does not match its digest",
                chunk=index,
                rule="R-052",
                file=self._opened.shard(row.shard).name,
                tensor=display(row.path),
                offset=self.offset_of(index),
            )
        if row.dtype.packed and data:
            self._check_padding(index, data)

    def _check_empty(self) -> None:
        row = self._row
        if tensor_digest(row.dtype.name, row.shape, b"") != row.digest:
            raise ChecksumError(
                "an empty tensor that does not match its digest",
                rule="R-052",
                file=self._opened.shard(row.shard).name,
                tensor=display(row.path),
            )

    def _check_padding(self, index: int, data: memoryview | bytes) -> None:
        row = self._row
        used = math.prod(row.shape) * row.dtype.bits % 8
        if used and index == chunk_count(row.nbytes) - 1 and data[-1] >> used:
            raise FormatError(
                "padding bits that are not zero",
                rule="R-055",
                file=self._opened.shard(row.shard).name,
                tensor=display(row.path),
                offset=self.offset_of(index),
            )

    def problem(self) -> FormatError | StorageError | None:
        """Return what is wrong with the digests and lengths of the chunks themselves; looked at once."""
        if not self._looked:
            self._problem = self._look()
            self._looked = True
        return self._problem

    def _look(self) -> FormatError | StorageError | None:
        row = self._row
        if row.chunks is None:
            return None
        try:
            self._digests = self._opened.digests_of(row)
            if row.codec != "raw":
                self._places()
        except (FormatError, StorageError) as error:
            return error
        return None

    def verify_chunk(self, index: int, buffer: memoryview) -> None:
        """Compare a chunk as it lies in the file with its digests; also of an empty row.

        Parameters
        ----------
        index : int
        buffer : memoryview
            At least as long as the chunk; its content is lost.

        Raises
        ------
        FormatError
            As `check` and `decode`.
        """
        row = self._row
        if not row.nbytes:
            self._check_empty()
            return
        start, stop = index * CHUNK, min((index + 1) * CHUNK, row.nbytes)
        if row.codec != "raw":
            self.check(index, self.decode(index))
            return
        reader = self._opened.shard(row.shard)
        offset = self._opened.header_sizes[row.shard] + row.offset + start
        data = buffer[: stop - start]
        reader.readinto(offset, data)
        self.check(index, data)

    def offset_of(self, index: int) -> int:
        """Return where a chunk begins in its file."""
        row = self._row
        if row.codec == "raw":
            return self._opened.header_sizes[row.shard] + row.offset + index * CHUNK
        return self._places()[index][0]

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out` with verified bytes; where bytes were mapped and handed out, as they are there now."""
        shown = self._view(start, start + len(out)) if self._shown else None
        if shown is not None:
            copy_bytes(out, shown)
            return
        done = 0
        while done < len(out):
            index, within = divmod(start + done, CHUNK)
            length = min(CHUNK, self._row.nbytes - index * CHUNK)
            count = min(length - within, len(out) - done)
            piece = out[done : done + count]
            if count == length:
                self._read_chunk(index, piece)
            else:
                self._read_part(index, within, length, piece)
            done += count

    def _read_part(self, index: int, within: int, length: int, piece: memoryview) -> None:
        start = index * CHUNK + within
        mapped = self._view(start, start + len(piece))
        if mapped is not None:
            piece[:] = mapped
            return
        whole = np.empty(length, np.uint8).data
        self._read_chunk(index, whole)
        piece[:] = whole[within : within + len(piece)]

    def _read_chunk(self, index: int, out: memoryview) -> None:
        """Read one chunk into memory and verify it there."""
        row = self._row
        verify = not self._is_trusted(index)
        if row.codec == "raw":
            self._opened.shard(row.shard).readinto(self.offset_of(index), out)
        else:
            out[:] = self.decode(index, verify=verify)
        if verify:
            self.check(index, out)

    def _places(self) -> list[tuple[int, int, bytes]]:
        if self._stored is None:
            self._stored = self._opened.stored_chunks(self._row)
        return self._stored

    def decode(self, index: int, *, verify: bool = True) -> bytes | memoryview:
        """Return a chunk of a coded row, its stored bytes verified before they are decoded.

        Raises
        ------
        ChecksumError, FormatError
            The stored bytes do not match their digest (R-053), or do not decode to a chunk (R-054).
        """
        row = self._row
        offset, size, digest = self._places()[index]
        stored = np.empty(size, np.uint8).data
        reader = self._opened.shard(row.shard)
        reader.readinto(offset, stored)
        if verify and (found := chunk_digest(stored)) != digest:
            raise self._stored_error(index, found)
        length = min(CHUNK, row.nbytes - index * CHUNK)
        try:
            return decode_chunk(row.codec, stored, length, plane_width(row.dtype.name))
        except FormatError as error:
            raise error.located(file=reader.name, tensor=display(row.path), offset=offset) from None

    def _stored_error(self, index: int, found: bytes) -> ChecksumError:
        """Return the error of stored bytes and a digest that do not match: one of the two is damaged.

        Damaged data has a digest that has nothing in common with the recorded one, half of the bits in the
        mean; one that differs in few bits is a damaged record of it, in ``chunks.bin``.
        """
        row, (offset, _, digest) = self._row, self._places()[index]
        file, message = self._opened.shard(row.shard).name, "the stored data does not match its digest"
        apart = (int.from_bytes(found, "big") ^ int.from_bytes(digest, "big")).bit_count()
        if apart < _UNLIKELY and row.stored is None:
            message = "the digest of the stored data is damaged"
            file, offset = self._opened.stored_digest_at(row, index)
        where = display(row.path)
        return ChecksumError(message, rule="R-053", file=file, tensor=where, offset=offset, chunk=index)
