"""An opened checkpoint: its manifest, its files held open, and reads that are verified chunk by chunk.

All files are opened through the directory's own descriptor when the checkpoint is opened, so that an
overwrite elsewhere cannot mix two checkpoints. Nothing of the data is read before it is asked for.
"""

from __future__ import annotations

import math
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import (
    ChecksumError,
    CkptError,
    FormatError,
    LimitError,
    MissingFileError,
    NotFoundError,
    TruncatedError,
)
from ckptfmt.format.codecs import decode_chunk, plane_width
from ckptfmt.format.constants import CHUNK, CHUNKS, DIGEST, MANIFEST, MAX_MANIFEST
from ckptfmt.format.digests import chunk_digest, tensor_digest
from ckptfmt.format.header import check_owner, encode_header
from ckptfmt.format.manifest import decode_manifest, shard_entries
from ckptfmt.format.planning import chunk_count
from ckptfmt.storage.directory import Directory
from ckptfmt.tree.paths import display

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ckptfmt.format.manifest import Manifest
    from ckptfmt.format.rows import TensorRow
    from ckptfmt.storage.reader import FileReader

__all__ = ["OpenedCheckpoint", "RowSource", "open_checkpoint", "open_listed", "read_manifest"]


def read_manifest(directory: Directory) -> Manifest:
    """Return the manifest of a directory.

    Raises
    ------
    MissingFileError
        There is none: the directory is no checkpoint.
    FormatError
        It breaks a rule.
    """
    try:
        reader = open_listed(directory, MANIFEST, rule="R-001")
    except MissingFileError:
        raise MissingFileError(
            f"the directory is no checkpoint: it has no {MANIFEST}", rule="R-001", file=directory.path
        ) from None
    with reader:
        if reader.size > MAX_MANIFEST:
            raise LimitError(f"a manifest of {reader.size} bytes", rule="R-015", file=reader.name)
        return decode_manifest(reader.read(0, reader.size), file=reader.name)


def open_listed(directory: Directory, name: str, *, rule: str = "R-002", mapped: bool = True) -> FileReader:
    """Open a file that must be in a checkpoint's directory.

    Raises
    ------
    MissingFileError
        It is not there.
    FormatError
        It is not a regular file.
    """
    status = directory.status(name)
    where = directory.joined(name)
    if status is None:
        raise MissingFileError("the file is missing", rule=rule, file=where)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("is not a regular file", rule="R-005", file=where)
    try:
        return directory.reader(name, mapped=mapped)
    except NotFoundError:
        raise MissingFileError("the file is missing", rule=rule, file=where) from None


def open_checkpoint(path: str | os.PathLike[str], *, mapped: bool = True) -> OpenedCheckpoint:
    """Open a checkpoint's directory.

    Parameters
    ----------
    path : str or os.PathLike
    mapped : bool
        Whether raw data is mapped; else it is read into memory and verified there.

    Raises
    ------
    MissingFileError, FormatError, StorageError
        It is none, or its manifest or the sizes of its files break a rule.
    """
    directory = Directory(path)
    try:
        opened = OpenedCheckpoint(read_manifest(directory), directory)
        opened.open_files(mapped=mapped)
    except BaseException:
        directory.close()
        raise
    return opened


