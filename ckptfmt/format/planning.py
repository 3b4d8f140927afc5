"""Which tensor lies where: sections 8.3 to 8.5 of ``spec/ckptfmt-1.0.md``.

A pure function of paths, types, shapes and options: every rank of every job computes the same plan.
Values, ranks and clocks have no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ckptfmt.errors import LimitError, OptionError
from ckptfmt.format.constants import (
    CHUNK,
    CODECS,
    DEFAULT_TARGET,
    DIGEST,
    MAX_BYTES,
    MAX_HEADER,
    MAX_PATH,
    MAX_ROWS,
    shard_name,
)
from ckptfmt.format.header import header_entry, header_size
from ckptfmt.tree.options import globs, whole_number
from ckptfmt.tree.paths import display, dotted, encode_path, glob_matcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.paths import Path

__all__ = [
    "Plan",
    "PlanOptions",
    "Row",
    "ShardPlan",
    "TensorSpec",
    "alignment_class",
    "chunk_count",
    "order_key",
    "plan",
    "unique_name",
]


class TensorSpec(NamedTuple):
    """What planning knows of a tensor.

    Attributes
    ----------
    path : Path
        The first of its paths in canonical order.
    dtype : DType
    shape : tuple of int
    """

    path: Path
    dtype: DType
    shape: tuple[int, ...]


class Row(NamedTuple):
    """A tensor's place: its row of the manifest without what only its values tell.

    Attributes
    ----------
    path, dtype, shape : as in `TensorSpec`
    nbytes : int
        Length of the canonical bytes.
    name : str
        In the header of its shard.
    shard : int
        Ordinal of the shard.
    offset : int
        In the shard's data section; of a coded shard unknown until it is written, then -1 here.
    codec : str
    chunks : int or None
        Where its digests begin in ``chunks.bin``, if it has more than one chunk.
    """

    path: Path
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    name: str
    shard: int
    offset: int
    codec: str
    chunks: int | None


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One data file.

    Attributes
    ----------
    name : str
    coded : bool
    rows : tuple of int
        Ordinals of its rows, in order of offset.
    header_size : int
        Bytes of its header, a multiple of 4096.
    data_size : int
        Bytes of its data section; of a coded shard, the canonical bytes.
    entries : tuple of bytes
        The members of its header after the first; none in a coded shard.
    """

    name: str
    coded: bool
    rows: tuple[int, ...]
    header_size: int
    data_size: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything lies.

    Attributes
    ----------
    rows : tuple of Row
        In canonical order.
    shards : tuple of ShardPlan
    chunks_size : int
        Bytes of ``chunks.bin``.
    """

    rows: tuple[Row, ...]
    shards: tuple[ShardPlan, ...]
    chunks_size: int


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a user may choose of a plan.

    Attributes
    ----------
    codec : str
        ``"raw"``, ``"zstd"`` or ``"planes+zstd"``, for all tensors.
    shard_size : int or None
        Bytes of data at which a shard is closed; by default 4 GiB, or more for more than 2 TiB.
    separate : tuple of str
        Globs of displayed paths; what each matches gets shards of its own.
    """

    codec: str = "raw"
    shard_size: int | None = None
    separate: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise OptionError(f"unknown codec {self.codec!r}: choose one of {', '.join(CODECS)}")
        if self.shard_size is not None:
            size = whole_number("shard_size", self.shard_size, 1, MAX_BYTES)
            object.__setattr__(self, "shard_size", size)
        object.__setattr__(self, "separate", globs("separate", self.separate))


def alignment_class(nbytes: int) -> int:
    """Return the number of trailing zero bits of a length, at most 12; 12 for no bytes."""
    return min(12, (nbytes & -nbytes).bit_length() - 1) if nbytes else 12


