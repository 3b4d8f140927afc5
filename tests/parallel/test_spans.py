"""Every page of a shard has one writer, the pages cover the file, and every chunk is digested once."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfmt.format.constants import ALIGNMENT, CHUNK
from ckptfmt.format.planning import Plan, PlanOptions, TensorSpec, chunk_count, plan
from ckptfmt.parallel.pipeline import DIRECT_FROM, Progress, Written, write_data
from ckptfmt.parallel.spans import SPAN, Span, spans
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.tensor import Tensor

FIXED = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
U8 = dtype("u8")


def sizes() -> st.SearchStrategy[list[int]]:
    """Lengths of tensors: tiny, odd, about a page, about a chunk, and several chunks."""
    near = st.sampled_from([0, 1, 7, ALIGNMENT, CHUNK, 2 * CHUNK, SPAN - ALIGNMENT, 3 * CHUNK])
    length = st.one_of(
        st.integers(0, 3 * ALIGNMENT),
        st.tuples(near, st.integers(-3, 3)).map(lambda pair: max(0, sum(pair))),
        st.integers(0, 2 * CHUNK).map(lambda n: n & -64),
    )
    return st.lists(length, max_size=12)


def planned(lengths: list[int], *, codec: str = "raw", shard_size: int | None = None) -> Plan:
    specs = [TensorSpec((f"t{i}",), U8, (n,)) for i, n in enumerate(lengths)]
    return plan(specs, PlanOptions(codec, shard_size))


def bytes_of(found: Span, *, tail: bool = False) -> int:
    return sum(piece.stop - piece.start for piece in (found.tail if tail else found.pieces))


@FIXED
@given(lengths=sizes(), shard_size=st.sampled_from([None, 1, 50_000, 6 << 20]))
def test_every_page_is_written_by_one_span_and_the_pages_cover_the_file(
    lengths: list[int], shard_size: int | None
) -> None:
    made = planned(lengths, shard_size=shard_size)
    for index, shard in enumerate(made.shards):
        end = shard.header_size
        for span in spans(made, index):
            if span.first_page >= span.write_end:  # lies in pages that began before it
                assert span.end <= end
                continue
            assert span.first_page == end
            assert span.first_page % ALIGNMENT == 0
            assert span.write_end % ALIGNMENT == 0 or span.write_end == shard.header_size + shard.data_size
            end = span.write_end
        assert end == shard.header_size + shard.data_size


@FIXED
@given(lengths=sizes(), codec=st.sampled_from(["raw", "zstd"]))
def test_spans_are_the_chunks_of_a_shard_in_order(lengths: list[int], codec: str) -> None:
    made = planned(lengths, codec=codec)
    for index, shard in enumerate(made.shards):
        found = spans(made, index)
        assert all(one.end == other.begin for one, other in pairwise(found))
        assert all(span.size == bytes_of(span) for span in found)
        assert all(SPAN <= span.size < SPAN + CHUNK for span in found[:-1])
        assert all(bytes_of(span, tail=True) < ALIGNMENT for span in found)
        chunks = [(piece.ordinal, piece.chunk) for span in found for piece in span.pieces]
        assert chunks == [
            (ordinal, chunk)
            for ordinal in shard.rows
            for chunk in range(chunk_count(made.rows[ordinal].nbytes))
        ]


class Numbered:
    """Bytes that tell where they are from."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def view(self, _start: int, _stop: int) -> memoryview | None:
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        out[:] = numbered(self._ordinal, start, start + len(out))


def numbered(ordinal: int, start: int, stop: int) -> bytes:
    turns = range(start // 251, stop // 251 + 1)
    row = bytes((ordinal + i) % 256 for i in range(251)) * len(turns)
    return row[start - 251 * turns[0] : stop - 251 * turns[0]]


class Recorder:
    """A data file in memory that counts how often each page was written."""

    def __init__(self, name: str, size: int | None, direct: bool) -> None:  # noqa: FBT001 - as it is called
        self.name, self.size, self.direct = name, size, direct
        self.data = bytearray(size or 0)
        self.pages: list[int] = []
        self._lock = threading.Lock()

    def write_at(self, offset: int, data: memoryview | bytes) -> None:
        with self._lock:
            if self.direct:
                assert offset % ALIGNMENT == 0
                assert len(data) % ALIGNMENT == 0 or offset + len(data) == self.size
            if len(self.data) < offset + len(data):
                self.data += bytes(offset + len(data) - len(self.data))
            self.data[offset : offset + len(data)] = data
            self.pages += range(offset // ALIGNMENT, -(-(offset + len(data)) // ALIGNMENT))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_what_is_written_does_not_depend_on_threads(threads: int, codec: str) -> None:
    lengths = [5, 4096, 4100, CHUNK + 1, 2 * CHUNK, 0, *range(1000, 1040), CHUNK - 5]
    made = planned(lengths, codec=codec, shard_size=9 << 20)
    tensors = [Tensor(row.dtype, row.shape, Numbered(i)) for i, row in enumerate(made.rows)]
    seen: list[tuple[int, int]] = []
    progress = Progress(lambda done, total: seen.append((done, total)), sum(lengths))
    files: list[Recorder] = []

    def create(name: str, size: int | None, direct: bool) -> Recorder:  # noqa: FBT001 - as it is called
        files.append(Recorder(name, size, direct))
        return files[-1]

    written: Written = write_data(made, tensors, create, level=1, threads=threads, progress=progress)  # type: ignore[arg-type] # stands for a file
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (sum(lengths), sum(lengths))
    assert [file.direct for file in files] == [
        codec == "raw" and shard.data_size >= DIRECT_FROM for shard in made.shards
    ]
    if codec == "raw":
        for shard, file in zip(made.shards, files, strict=True):
            first = shard.header_size // ALIGNMENT
            assert sorted(file.pages) == list(range(first, -(-len(file.data) // ALIGNMENT)))
            expected = b"".join(numbered(ordinal, 0, made.rows[ordinal].nbytes) for ordinal in shard.rows)
            assert bytes(file.data[shard.header_size :]) == expected
    one = write_data(made, tensors, create, level=1, threads=1, progress=Progress(None, 0))  # type: ignore[arg-type]
    assert written.digests == one.digests
    assert written.lengths == one.lengths


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_odd_lengths_are_written_once_each(seed: int) -> None:
    """Ends of spans lie in the middle of pages, and a page may hold dozens of tensors."""
    rng = random.Random(seed)  # noqa: S311 - no secrets here
    most = (40, 700, 9_000, 60_000)[seed]
    lengths = [rng.randrange(most) | 1 for _ in range((60_000, 30_000, 4_000, 500)[seed])]
    if seed == 0:
        lengths[30_000] = SPAN + 1  # so that spans begin and end among the smallest, too
    made = planned(lengths, shard_size=11 << 20)
    total = 0
    for index, shard in enumerate(made.shards):
        found = spans(made, index)
        end = shard.header_size
        for span, after in zip(found, [*found[1:], None], strict=True):
            assert span.size == bytes_of(span)
            assert not span.tail or (after and span.tail[0][:3] == after.pieces[0][:3])
            if span.first_page < span.write_end:
                assert span.first_page == end
                end = span.write_end
            total += span.size
        assert end == shard.header_size + shard.data_size
    assert total == sum(lengths)
