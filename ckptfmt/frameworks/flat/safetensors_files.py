"""Writing safetensors: a plan's rows to one file, or to shards with an index, whole or not at all.

Headers come first, for every size is known from the plan; tensors are streamed. A shard is closed before the
tensor that would pass the target size, or a header longer than readers accept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.noted.note import NOTE
from ckptfmt.containers.noted.planning import Held, Plan, Row, pieces, plan
from ckptfmt.containers.safetensors import (
    DTYPES,
    MAX_HEADER,
    METADATA,
    Entry,
    encode_entry,
    encode_header,
    encode_metadata,
    header_size,
)
from ckptfmt.containers.safetensors_index import INDEX_SUFFIX, decode_index, encode_index
from ckptfmt.errors import CkptError, ConversionError, ExistsError
from ckptfmt.storage.commit import Staging
from ckptfmt.storage.reader import FileReader
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.nodes import tag_of
from ckptfmt.tree.paths import dotted
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptfmt.storage.files import DataFile
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["METADATA_TAG", "write_file", "write_shards"]

METADATA_TAG = "safetensors.metadata"
"""The tag of a root that came with metadata: its attributes are the file's, all str."""

DEFAULT_SHARD_SIZE = 4 << 30
"""Bytes of tensors in a shard where only the path of the index asks for shards."""

_ALIGNMENT = 64
_LARGEST_TEXT = 1 << 20
_BATCH = 1 << 20
_THEIRS = {ours: theirs for theirs, ours in DTYPES.items()}


class _Safetensors:
    """What planning must know of safetensors."""

    reserved = frozenset({METADATA})
    name = staticmethod(dotted)

    @staticmethod
    def held(kind: DType, shape: tuple[int, ...]) -> Held:
        """Return how safetensors holds a tensor; pairs of 4-bit elements must fill its last dimension."""
        theirs = _THEIRS.get(kind.name)
        if theirs is None or (kind.packed and (not shape or shape[-1] % 2)):
            return Held("U8", (kind.nbytes(shape),), exact=False)
        return Held(theirs, shape, exact=True)


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file: its rows, their entries, and the metadata of its header."""

    rows: tuple[Row, ...]
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]

    def header(self) -> bytes:
        return encode_header(self.entries, self.metadata, align=_ALIGNMENT)

    @property
    def nbytes(self) -> int:
        return self.entries[-1].end if self.entries else 0


def _planned(tree: Tree, *, shards: bool) -> tuple[Plan, dict[str, str], tuple[Row, ...]]:
    """Return the plan, the metadata of the first header, and the rows, with a note that is too long for that.

    A note without any tensor is one itself in shards, for no index lists a file that has none.
    """
    planned = plan(tree, _Safetensors(), root_tag=METADATA_TAG)
    metadata = {"format": "pt"} | _kept_metadata(tree)
    rows = planned.rows
    as_text = len(planned.note or b"") <= _LARGEST_TEXT and (bool(rows) or not shards)
    if planned.note is not None and as_text:
        metadata[NOTE] = planned.note.decode()
    elif planned.note is not None:
        size = len(planned.note)
        note = Tensor(dtype("u8"), (size,), BytesSource(memoryview(planned.note)))
        rows = (Row(NOTE, note, "U8", (size,)), *rows)
    return planned, dict(sorted(metadata.items())), rows


def _kept_metadata(tree: Tree) -> dict[str, str]:
    """Return the metadata that a tree brought along from a safetensors file."""
    tag = tag_of(tree)
    if tag is None or tag.name != METADATA_TAG:
        return {}
    pairs = tag.attributes.items()
    return {
        key: text for key, text in pairs if isinstance(key, str) and isinstance(text, str) and key != NOTE
    }


def _shards(rows: Sequence[Row], metadata: Mapping[str, str], shard_size: int | None) -> Iterator[_Shard]:
    """Fill shards with rows in their order; the first has all metadata, the others only the format."""
    taken: list[Row] = []
    entries: list[Entry] = []
    room = _text_room(metadata)
    at = 0
    for row in rows:
        entry = Entry(row.name, row.kind, row.shape, at, at + row.tensor.nbytes)
        length = len(encode_entry(entry)) + 1
        if entries and (length > room or (shard_size is not None and entry.end > shard_size)):
            yield _Shard(tuple(taken), tuple(entries), metadata)
            metadata = {"format": metadata["format"]}
            taken, entries, at, room = [], [], 0, _text_room(metadata)
            entry = Entry(row.name, row.kind, row.shape, 0, row.tensor.nbytes)
            length = len(encode_entry(entry)) + 1
        taken.append(row)
        entries.append(entry)
        at, room = entry.end, room - length
    yield _Shard(tuple(taken), tuple(entries), metadata)


def _text_room(metadata: Mapping[str, str]) -> int:
    """Return how many bytes of members a header can still take, so that padding never passes the limit."""
    return MAX_HEADER - _ALIGNMENT - header_size([len(encode_metadata(metadata))], align=1)


def write_file(tree: Tree, target: str | os.PathLike[str], *, overwrite: bool) -> tuple[Finding, ...]:
    """Write one file; see `ckptfmt.frameworks.flat.safetensors.write`."""
    planned, metadata, rows = _planned(tree, shards=False)
    shards = list(_shards(rows, metadata, None))
    if len(shards) > 1:
        raise ConversionError(
            f"the header of {len(rows)} tensors is longer than the {MAX_HEADER} bytes that readers accept:"
            " write shards (give a shard size)"
        )
    with replacing(target, overwrite=overwrite) as file:
        for data in _bytes_of(shards[0]):
            file.write(data)
    return planned.findings


def _bytes_of(shard: _Shard) -> Iterator[bytes | memoryview]:
    """Yield a file's bytes, small pieces gathered; each is valid until the next."""
    batch = bytearray(shard.header())
    for row in shard.rows:
        for piece in pieces(row.tensor):
            if len(batch) + len(piece) <= _BATCH:
                batch += piece
                continue
            yield bytes(batch)
            batch.clear()
            if len(piece) < _BATCH:
                batch += piece
            else:
                yield piece
    yield bytes(batch)


