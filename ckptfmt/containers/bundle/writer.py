"""A bundle, written: data streamed with its checksums, the table last, for it is what makes a bundle.

How files take their places is `placing`'s. Bytes are a pure function of the items. Source:
``tensorflow/core/util/tensor_bundle/tensor_bundle.cc``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.bundle.kinds import STRING, VARIANT, number_of
from ckptfmt.containers.bundle.messages import (
    Entry,
    Header,
    Versions,
    decode_header,
    encode_entry,
    encode_header,
)
from ckptfmt.containers.bundle.names import VARIANT_NAME, VERSION, data_name, index_name
from ckptfmt.containers.bundle.placing import placing
from ckptfmt.containers.bundle.strings import encode_strings, encode_variants, encoded_size
from ckptfmt.containers.crc32c import mask, update
from ckptfmt.containers.noted.planning import pieces
from ckptfmt.containers.table.reader import Table
from ckptfmt.containers.table.writer import encode_table
from ckptfmt.errors import CkptError, ConversionError, TreeError
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.source import unpack
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from ckptfmt.storage.system import System
    from ckptfmt.tree.nodes import Tree

__all__ = ["Item", "write_bundle"]

_MAX_NDIM = 254
_PIECE = 4 << 20
_MOST_OLD = 100_000  # file numbers have five digits


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
    system: System | None = None,
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
    system : System, optional

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
    names = [data_name(prefix, number, len(shards)) for number in range(len(shards))]
    with placing(index_name(prefix), overwrite=overwrite, system=system) as place:
        entries: dict[bytes, Entry] = {}
        for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
            entries |= _written(place.file(name), shard, number)
        rows = sorted((key, encode_entry(entry)) for key, entry in entries.items())
        for piece in encode_table([(b"", encode_header(header)), *rows]):
            place.record.write(piece)
        if overwrite:
            place.remove_afterwards(_old_names(prefix) - set(names))


def _old_names(prefix: str | os.PathLike[str]) -> set[str]:
    """Return the files of data of the bundle that is there; none where there is no bundle."""
    try:
        with FileReader(index_name(prefix), mapped=False) as reader:
            _, value = next(Table(reader).items(), (b"", memoryview(b"")))
            shards = decode_header(value).shards
    except CkptError:
        return set()
    names = (data_name(prefix, number, shards) for number in range(min(shards, _MOST_OLD)))
    return {name for name in names if Path(name).exists()}


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
