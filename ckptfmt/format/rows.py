"""Rows of the tensor table, and what each owes to those before it: section 8.2 of the specification.

Decoding is on the way of every load and there can be millions of rows: what is usual is checked with few
steps, and whatever is not usual is looked at again to say what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.format.constants import (
    ALIGNMENT,
    CHUNK,
    CODECS,
    DIGEST,
    ENTRY_ROOM,
    MAX_BYTES,
    MAX_HEADER,
    MAX_PATH,
)
from ckptfmt.format.planning import alignment_class, chunk_count, unique_name
from ckptfmt.tree.document import decode_key, encode_key_json
from ckptfmt.tree.dtypes import DType, dtype
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.walk import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.tree.canonical import JSON
    from ckptfmt.tree.paths import Path

__all__ = ["RowReader", "ShardRow", "TensorRow", "decode_digest", "digests_size", "is_size"]


class TensorRow(NamedTuple):
    """A row of the tensor table.

    Attributes
    ----------
    path, name, dtype, shape, nbytes, shard, offset, codec, chunks :
        As in `planning.Row`.
    digest : bytes
        The tensor digest.
    length : int
        Bytes stored: the canonical bytes if raw.
    stored : bytes or None
        The digest of the stored bytes of a coded tensor of one chunk.
    """

    path: Path
    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    digest: bytes
    shard: int
    offset: int
    codec: str
    chunks: int | None
    length: int
    stored: bytes | None

    def as_json(self) -> list[JSON]:
        """Return the row of the manifest."""
        row: list[JSON] = [
            [encode_key_json(key) for key in self.path],
            self.name,
            self.dtype.name,
            list(self.shape),
            self.digest.hex(),
            self.shard,
            self.offset,
            self.codec,
            self.chunks,
        ]
        if self.codec != "raw":
            row += [self.length, None if self.stored is None else self.stored.hex()]
        return row


class ShardRow(NamedTuple):
    """A data file: its name, its size in bytes, and the digest of its header."""

    name: str
    size: int
    header: bytes


def digests_size(nbytes: int, codec: str) -> int:
    """Return the bytes of a row in ``chunks.bin``."""
    count = chunk_count(nbytes)
    if count <= 1:
        return 0
    return count * (DIGEST if codec == "raw" else 2 * DIGEST + 8)


def decode_digest(text: JSON, rule: str) -> bytes:
    """Return the digest that 64 hexadecimal digits stand for."""
    if type(text) is str and len(text) == 64:
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            digest = b""
        if digest.hex() == text:
            return digest
    raise FormatError("a digest is not 64 hexadecimal digits", rule=rule)


def is_size(value: JSON) -> bool:
    """Whether a value is a size or an offset."""
    return type(value) is int and 0 <= value <= MAX_BYTES


class RowReader:
    """Decodes rows in order and checks what each owes to those before it.

    Parameters
    ----------
    coded : sequence of bool
        Whether each shard is coded.
    """

    def __init__(self, coded: Sequence[bool]) -> None:
        self._coded = coded
        self._ends = [0] * len(coded)
        self._used = [False] * len(coded)
        self._chunks = 0
        self._taken = {"__metadata__"}
        self._last: tuple[int, tuple[bytes, ...]] = (-13, ())
        self._types: dict[str, DType] = {}

    def row(self, form: JSON, ordinal: int) -> TensorRow:
        """Return a row.

        Raises
        ------
        FormatError, LimitError
            It breaks a rule, which the error names.
        """
        if not isinstance(form, list) or len(form) not in (9, 11):
            raise FormatError(f"row {ordinal} is malformed", rule="R-030")
        path = _path(form[0])
        try:
            return self._checked(form, ordinal, path)
        except FormatError as error:
            raise error.located(tensor=display(path)) from None

    def _checked(self, form: list[JSON], ordinal: int, path: Path) -> TensorRow:
        _, name, kind, shape, digest, shard, offset, codec, chunks = form[:9]
        known, dims, nbytes = self._type(kind, shape)
        self._check_order(path, nbytes)
        if name != unique_name(path, ordinal, self._taken):
            raise FormatError(f"the header name {str(name)[:200]!r} is not the one of its path", rule="R-032")
        if type(shard) is not int or not 0 <= shard < len(self._coded) or not is_size(offset):
            raise FormatError("a shard or offset that does not exist", rule="R-030")
        if codec not in CODECS or (codec != "raw") != self._coded[shard]:
            raise FormatError(f"codec {str(codec)[:40]!r} does not fit the shard", rule="R-034")
        first = self._first_digest(chunks, nbytes, codec)
        length, stored = _stored(form, nbytes, codec)
        end = self._ends[shard]
        if offset != end:
            raise FormatError(f"offset {offset} in shard {shard + 1}, where {end} follows", rule="R-033")
        self._used[shard] = True
        self._ends[shard] = end + length
        found = decode_digest(digest, "R-030")
        return TensorRow(path, name, known, dims, nbytes, found, shard, offset, codec, first, length, stored)

    def _type(self, kind: JSON, shape: JSON) -> tuple[DType, tuple[int, ...], int]:
        if type(kind) is not str or type(shape) is not list or len(shape) > 64:
            raise FormatError("a malformed type or shape", rule="R-030")
        known = self._types.get(kind)
        if known is None:
            known = self._types[kind] = _known_type(kind)
        for extent in shape:
            if type(extent) is not int or not 0 <= extent <= MAX_BYTES:
                raise FormatError("a malformed shape", rule="R-030")
        dims: tuple[int, ...] = tuple(shape)  # type: ignore[arg-type] # checked above
        nbytes = known.nbytes(dims)
        if nbytes > MAX_BYTES:
            raise FormatError(f"a tensor of {nbytes} bytes", rule="R-030")
        return known, dims, nbytes

    def _check_order(self, path: Path, nbytes: int) -> None:
        key = (-alignment_class(nbytes), encode_path(path))
        if sum(map(len, key[1])) > MAX_PATH:
            raise LimitError(f"a path of more than {MAX_PATH} bytes", rule="R-015")
        if key <= self._last:
            raise FormatError("rows are not in canonical order", rule="R-031")
        self._last = key

    def _first_digest(self, chunks: JSON, nbytes: int, codec: str) -> int | None:
        """Return where the digests of a row begin in ``chunks.bin``."""
        if nbytes <= CHUNK and chunks is None:
            return None
        size = digests_size(nbytes, codec)
        if type(chunks) is not int or not size or chunks != self._chunks:
            raise FormatError("an offset into chunks.bin that does not follow", rule="R-035")
        self._chunks += size
        return chunks

    def check_sizes(self, shards: Sequence[ShardRow]) -> None:
        """Check, after all rows, that each shard has some and is long enough for them.

        Raises
        ------
        FormatError
            One has none (R-033), or is too short for header and data (R-040).
        LimitError
            One has a header that no plan makes (R-015).
        """
        for shard, used, end in zip(shards, self._used, self._ends, strict=True):
            if not used:
                raise FormatError(f"shard {shard.name} has no rows", rule="R-033")
            header = shard.size - end
            if header > MAX_HEADER + ENTRY_ROOM:
                raise LimitError(f"shard {shard.name} has a header of {header} bytes", rule="R-015")
            if header <= 0 or header % ALIGNMENT:
                raise FormatError(
                    f"shard {shard.name} is said to have {shard.size} bytes; its data takes {end}",
                    rule="R-040",
                )


def _path(form: JSON) -> Path:
    if not isinstance(form, list):
        raise FormatError("a malformed path", rule="R-030")
    if len(form) > MAX_DEPTH:
        raise LimitError(f"a path of {len(form)} keys", rule="R-015")
    return tuple([key if type(key) is str else decode_key(key, ()) for key in form])


def _known_type(kind: str) -> DType:
    try:
        return dtype(kind)
    except ValueError:
        raise FormatError(f"unknown element type {kind[:40]!r}", rule="R-030") from None


def _stored(form: list[JSON], nbytes: int, codec: str) -> tuple[int, bytes | None]:
    """Return the stored length of a row, and the stored digest of a coded row of one chunk."""
    if (len(form) == 11) != (codec != "raw"):
        raise FormatError("length and stored belong to coded rows, and only to them", rule="R-036")
    if codec == "raw":
        return nbytes, None
    length, stored = form[9:]
    count = chunk_count(nbytes)
    if type(length) is not int or not count <= length <= nbytes or (stored is None) != (count != 1):
        raise FormatError("a stored length or digest that cannot be", rule="R-036")
    return length, None if stored is None else decode_digest(stored, "R-036")
