"""Find everything that is wrong with an opened checkpoint, chunk by chunk, with threads.

Problems are yielded as the errors they would be; nothing stops at the first. Memory is bounded by the
number of threads: data is mapped, or read a chunk at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from blake3 import blake3

from ckptfmt.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    MissingFileError,
    StorageError,
    TruncatedError,
)
from ckptfmt.format.constants import CHUNK, CHUNKS, MANIFEST, MAX_MANIFEST, PROVENANCE
from ckptfmt.format.digests import chunk_digest, tensor_digest
from ckptfmt.format.manifest import check_digests
from ckptfmt.format.planning import chunk_count
from ckptfmt.format.sealed import unseal
from ckptfmt.parallel.opened import check_size, open_listed
from ckptfmt.parallel.pipeline import Progress, thread_count
from ckptfmt.parallel.rowsource import RowSource
from ckptfmt.tree.canonical import MAX_NESTING, check_nesting
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptfmt.errors import CkptError
    from ckptfmt.format.rows import TensorRow
    from ckptfmt.parallel.opened import OpenedCheckpoint

__all__ = ["problems"]

_JOB_BYTES = 16 << 20
_READ = 4 << 20
_SMALL = 64 << 10
_local = threading.local()


def problems(
    opened: OpenedCheckpoint,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[CkptError]:
    """Yield everything that is wrong with a checkpoint beyond its manifest and the sizes of its shards.

    Directory entries (R-003), provenance (R-070), extra files (R-071), headers (R-041 to R-043), all
    chunks (R-051 to R-055), root and bag (R-060, R-061).

    Parameters
    ----------
    opened : OpenedCheckpoint
    threads : int, optional
    progress : callable, optional
        Called with bytes done and bytes in all.
    """
    yield from _entry_problems(opened)
    yield from _side_file_problems(opened)
    for index in range(len(opened.manifest.shards)):
        if opened.shards[index] is None:
            continue  # told when the files were opened
        try:
            opened.check_header(index)
        except (FormatError, StorageError) as error:
            yield error
    total = sum(row.nbytes for row in opened.manifest.rows)
    yield from _data_problems(opened, thread_count(threads), Progress(progress, total))
    yield from check_digests(opened.manifest)


def _entry_problems(opened: OpenedCheckpoint) -> Iterator[FormatError]:
    manifest = opened.manifest
    listed = {
        MANIFEST,
        PROVENANCE,
        *(s.name for s in manifest.shards),
        *(f.name for f in manifest.extra_files),
    }
    if manifest.chunks_size:
        listed.add(CHUNKS)
    for name in opened.directory.names():
        if name not in listed:
            rule = "R-050" if name == CHUNKS else "R-003"
            message = "the file does not belong to the checkpoint"
            yield FormatError(message, rule=rule, file=opened.directory.joined(name))


def _side_file_problems(opened: OpenedCheckpoint) -> Iterator[CkptError]:
    try:
        with open_listed(opened.directory, PROVENANCE) as reader:
            if reader.size > MAX_MANIFEST:
                raise LimitError(f"a file of {reader.size} bytes", rule="R-015", file=reader.name)
            data = reader.read(0, reader.size)
            check_nesting(unseal(data, file=reader.name, form="R-070", digest="R-070"), MAX_NESTING)
    except (FormatError, StorageError) as error:
        yield error
    for extra in opened.manifest.extra_files:
        try:
            with open_listed(opened.directory, extra.name) as reader:
                check_size(reader, extra.size, "R-071")
                hasher = blake3()
                for start in range(0, extra.size, _READ):
                    hasher.update(reader.read(start, min(_READ, extra.size - start)))
                if hasher.digest() != extra.digest:
                    raise ChecksumError("the file does not match its digest", rule="R-071", file=reader.name)
        except (FormatError, StorageError) as error:
            yield error


class _Part(NamedTuple):
    """Some chunks of a row."""

    ordinal: int
    first: int
    last: int


def _jobs(opened: OpenedCheckpoint) -> Iterator[list[_Part]]:
    """Yield lists of parts of about 16 MiB each, in the order in which they lie in the shards."""
    job: list[_Part] = []
    size = 0
    step = _JOB_BYTES // CHUNK
    rows = opened.manifest.rows
    there = (ordinal for ordinal, row in enumerate(rows) if opened.shards[row.shard] is not None)
    for ordinal in sorted(there, key=lambda ordinal: rows[ordinal].shard):
        nbytes = rows[ordinal].nbytes
        for first in range(0, max(1, chunk_count(nbytes)), step):
            last = min(first + step, chunk_count(nbytes))
            job.append(_Part(ordinal, first, last))
            size += min(_JOB_BYTES, nbytes - first * CHUNK)
            if size >= _JOB_BYTES:
                yield job
                job, size = [], 0
    if job:
        yield job


def _data_problems(opened: OpenedCheckpoint, threads: int, progress: Progress) -> Iterator[CkptError]:
    sources: dict[int, RowSource] = {}
    rows = opened.manifest.rows
    with collector_paused():
        jobs = list(_jobs(opened))
    with ThreadPoolExecutor(threads, thread_name_prefix="ckptfmt") as pool:
        waiting: deque[Future[list[CkptError]]] = deque()
        try:
            for job in jobs:
                for part in job:
                    if chunk_count(rows[part.ordinal].nbytes) > _JOB_BYTES // CHUNK:  # shared by several jobs
                        sources.setdefault(part.ordinal, RowSource(opened, rows[part.ordinal], verify=True))
                waiting.append(pool.submit(_check_job, opened, sources, job, progress))
                if len(waiting) > 4 * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _check_job(
    opened: OpenedCheckpoint, sources: dict[int, RowSource], job: list[_Part], progress: Progress
) -> list[CkptError]:
    found: list[CkptError] = []
    rows = opened.manifest.rows
    buffer = _buffer()
    done = 0
    for ordinal, first, last in job:
        row = rows[ordinal]
        done += min(last * CHUNK, row.nbytes) - first * CHUNK
        if _is_small(row) and _small_is_good(opened, row):
            continue
        source = sources.get(ordinal) or RowSource(opened, row, verify=True)
        if (problem := source.problem()) is not None:  # so none of its chunks can be judged
            if first == 0 and not isinstance(problem, MissingFileError):  # which was told on opening
                found.append(_named(problem, row, "R-050"))
            continue
        for index in range(first, last) if row.nbytes else (0,):
            try:
                source.verify_chunk(index, buffer)
            except (FormatError, StorageError) as error:
                found.append(_named(error, row, "R-040"))
    progress.add(done)
    return found


def _named(error: FormatError | StorageError, row: TensorRow, short: str) -> CkptError:
    """Return an error with the tensor's name and, where a file ends too early, the rule that says so."""
    if isinstance(error, StorageError):
        return error
    return error.located(tensor=display(row.path), rule=short if isinstance(error, TruncatedError) else None)


def _buffer() -> memoryview:
    """Return this thread's room for a chunk: reading beats mapping for bytes that are looked at once."""
    made: memoryview | None = getattr(_local, "buffer", None)
    if made is None:
        made = _local.buffer = np.empty(CHUNK, np.uint8).data
    return made


def _is_small(row: TensorRow) -> bool:
    return row.codec == "raw" and 0 < row.nbytes < _SMALL and not row.dtype.packed


def _small_is_good(opened: OpenedCheckpoint, row: TensorRow) -> bool:
    """Compare a small raw tensor the quick way; whatever is not plainly good is looked at again."""
    reader = opened.shard(row.shard)
    offset = opened.header_sizes[row.shard] + row.offset
    if offset + row.nbytes > reader.size:
        return False
    data = reader.view(offset, row.nbytes)
    return data is not None and tensor_digest(row.dtype.name, row.shape, chunk_digest(data)) == row.digest
