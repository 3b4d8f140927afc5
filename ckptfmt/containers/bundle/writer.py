"""A bundle, written: data streamed with its checksums, the table last, for it is what makes a bundle.

All files are made beside their targets and synced before the first takes its place; the table does so after
all data. A bundle that is overwritten is damaged, and says so when read, only if the system stops between
these renames. Bytes are a pure function of the items. Source: ``tensor_bundle/tensor_bundle.cc``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ckptfmt.containers.bundle.kinds import STRING, VARIANT, number_of
from ckptfmt.containers.bundle.messages import Entry, Header, Versions, encode_entry, encode_header
from ckptfmt.containers.bundle.names import VARIANT_NAME, VERSION, data_name, index_name
from ckptfmt.containers.bundle.strings import encode_strings, encode_variants, encoded_size
from ckptfmt.containers.crc32c import mask, update
from ckptfmt.containers.noted.planning import pieces
from ckptfmt.containers.table.writer import encode_table
from ckptfmt.errors import ConversionError, TreeError
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.source import unpack
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptfmt.tree.nodes import Tree

__all__ = ["Item", "write_bundle"]

_MAX_NDIM = 254
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor to write.

    Attributes
    ----------
    name : str
        Not empty.
    node : Tensor, Strings or Opaque
        Strings of str are written as UTF-8; an opaque node is one of variants, as the reader gives it.
    """

    name: str
    node: Tensor | Strings | Opaque


@dataclass(frozen=True, slots=True)
class _Row:
    """An item with the key and the entry that it gets; offset and checksum are not known yet."""

    key: bytes
    entry: Entry
    content: Tensor | tuple[bytes, ...]


def write_bundle(
    prefix: str | os.PathLike[str],
    items: Sequence[Item],
    *,
    overwrite: bool = False,
    shard_size: int | None = None,
) -> None:
    """Write a bundle: ``<prefix>.index`` and ``<prefix>.data-?????-of-?????``.

    Parameters
    ----------
    prefix : str or os.PathLike
        Its parent must exist.
    items : sequence of Item
        Data lies in their order.
    overwrite : bool
        Whether files of these names may be replaced. Files of data that only the old bundle had are removed.
    shard_size : int, optional
        A file of data is closed before the tensor that would make it longer than that, in bytes.

    Raises
    ------
    ConversionError
        A bundle has no such type, or two items have one name.
    TreeError
        A name is empty or not valid Unicode.
    ExistsError
        A file is already there and may not be replaced.
    NoSpaceError, StorageError
        Something failed.
    """
    shards = _shards([_row(item) for item in items], shard_size)
    _check_unique([row for shard in shards for row in shard])
    header = Header(len(shards), versions=Versions(producer=VERSION))
    paths = [data_name(prefix, number, len(shards)) for number in range(len(shards))]
    with contextlib.ExitStack() as stack:
        # left in reverse order: the table is entered first, so that it takes its place last
        index = stack.enter_context(replacing(index_name(prefix), overwrite=overwrite))
        entries: dict[bytes, Entry] = {}
        for number, (path, shard) in enumerate(zip(paths, shards, strict=True)):
            file = stack.enter_context(replacing(path, overwrite=overwrite))
            entries |= _written(file, shard, number)
            _sync(file)
        rows = sorted((key, encode_entry(entry)) for key, entry in entries.items())
        for piece in encode_table([(b"", encode_header(header)), *rows]):
            index.write(piece)
        _sync(index)
    if overwrite:
        _remove_others(prefix, paths)


def _sync(file: BinaryIO) -> None:
    """Bring a file to the disk before others take their places, so that these come right after each other."""
    file.flush()
    os.fsync(file.fileno())


def _remove_others(prefix: str | os.PathLike[str], paths: Sequence[str]) -> None:
    """Remove what only a bundle that was overwritten had; what cannot be removed stays."""
    stem = Path(index_name(prefix).removesuffix(".index"))
    name = re.compile(re.escape(stem.name) + r"\.data-[0-9]{5}-of-[0-9]{5}")
    kept = {Path(path).name for path in paths}
    with contextlib.suppress(OSError):
        for found in list(stem.parent.iterdir()):
            if name.fullmatch(found.name) and found.name not in kept:
                found.unlink()


# ---------------------------------------------------------------------- rows and shards