def chunk_count(nbytes: int) -> int:
    """Return the number of chunks of a tensor of `nbytes` canonical bytes."""
    return -(-nbytes // CHUNK)


def order_key(path: Path, nbytes: int) -> tuple[int, tuple[bytes, ...]]:
    """Return what rows are sorted by."""
    return -alignment_class(nbytes), encode_path(path)


def unique_name(path: Path, ordinal: int, taken: set[str]) -> str:
    """Return the header name of a row and note it as taken."""
    name = dotted(path)
    while name in taken:
        name = f"{name}#{ordinal}"
    taken.add(name)
    return name


def plan(specs: Iterable[TensorSpec], options: PlanOptions) -> Plan:
    """Return the plan of a checkpoint.

    Raises
    ------
    LimitError
        More tensors, longer paths or larger tensors than the format allows.
    OptionError
        An option that is none.
    """
    ordered = _ordered(specs)
    groups = _groups(ordered, options.separate)
    total = sum(nbytes for _, nbytes in ordered)
    target = options.shard_size or max(DEFAULT_TARGET, -(-total // 512 // CHUNK) * CHUNK)
    filler = _Filler(target, coded=options.codec != "raw")
    rows = _place(ordered, groups, options.codec, filler)
    count = len(filler.closed)
    shards = tuple(
        ShardPlan(
            shard_name(index, count, coded=filler.coded),
            filler.coded,
            tuple(draft.rows),
            header_size(draft.entries_size, index, count),
            draft.size,
            tuple(draft.entries),
        )
        for index, draft in enumerate(filler.closed)
    )
    return Plan(rows, shards, filler.chunks)


def _ordered(specs: Iterable[TensorSpec]) -> list[tuple[TensorSpec, int]]:
    keyed = []
    for spec in specs:
        nbytes = spec.dtype.nbytes(spec.shape)
        key = order_key(spec.path, nbytes)
        if sum(map(len, key[1])) > MAX_PATH:
            raise LimitError(
                f"a path of more than {MAX_PATH} bytes: {display(spec.path)[:200]}", rule="R-015"
            )
        if nbytes > MAX_BYTES or len(spec.shape) > 64:
            raise LimitError(f"a tensor of {nbytes} bytes and {len(spec.shape)} dimensions", rule="R-030")
        keyed.append((key, spec, nbytes))
    if len(keyed) > MAX_ROWS:
        raise LimitError(f"more than {MAX_ROWS} tensors", rule="R-015")
    keyed.sort(key=lambda item: item[0])
    return [(spec, nbytes) for _, spec, nbytes in keyed]


def _groups(ordered: Sequence[tuple[TensorSpec, int]], separate: Sequence[str]) -> list[list[int]]:
    """Return the ordinals of each group of tensors that share shards, in order."""
    if not separate:
        return [list(range(len(ordered)))]
    matchers = [glob_matcher([pattern]) for pattern in separate]
    groups: list[list[int]] = [[] for _ in range(len(separate) + 1)]
    for ordinal, (spec, _) in enumerate(ordered):
        shown = display(spec.path)
        index = next((i for i, matches in enumerate(matchers, 1) if matches(shown)), 0)
        groups[index].append(ordinal)
    return groups


class _Draft:
    """A shard that is being filled."""

    __slots__ = ("entries", "entries_size", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.entries: list[bytes] = []
        self.size = 0
        self.entries_size = 0


class _Filler:
    def __init__(self, target: int, *, coded: bool) -> None:
        self.target = target
        self.coded = coded
        self.closed: list[_Draft] = []
        self.chunks = 0

    def begin(self) -> None:
        self.closed.append(_Draft())

    def add(self, ordinal: int, nbytes: int, spec: TensorSpec, name: str) -> tuple[int, int]:
        """Return the shard and offset of the next row."""
        draft = self.closed[-1]
        entry = None if self.coded else header_entry(name, spec.dtype, spec.shape, draft.size, nbytes)
        size = draft.entries_size + (0 if entry is None else len(entry) + 1)
        if draft.rows and (draft.size + nbytes > self.target or size > MAX_HEADER):
            self.begin()
            return self.add(ordinal, nbytes, spec, name)
        offset = draft.size
        draft.rows.append(ordinal)
        draft.size += nbytes
        draft.entries_size = size
        if entry is not None:
            draft.entries.append(entry)
        return len(self.closed) - 1, -1 if self.coded else offset

    def digests_at(self, nbytes: int) -> int | None:
        """Return where the digests of the next row begin in chunks.bin."""
        count = chunk_count(nbytes)
        if count <= 1:
            return None
        start = self.chunks
        self.chunks += count * (2 * DIGEST + 8 if self.coded else DIGEST)
        return start


def _place(
    ordered: Sequence[tuple[TensorSpec, int]], groups: Iterable[list[int]], codec: str, filler: _Filler
) -> tuple[Row, ...]:
    taken = {"__metadata__"}
    names = [unique_name(spec.path, ordinal, taken) for ordinal, (spec, _) in enumerate(ordered)]
    places: list[tuple[int, int]] = [(0, 0)] * len(ordered)
    for group in groups:
        if group:
            filler.begin()
        for ordinal in group:
            spec, nbytes = ordered[ordinal]
            places[ordinal] = filler.add(ordinal, nbytes, spec, names[ordinal])
    return tuple(
        Row(spec.path, spec.dtype, spec.shape, nbytes, name, *place, codec, filler.digests_at(nbytes))
        for (spec, nbytes), name, place in zip(ordered, names, places, strict=True)
    )