class OpenedCheckpoint:
    """A checkpoint whose files are held open.

    Attributes
    ----------
    manifest : Manifest
    directory : Directory
    shards : list of FileReader or None
        None where the file is missing.
    header_sizes : list of int
        Bytes before each shard's data.
    """

    def __init__(self, manifest: Manifest, directory: Directory) -> None:
        self.manifest = manifest
        self.directory = directory
        self.shards: list[FileReader | None] = [None] * len(manifest.shards)
        self._chunks: FileReader | None = None
        sizes = [0] * len(manifest.shards)
        for row in manifest.rows:
            sizes[row.shard] += row.length
        self.header_sizes = [shard.size - size for shard, size in zip(manifest.shards, sizes, strict=True)]
        self._good_headers = bytearray(len(manifest.shards))

    def open_files(self, *, mapped: bool = True, tell: Callable[[CkptError], None] | None = None) -> None:
        """Open the shards and ``chunks.bin`` and check their sizes (R-002, R-005, R-040, R-050).

        Parameters
        ----------
        mapped : bool
        tell : callable, optional
            Called with each problem; without it, the first is raised.
        """
        for index, shard in enumerate(self.manifest.shards):
            with _telling(tell):
                self.shards[index] = open_listed(self.directory, shard.name, mapped=mapped)
                check_size(self.shard(index), shard.size, "R-040")
        if self.manifest.chunks_size:
            with _telling(tell):
                self._chunks = open_listed(self.directory, CHUNKS)
                check_size(self._chunks, self.manifest.chunks_size, "R-050")

    def shard(self, index: int) -> FileReader:
        """Return the open file of a shard.

        Raises
        ------
        MissingFileError
            It is not there.
        """
        return self._there(self.shards[index], self.manifest.shards[index].name)

    def _there(self, reader: FileReader | None, name: str) -> FileReader:
        if reader is None:
            raise MissingFileError("the file is missing", rule="R-002", file=self.directory.joined(name))
        return reader

    def check_header(self, index: int) -> None:
        """Check the header of a shard (R-041 to R-043), once for each.

        Raises
        ------
        ReplacedError
            The file belongs to another checkpoint.
        ChecksumError, FormatError
            It is damaged, or not what the manifest implies.
        """
        if self._good_headers[index]:
            return
        manifest, reader = self.manifest, self.shard(index)
        count = len(manifest.shards)
        size = self.header_sizes[index]
        header = reader.read(0, size)
        check_owner(header, manifest.root, index, count, file=reader.name)
        if chunk_digest(header) != manifest.shards[index].header:
            raise ChecksumError("the header is damaged", rule="R-041", file=reader.name, offset=0)
        implied = encode_header(manifest.root, index, count, shard_entries(manifest, index))
        if len(implied) != size:
            message = f"header and data take {reader.size - size + len(implied)} bytes, not {reader.size}"
            raise FormatError(message, rule="R-040", file=reader.name)
        if header != implied:
            raise FormatError("the header is not what the manifest implies", rule="R-042", file=reader.name)
        self._good_headers[index] = 1

    def digests_of(self, row: TensorRow) -> bytes:
        """Return the chunk digests of a row of more than one chunk, checked against its digest.

        Raises
        ------
        ChecksumError
            ``chunks.bin`` is damaged there (R-051).
        """
        if row.chunks is None:
            raise AssertionError(row)
        chunks = self._there(self._chunks, CHUNKS)
        digests = chunks.read(row.chunks, DIGEST * chunk_count(row.nbytes))
        if tensor_digest(row.dtype.name, row.shape, digests) != row.digest:
            raise ChecksumError(
                "the chunk digests do not give the tensor's digest",
                rule="R-051",
                file=chunks.name,
                offset=row.chunks,
                tensor=display(row.path),
            )
        return digests

    def stored_chunks(self, row: TensorRow) -> list[tuple[int, int, bytes]]:
        """Return offset in the file, length and digest of each stored chunk of a coded row.

        Raises
        ------
        FormatError
            The lengths are impossible (R-054).
        """
        begin = self.header_sizes[row.shard] + row.offset
        count = chunk_count(row.nbytes)
        if count <= 1:
            return [(begin, row.length, row.stored or b"")] * count
        if row.chunks is None:
            raise AssertionError(row)
        chunks = self._there(self._chunks, CHUNKS)
        data = chunks.read(row.chunks + DIGEST * count, (DIGEST + 8) * count)
        lengths = np.frombuffer(data, "<u8", count, DIGEST * count).tolist()
        last = row.nbytes - (count - 1) * CHUNK
        bounds = [CHUNK] * (count - 1) + [last]
        if sum(lengths) != row.length or not all(1 <= n <= m for n, m in zip(lengths, bounds, strict=True)):
            raise FormatError(
                "the stored lengths cannot be",
                rule="R-054",
                file=chunks.name,
                offset=row.chunks + 2 * DIGEST * count,
                tensor=display(row.path),
            )
        found = []
        for index, length in enumerate(lengths):
            found.append((begin, length, data[DIGEST * index : DIGEST * (index + 1)]))
            begin += length
        return found

    def close(self) -> None:
        """Close all files. Arrays that were handed out keep their bytes."""
        for reader in (*self.shards, self._chunks):
            if reader is not None:
                reader.close()
        self.directory.close()


@contextmanager
def _telling(tell: Callable[[CkptError], None] | None) -> Iterator[None]:
    try:
        yield
    except CkptError as error:
        if tell is None:
            raise
        tell(error)


def check_size(reader: FileReader, size: int, rule: str) -> None:
    """Raise unless a file has exactly the size it must have."""
    if reader.size < size:
        raise TruncatedError(
            f"the file has {reader.size} bytes of {size}", rule=rule, file=reader.name, offset=reader.size
        )
    if reader.size > size:
        raise FormatError(
            f"the file has {reader.size} bytes, where {size} belong", rule=rule, file=reader.name, offset=size
        )


class RowSource:
    """The canonical bytes of one row, verified when they are handed out.

    Parameters
    ----------
    opened : OpenedCheckpoint
    row : TensorRow
    verify : bool
        Whether to compare digests; each chunk once where it is mapped, at every read where it is copied.
    """

    __slots__ = ("_digests", "_opened", "_row", "_stored", "_trusted")

    def __init__(self, opened: OpenedCheckpoint, row: TensorRow, *, verify: bool) -> None:
        self._opened = opened
        self._row = row
        self._trusted: bytearray | None = None if verify else bytearray(b"\x01") * chunk_count(row.nbytes)
        self._digests: bytes | None = None
        self._stored: list[tuple[int, int, bytes]] | None = None

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes of a raw row after verifying the chunks they lie in."""
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
        """Fill `out` with verified bytes."""
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
        mapped = self.view(start, start + len(piece))
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
        if verify and chunk_digest(stored) != digest:
            raise ChecksumError(
                "the stored data does not match its digest",
                chunk=index,
                rule="R-053",
                file=reader.name,
                tensor=display(row.path),
                offset=offset,
            )
        length = min(CHUNK, row.nbytes - index * CHUNK)
        try:
            return decode_chunk(row.codec, stored, length, plane_width(row.dtype.name))
        except FormatError as error:
            raise error.located(file=reader.name, tensor=display(row.path), offset=offset) from None
