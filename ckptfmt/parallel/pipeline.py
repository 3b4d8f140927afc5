"""Digest, code and write the data of a plan with threads; memory is bounded by the threads, not the state.

Digests are taken from the very buffer that is written. Raw shards are written page by page at their
planned offsets; coded shards one after the other, since every offset depends on all lengths before.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptfmt.format.codecs import encode_chunk, plane_width
from ckptfmt.format.constants import ALIGNMENT, CHUNK, DIGEST
from ckptfmt.format.digests import chunk_digest, tensor_digest
from ckptfmt.format.planning import chunk_count
from ckptfmt.parallel.spans import SPAN, Piece, Span, spans
from ckptfmt.storage.files import aligned_buffer
from ckptfmt.tree.options import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckptfmt.format.planning import Plan, Row
    from ckptfmt.storage.files import DataFile
    from ckptfmt.tree.tensor import Tensor

__all__ = ["DEFAULT_THREADS", "DIRECT_FROM", "Progress", "Written", "thread_count", "write_data"]

DEFAULT_THREADS = 4
"""Writes kept in flight: fewer leave a fast disk idle."""
MAX_THREADS = 1024
"""More are a mistake: each has a buffer."""
DIRECT_FROM = 8 << 20
"""Bytes from which a shard is written past the page cache."""
_BUFFER = SPAN + CHUNK + 2 * ALIGNMENT
_APPEND = 4 << 20
_CODED_AHEAD = 32 << 20
"""Bytes of a coded shard that are on their way: results wait in memory for those before them."""


def thread_count(threads: int | None) -> int:
    """Return how many threads write or verify; by default at least four, at most the processors and eight.

    Raises
    ------
    OptionError
        It is no number of threads.
    """
    if threads is None:
        return max(DEFAULT_THREADS, min(8, os.cpu_count() or 1))
    return whole_number("threads", threads, 1, MAX_THREADS)


class Progress:
    """Counts bytes for a callback, which is called from one thread at a time.

    Parameters
    ----------
    callback : callable or None
        Called with bytes done and bytes in all.
    total : int
    """

    __slots__ = ("_callback", "_done", "_lock", "_total")

    def __init__(self, callback: Callable[[int, int], None] | None, total: int) -> None:
        self._callback = callback
        self._done = 0
        self._total = total
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Count bytes and tell."""
        if self._callback is None:
            return
        with self._lock:
            self._done += nbytes
            self._callback(self._done, self._total)


@dataclass(slots=True)
class Written:
    """What writing told of each row.

    Attributes
    ----------
    digests : list of bytes
        Tensor digests.
    chunks : list of bytearray
        Chunk digests, concatenated.
    stored : dict of int to bytearray
        Digests of the stored chunks of coded rows.
    lengths : dict of int to list of int
        Stored lengths of the chunks of coded rows.
    files : list of DataFile
        Written, neither synced nor closed.
    wanted_direct : list of DataFile
        Those for which direct I/O was tried; their `direct` tells whether it worked.
    """

    digests: list[bytes] = field(default_factory=list)
    chunks: list[bytearray] = field(default_factory=list)
    stored: dict[int, bytearray] = field(default_factory=dict)
    lengths: dict[int, list[int]] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    wanted_direct: list[DataFile] = field(default_factory=list)


def write_data(
    plan: Plan,
    tensors: Sequence[Tensor],
    create: Callable[[str, int | None, bool], DataFile],
    *,
    level: int,
    threads: int,
    direct: bool = True,
    progress: Progress,
) -> Written:
    """Write the data section of every shard.

    Parameters
    ----------
    plan : Plan
    tensors : sequence of Tensor
        For each row.
    create : callable
        Makes a data file from its name, its size if known, and whether direct I/O should be tried.
    level : int
        Of Zstandard, for coded shards.
    threads : int
    direct : bool
        Whether to try direct I/O for large shards.
    progress : Progress

    Raises
    ------
    StorageError, FormatError
        Writing failed, or reading a source did. No thread is left running.
    """
    written = Written(
        digests=[b""] * len(plan.rows),
        chunks=[bytearray(DIGEST * chunk_count(row.nbytes)) for row in plan.rows],
    )
    writer = _Writer(plan, tensors, written, level, progress)
    with ThreadPoolExecutor(threads, thread_name_prefix="ckptfmt") as pool:
        for shard in plan.shards:
            size = None if shard.coded else shard.header_size + shard.data_size
            wanted = direct and not shard.coded and shard.data_size >= DIRECT_FROM
            file = create(shard.name, size, wanted)
            written.files.append(file)
            if wanted:
                written.wanted_direct.append(file)
        _run_all(pool, writer.raw_jobs(), 4 * threads)
        for index, shard in enumerate(plan.shards):
            if shard.coded:
                writer.append_coded(pool, index)
    written.digests = [
        tensor_digest(row.dtype.name, row.shape, bytes(chunks))
        for row, chunks in zip(plan.rows, written.chunks, strict=True)
    ]
    return written


