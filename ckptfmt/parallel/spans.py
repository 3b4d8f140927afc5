"""Spans: runs of consecutive chunks of one shard, the unit of ownership and of writing.

Pure arithmetic over a plan. Every 4096-byte page of a shard has exactly one writer: the span that holds
the page's first byte; the few bytes of the next span in that page go with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ckptfmt.format.constants import ALIGNMENT, CHUNK
from ckptfmt.tree.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptfmt.format.planning import Plan, ShardPlan

__all__ = ["SPAN", "Piece", "Span", "spans"]

SPAN = 4 << 20
"""A span is closed when it has this many bytes; it has fewer than this and a chunk together."""


class Piece(NamedTuple):
    """One chunk in a shard.

    Attributes
    ----------
    ordinal : int
        The row.
    chunk : int
        Index of the chunk in its tensor.
    start, stop : int
        Its range in the tensor's canonical bytes.
    """

    ordinal: int
    chunk: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Span:
    """A run of chunks of one shard.

    Attributes
    ----------
    shard : int
    begin, end : int
        Where its bytes lie in the file of a raw shard; of a coded shard, in its canonical bytes.
    pieces : tuple of Piece
        In order, without gaps.
    tail : tuple of Piece
        What follows in the last page, ranges of the next chunks; none for the last span and in coded shards.
    """

    shard: int
    begin: int
    end: int
    pieces: tuple[Piece, ...]
    tail: tuple[Piece, ...] = ()

    @property
    def size(self) -> int:
        """Canonical bytes of its chunks."""
        return self.end - self.begin

    @property
    def first_page(self) -> int:
        """Where its first page begins: the first that begins inside it."""
        return -(-self.begin // ALIGNMENT) * ALIGNMENT

    @property
    def write_end(self) -> int:
        """Where its last page ends, or the file."""
        return self.end + sum(piece.stop - piece.start for piece in self.tail)


def spans(plan: Plan, index: int) -> list[Span]:
    """Return the spans of shard `index`, in order."""
    with collector_paused():
        return _spans(plan, index)


def _spans(plan: Plan, index: int) -> list[Span]:
    shard = plan.shards[index]
    runs = list(_runs(_pieces(plan, shard)))
    begin = 0 if shard.coded else shard.header_size
    made = []
    for number, run in enumerate(runs):
        end = begin + sum(piece.stop - piece.start for piece in run)
        short = 0 if shard.coded else -end % ALIGNMENT
        made.append(Span(index, begin, end, run, _head(runs, number + 1, short) if short else ()))
        begin = end
    return made


def _pieces(plan: Plan, shard: ShardPlan) -> Iterator[Piece]:
    for ordinal in shard.rows:
        nbytes = plan.rows[ordinal].nbytes
        if nbytes <= CHUNK:
            if nbytes:
                yield Piece(ordinal, 0, 0, nbytes)
            continue
        for chunk, start in enumerate(range(0, nbytes, CHUNK)):
            yield Piece(ordinal, chunk, start, min(start + CHUNK, nbytes))


def _runs(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, ...]]:
    run: list[Piece] = []
    size = 0
    for piece in pieces:
        run.append(piece)
        size += piece.stop - piece.start
        if size >= SPAN:
            yield tuple(run)
            run, size = [], 0
    if run:
        yield tuple(run)


def _head(runs: Sequence[tuple[Piece, ...]], number: int, length: int) -> tuple[Piece, ...]:
    """Return the ranges that make up the first `length` bytes of run `number` and what follows it."""
    found: list[Piece] = []
    for run in runs[number:]:
        for piece in run:
            count = min(length, piece.stop - piece.start)
            found.append(piece._replace(stop=piece.start + count))
            length -= count
            if not length:
                return tuple(found)
    return tuple(found)