def _row(item: Item) -> _Row:
    if not item.name:
        raise TreeError("a bundle holds no tensor with an empty name")
    try:
        key = item.name.encode()
    except UnicodeEncodeError:
        raise TreeError(f"the name {item.name!r} is not valid Unicode") from None
    number, shape, content = _content(item)
    if len(shape) > _MAX_NDIM:
        raise ConversionError(f"{item.name!r} has more than the {_MAX_NDIM} dimensions that TensorFlow knows")
    return _Row(key, Entry(number, shape, size=_size(number, content)), content)


def _content(item: Item) -> tuple[int, tuple[int, ...], Tensor | tuple[bytes, ...]]:
    """Return the number of an item's type, its shape, and what is written of it."""
    node: Tree = item.node
    if isinstance(node, Tensor):
        number = number_of(node.dtype, node.tag)
        if number is not None:
            return number, node.shape, node
        raise ConversionError(f"{item.name!r} is of type {node.dtype}, which no bundle holds")
    if isinstance(node, Strings):
        return STRING, node.shape, _as_bytes(node)
    state = node.parts.get("state") if isinstance(node, Opaque) and node.name == VARIANT_NAME else None
    if isinstance(state, Strings):
        return VARIANT, state.shape, _as_bytes(state)
    raise ConversionError(f"{item.name!r} is nothing that a bundle holds")


def _as_bytes(node: Strings) -> tuple[bytes, ...]:
    if math.prod(node.shape) != len(node.values):
        raise TreeError(f"{len(node.values)} strings for the shape {list(node.shape)}")
    try:
        return tuple(value if isinstance(value, bytes) else value.encode() for value in node.values)
    except UnicodeEncodeError:
        raise TreeError("a string that is not valid Unicode") from None


def _size(number: int, content: Tensor | tuple[bytes, ...]) -> int:
    """Return how many bytes of data an item becomes."""
    if isinstance(content, Tensor):
        return content.size * content.dtype.numpy.itemsize
    return encoded_size([len(value) for value in content], variants=number == VARIANT)


def _check_unique(rows: Sequence[_Row]) -> None:
    seen: set[bytes] = set()
    for row in rows:
        if row.key in seen:
            raise ConversionError(f"two tensors are called {row.key.decode()!r}")
        seen.add(row.key)


def _shards(rows: Sequence[_Row], shard_size: int | None) -> list[list[_Row]]:
    """Distribute rows over files, in their order; there is always one file."""
    shards: list[list[_Row]] = [[]]
    filled = 0
    for row in rows:
        if shard_size is not None and shards[-1] and filled + row.entry.size > shard_size:
            shards.append([])
            filled = 0
        shards[-1].append(row)
        filled += row.entry.size
    return shards


# ---------------------------------------------------------------------- data


def _written(file: BinaryIO, rows: Sequence[_Row], shard: int) -> dict[bytes, Entry]:
    """Write one file of data and return the entries of what it holds."""
    made = {}
    at = 0
    for row in rows:
        crc = 0
        for piece, crc in _data(row):  # noqa: B007 - the last one is the checksum of all
            file.write(piece)
        made[row.key] = replace(row.entry, shard=shard, offset=at, crc=mask(crc))
        at += row.entry.size
    return made


def _data(row: _Row) -> Iterator[tuple[bytes | memoryview, int]]:
    """Yield the bytes of a row in pieces, each with the checksum of the row so far."""
    if not isinstance(row.content, Tensor):
        yield from (encode_variants if row.entry.dtype == VARIANT else encode_strings)(row.content)
        return
    crc = 0
    for piece in _wide(row.content) if row.content.dtype.packed else pieces(row.content):
        crc = update(crc, piece)
        yield piece, crc


def _wide(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the elements of a packed tensor one in a byte, in its lowest bits, as TensorFlow has them."""
    bits = tensor.dtype.bits
    for start in range(0, tensor.nbytes, _PIECE):
        data = np.empty(min(_PIECE, tensor.nbytes - start), np.uint8)
        tensor.source.readinto(start, data.data)
        count = min(len(data) * 8 // bits, tensor.size - start * 8 // bits)
        codes = unpack(data, count, tensor.dtype).view(np.uint8)
        yield (codes & np.uint8((1 << bits) - 1)).data
