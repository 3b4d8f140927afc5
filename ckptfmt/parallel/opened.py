"""An opened checkpoint: its manifest, and its files held open.

All files are opened through the directory's own descriptor when the checkpoint is opened, so that an
overwrite elsewhere cannot mix two checkpoints. Nothing of the data is read before it is asked for.
"""

from __future__ import annotations

import stat
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import (
    ChecksumError,
    CkptError,
    FormatError,
    LimitError,
    MissingFileError,
    NotFoundError,
    StorageError,
    TruncatedError,
)
from ckptfmt.format.constants import CHUNK, CHUNKS, DIGEST, MANIFEST, MAX_MANIFEST
from ckptfmt.format.digests import chunk_digest, tensor_digest
from ckptfmt.format.header import check_owner, encode_header
from ckptfmt.format.manifest import decode_manifest, shard_entries
from ckptfmt.format.planning import chunk_count
from ckptfmt.storage.recovery import locate
from ckptfmt.tree.paths import display

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ckptfmt.format.manifest import Manifest
    from ckptfmt.format.rows import TensorRow
    from ckptfmt.storage.directory import Directory
    from ckptfmt.storage.reader import FileReader

__all__ = ["OpenedCheckpoint", "open_checkpoint", "open_listed", "read_manifest"]


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
            "the directory is no checkpoint: it has no manifest",
            rule="R-001",
            file=directory.joined(MANIFEST),
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
    directory = _directory(path)
    with ExitStack() as undo:
        undo.callback(directory.close)
        opened = OpenedCheckpoint(read_manifest(directory), directory)
        undo.callback(opened.close)
        opened.open_files(mapped=mapped)
        undo.pop_all()
    return opened


def _directory(path: str | os.PathLike[str]) -> Directory:
    try:
        return locate(path)
    except NotFoundError:
        raise
    except StorageError as error:
        if not Path(path).is_file():
            raise
        message = (
            "is a file: our own checkpoints are directories; `ckptfmt.read` reads files of other formats"
        )
        raise FormatError(message, rule="R-001", file=error.file) from None


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
    mapped : bool
        Whether raw data is mapped, rather than read into memory.
    """

    def __init__(self, manifest: Manifest, directory: Directory) -> None:
        self.manifest = manifest
        self.directory = directory
        self.mapped = True
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
        self.mapped = mapped
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

    def stored_digest_at(self, row: TensorRow, index: int) -> tuple[str, int]:
        """Return the file and offset of the digest of a stored chunk of a row of more than one."""
        chunks = self._there(self._chunks, CHUNKS)
        return chunks.name, (row.chunks or 0) + DIGEST * (chunk_count(row.nbytes) + index)

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