def write_shards(
    tree: Tree, target: str | os.PathLike[str], *, overwrite: bool, shard_size: int | None
) -> tuple[Finding, ...]:
    """Write a directory of shards with an index; see `ckptfmt.frameworks.flat.safetensors.write`."""
    directory, stem = _directory_and_stem(target)
    planned, metadata, rows = _planned(tree, shards=True)
    shards = (
        list(_shards(rows, metadata, DEFAULT_SHARD_SIZE if shard_size is None else shard_size))
        if rows
        else []
    )
    names = [f"{stem}-{k:05d}-of-{len(shards):05d}.safetensors" for k in range(1, len(shards) + 1)]
    weight_map = {
        entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard.entries
    }
    index = encode_index(weight_map, sum(shard.nbytes for shard in shards))
    record = stem + INDEX_SUFFIX
    if overwrite:
        _check_replaceable(directory, record)
    with Staging(directory, overwrite="exchange" if overwrite else "no", record=record) as staging:
        for name, shard in zip(names, shards, strict=True):
            with staging.create(name) as file:
                _write_shard(file, shard)
        staging.write_bytes(record, index)
        staging.commit()
    return planned.findings


def _directory_and_stem(target: str | os.PathLike[str]) -> tuple[Path, str]:
    path = Path(target)
    if path.name.endswith(INDEX_SUFFIX):
        if path.parent.name in ("", os.pardir):
            message = (
                "shards and their index are a directory of their own, which is replaced as one: name it,"
            )
            raise ConversionError(f"{message} as in NEW/{path.name}")
        return path.parent, path.name.removesuffix(INDEX_SUFFIX) or "model"
    return path, "model"


def _write_shard(file: DataFile, shard: _Shard) -> None:
    at = 0
    for data in _bytes_of(shard):
        file.write_at(at, data)
        at += len(data)
    file.sync()


def _check_replaceable(directory: Path, record: str) -> None:
    """Raise ExistsError if a directory that is there holds anything besides an index and its shards."""
    index = directory / record
    if not index.is_file():
        return  # free, or refused by `Staging`
    try:
        with FileReader(index) as reader:
            known = {record, *decode_index(reader).weight_map.values()}
    except CkptError as error:
        raise ExistsError(f"has an index that cannot be read, so it is not overwritten: {error}") from error
    others = sorted({path.name for path in directory.iterdir()} - known)
    if others:
        raise ExistsError(
            f"holds {others[0]!r}, which no index lists: it is not overwritten", file=os.fspath(directory)
        )