def _run_all(pool: ThreadPoolExecutor, jobs: Iterator[Callable[[], None]], ahead: int) -> None:
    """Run jobs with a bounded number waiting; after the first failure start no more, and raise it."""
    running: set[Future[None]] = set()
    try:
        for job in jobs:
            running.add(pool.submit(job))
            if len(running) >= ahead:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        for future in running:
            future.result()
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise


class _Writer:
    def __init__(
        self, plan: Plan, tensors: Sequence[Tensor], written: Written, level: int, progress: Progress
    ) -> None:
        self._plan = plan
        self._tensors = tensors
        self._written = written
        self._level = level
        self._progress = progress
        self._local = threading.local()

    def raw_jobs(self) -> Iterator[Callable[[], None]]:
        for index, shard in enumerate(self._plan.shards):
            if not shard.coded:
                for span in spans(self._plan, index):
                    yield lambda span=span: self._write_span(span)  # type: ignore[misc]

    def _buffer(self) -> memoryview:
        """Return this thread's page-aligned buffer."""
        made: memoryview | None = getattr(self._local, "buffer", None)
        if made is None:
            made = self._local.buffer = aligned_buffer(_BUFFER)
        return made

    def _write_span(self, span: Span) -> None:
        """Fill a buffer that lies in memory as its pages lie in the file; digest, then write from it."""
        buffer = self._buffer()
        base = span.begin - span.begin % ALIGNMENT
        place = self._fill(span, buffer, span.begin - base)
        for ordinal, _, start, stop in span.tail:
            self._tensors[ordinal].source.readinto(start, buffer[place : place + stop - start])
            place += stop - start
        if span.first_page < span.write_end:
            data = buffer[span.first_page - base : span.write_end - base]
            self._written.files[span.shard].write_at(span.first_page, data)
        self._progress.add(span.size)

    def _fill(self, span: Span, buffer: memoryview, place: int) -> int:
        tensors, chunks = self._tensors, self._written.chunks
        for ordinal, chunk, start, stop in span.pieces:
            end = place + stop - start
            piece = buffer[place:end]
            tensors[ordinal].source.readinto(start, piece)
            chunks[ordinal][chunk * DIGEST : (chunk + 1) * DIGEST] = chunk_digest(piece)
            place = end
        return place

    def append_coded(self, pool: ThreadPoolExecutor, index: int) -> None:
        """Code the chunks of a shard with all threads and append them in order."""
        shard = self._plan.shards[index]
        for ordinal in shard.rows:
            self._written.stored[ordinal] = bytearray(len(self._written.chunks[ordinal]))
            self._written.lengths[ordinal] = [0] * chunk_count(self._plan.rows[ordinal].nbytes)
        output = _Appender(self._written.files[index], shard.header_size)
        waiting: deque[Future[list[bytes]]] = deque()
        sizes: deque[int] = deque()
        try:
            for span in spans(self._plan, index):
                while waiting and sum(sizes) + span.size > _CODED_AHEAD:
                    sizes.popleft()
                    output.add(waiting.popleft().result())
                sizes.append(span.size)
                waiting.append(pool.submit(self._encode_span, span))
            while waiting:
                output.add(waiting.popleft().result())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        output.flush()

    def _encode_span(self, span: Span) -> list[bytes]:
        stored = [self._encode(piece) for piece in span.pieces]
        self._progress.add(span.size)
        return stored

    def _encode(self, place: Piece) -> bytes:
        ordinal, chunk, start, stop = place
        row: Row = self._plan.rows[ordinal]
        piece = self._buffer()[: stop - start]
        self._tensors[ordinal].source.readinto(start, piece)
        self._written.chunks[ordinal][chunk * DIGEST : (chunk + 1) * DIGEST] = chunk_digest(piece)
        data = encode_chunk(row.codec, piece, plane_width(row.dtype.name), level=self._level)
        data = bytes(data)  # the buffer is used again
        self._written.stored[ordinal][chunk * DIGEST : (chunk + 1) * DIGEST] = chunk_digest(data)
        self._written.lengths[ordinal][chunk] = len(data)
        return data


class _Appender:
    """Gathers small pieces into large writes at the end of a file."""

    def __init__(self, file: DataFile, offset: int) -> None:
        self._file = file
        self._offset = offset
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, parts: list[bytes]) -> None:
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size >= _APPEND:
            self.flush()

    def flush(self) -> None:
        if self._size:
            self._file.write_at(self._offset, b"".join(self._parts))
        self._offset += self._size
        self._parts, self._size = [], 0
