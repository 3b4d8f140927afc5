"""A bundle, read: its table at once, strings and data when they are asked for.

Everything the table says is checked against the files of data first: sizes, overlaps, slices that do not
fill their tensor. A tensor's checksum is verified when its bytes are handed out. Names are taken as they
stand. Source: ``tensorflow/core/util/tensor_bundle/tensor_bundle.cc``.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, final

from ckptfmt.containers.bundle.entries import BundleEntry
from ckptfmt.containers.bundle.keys import box_of, slice_key
from ckptfmt.containers.bundle.kinds import (
    NAMES,
    VARIANT,
    base_number,
    dtype_of_number,
    tag_of_number,
)
from ckptfmt.containers.bundle.messages import Entry, Header, decode_entry, decode_header
from ckptfmt.containers.bundle.names import VARIANT_NAME, VERSION, data_name, index_name
from ckptfmt.containers.bundle.sources import CheckedSource, NarrowSource, check_crc
from ckptfmt.containers.bundle.strings import decode_strings, decode_variants
from ckptfmt.containers.npy.sources import SwappedSource
from ckptfmt.containers.shapes import checked_count
from ckptfmt.containers.table.reader import Table
from ckptfmt.errors import (
    CkptError,
    FormatError,
    MissingFileError,
    NotFoundError,
    TruncatedError,
    UnsupportedVersionError,
)
from ckptfmt.storage.pool import open_files
from ckptfmt.storage.reader import FileReader, MemoryReader
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.pieces import JoinedSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.source import Source

__all__ = ["Bundle", "BundleEntry", "read_bundle"]


@final
class Bundle:
    """An open bundle.

    Attributes
    ----------
    prefix : str
    header : Header
    entries : mapping of str to BundleEntry
        In the order of the table: ascending by name, as UTF-8.
    files : tuple of str
        The paths of its files: the table, then those of data that hold anything.
    """

    def __init__(
        self,
        prefix: str,
        header: Header,
        entries: Mapping[str, BundleEntry],
        files: tuple[str, ...],
        stack: ExitStack,
    ) -> None:
        self.prefix = prefix
        self.header = header
        self.entries = MappingProxyType(dict(entries))
        self.files = files
        self._stack = stack

    def close(self) -> None:
        """Close the files of data. Mapped bytes that were handed out stay valid until they are dropped."""
        self._stack.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_bundle(prefix: str | os.PathLike[str]) -> Bundle:
    """Open the bundle of a prefix: ``<prefix>.index`` and ``<prefix>.data-?????-of-?????``.

    Parameters
    ----------
    prefix : str or os.PathLike

    Raises
    ------
    NotFoundError
        There is no table of that prefix.
    MissingFileError
        A file that holds data of an entry is not there; the error names it.
    TruncatedError
        A file ends before what the table says it holds.
    ChecksumError
        The table is not what was written.
    UnsupportedVersionError
        It was written for newer readers, or a type is unknown.
    FormatError
        The table is malformed, or describes what cannot be.
    """
    with FileReader(index_name(prefix), mapped=False) as index:
        header, entries = _decoded(index)
    with ExitStack() as stack:
        opening = _Opening(os.fspath(prefix), index.name, header, entries, stack)
        return Bundle(os.fspath(prefix), header, opening.entries(), opening.files(), stack.pop_all())


def _decoded(index: ByteReader) -> tuple[Header, dict[bytes, Entry]]:
    """Return the header and all entries of a table."""
    items = Table(index).items()
    key, value = next(items, (None, memoryview(b"")))
    if key != b"":
        raise FormatError("a table without the header that a bundle has", file=index.name)
    try:
        header = decode_header(value)
    except FormatError as error:
        raise type(error)(f"a malformed header: {error.message}", file=index.name) from None
    _check_versions(header, index.name)
    return header, {name: _entry(name, data, index.name) for name, data in items}


def _check_versions(header: Header, file: str) -> None:
    """Refuse what was written for others; the rule is ``tensorflow/core/framework/versions.cc``'s."""
    if header.versions.min_consumer > VERSION or VERSION in header.versions.bad_consumers:
        message = f"a bundle for readers of version {header.versions.min_consumer}; this one is {VERSION}"
        raise UnsupportedVersionError(message, file=file)


def _entry(key: bytes, value: memoryview, file: str) -> Entry:
    try:
        entry = decode_entry(value)
    except FormatError as error:
        message = f"a malformed entry: {error.message}"
        raise type(error)(message, file=file, tensor=_shown(key)) from None
    if base_number(entry.dtype) not in NAMES:
        message = f"elements of the unknown type {entry.dtype}"
        raise UnsupportedVersionError(message, file=file, tensor=_shown(key))
    return entry


def _shown(key: bytes) -> str:
    return key[:200].decode(errors="backslashreplace")


class _Opening:
    """The table of a bundle while its files of data are opened and it is compared with them."""

    def __init__(
        self, prefix: str, index: str, header: Header, entries: dict[bytes, Entry], stack: ExitStack
    ) -> None:
        self._prefix = prefix
        self._index = index
        self._header = header
        self._entries = entries
        self._readers: dict[int, ByteReader] = {}
        self._stack = stack

    def entries(self) -> dict[str, BundleEntry]:
        self._check_files()
        pieces = {
            key
            for name, entry in self._entries.items()
            for key in (slice_key(name, piece) for piece in entry.slices)
        }
        whole = {key: entry for key, entry in self._entries.items() if key not in pieces}
        return {self._name(key): self._made(key, entry) for key, entry in whole.items()}

    def files(self) -> tuple[str, ...]:
        return (self._index, *(reader.name for reader in self._readers.values()))

    def _fail(self, message: str, key: bytes, kind: type[FormatError] = FormatError) -> NoReturn:
        raise kind(message, file=self._index, tensor=_shown(key))

    def _name(self, key: bytes) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError:
            self._fail("a name that is not UTF-8, or a slice that no tensor lists", key)

    # ------------------------------------------------------------------ files of data

    def _check_files(self) -> None:
        """Open every file that holds data, and check that entries lie in them, none over another."""
        placed = sorted(
            (entry.shard, entry.offset, entry.size, key)
            for key, entry in self._entries.items()
            if entry.size and not entry.slices
        )
        self._open({shard: key for shard, _, _, key in reversed(placed)})
        before, end = -1, 0
        for shard, offset, size, key in placed:
            reader = self._readers[shard]
            if shard == before and offset < end:
                message = "its bytes overlap those of the entry before it"
                raise FormatError(message, file=reader.name, tensor=_shown(key), offset=offset)
            before, end = shard, offset + size
            if end > reader.size:
                message = f"its {size} bytes end at {end}, the file at {reader.size}"
                raise TruncatedError(message, file=reader.name, tensor=_shown(key), offset=offset)

    def _open(self, firsts: Mapping[int, bytes]) -> None:
        """Open files of data, given the first entry in each."""
        shards = self._header.shards
        for shard, key in sorted(firsts.items()):
            if shard >= shards:
                self._fail(f"lies in file {shard} of {shards}", key)
        paths = {data_name(self._prefix, shard, shards): shard for shard in sorted(firsts)}
        try:
            readers = open_files({path: Path(path) for path in paths}, self._stack)
        except NotFoundError as error:
            lost = paths.get(error.file or "", 0)
            message = f"file {lost} of {shards} is not there: it begins as the index; copy it, or rename both"
            raise MissingFileError(message, file=error.file, tensor=_shown(firsts[lost])) from None
        self._readers = {shard: readers[path] for path, shard in paths.items()}

    # ------------------------------------------------------------------ nodes

    def _made(self, key: bytes, entry: Entry) -> BundleEntry:
        name = self._name(key)
        count = self._count(entry.shape, key)
        number = base_number(entry.dtype)
        dtype = dtype_of_number(number)
        if dtype is None:
            self._check_whole(key, entry, count)
            return BundleEntry(name, entry.dtype, entry.shape, lambda: self._listed(name, entry, count))
        source = self._joined(key, entry, dtype) if entry.slices else self._source(key, entry, dtype)
        tensor = Tensor(dtype, entry.shape, source, tag=tag_of_number(number))
        return BundleEntry(name, entry.dtype, entry.shape, lambda: tensor)

    def _count(self, shape: tuple[int, ...], key: bytes) -> int:
        return checked_count(shape, file=self._index, tensor=_shown(key))

    def _check_whole(self, key: bytes, entry: Entry, count: int) -> None:
        if entry.slices:
            self._fail("strings and variants cannot lie in slices", key)
        if entry.size < count:
            self._fail(f"{entry.size} bytes for {count} elements", key, TruncatedError)

    def _listed(self, name: str, entry: Entry, count: int) -> Tree:
        """Return strings, or variants, which are read here."""
        variants = base_number(entry.dtype) == VARIANT
        file, data = self._bytes(entry)
        try:
            values, crc = (decode_variants if variants else decode_strings)(
                data, count, order="big" if self._header.big_endian else "little"
            )
        except FormatError as error:
            offset = entry.offset + (error.offset or 0)
            raise type(error)(error.message, file=file, tensor=name, offset=offset) from None
        check_crc(crc, entry.crc, file=file, tensor=name, offset=entry.offset)
        strings = Strings(entry.shape, values)
        return Opaque(VARIANT_NAME, {"state": strings}) if variants else strings

    def _bytes(self, entry: Entry) -> tuple[str, memoryview]:
        if entry.size == 0:
            return self._index, memoryview(b"")
        reader = self._readers[entry.shard]
        return reader.name, memoryview(reader.read(entry.offset, entry.size))

    def _source(self, key: bytes, entry: Entry, dtype: DType) -> Source:
        """Return the canonical bytes of an entry that is no list of slices."""
        count = self._count(entry.shape, key)
        if entry.size != count * dtype.numpy.itemsize:
            message = f"{entry.size} bytes for {dtype} of shape {list(entry.shape)}"
            self._fail(f"{message}, which takes {count * dtype.numpy.itemsize}", key)
        reader: ByteReader = self._readers[entry.shard] if entry.size else MemoryReader(b"", self._index)
        source: Source = CheckedSource(
            reader, entry.offset if entry.size else 0, entry.size, crc=entry.crc, tensor=_shown(key)
        )
        if dtype.packed:
            return NarrowSource(source, count, dtype.bits)
        word = dtype.numpy.itemsize // (2 if dtype.numpy.kind == "c" else 1)
        return SwappedSource(source, dtype.numpy) if self._header.big_endian and word > 1 else source

    def _joined(self, key: bytes, entry: Entry, dtype: DType) -> Source:
        """Return the canonical bytes of a tensor that lies in slices."""
        pieces = []
        for piece in dict.fromkeys(entry.slices):
            held = self._entries.get(slice_key(key, piece))
            if held is None or held.slices:
                self._fail(f"its slice {list(piece)} is not there", key)
            try:
                box = box_of(piece, entry.shape)
            except CkptError as error:
                self._fail(str(error), key)
            if held.shape != box.shape or held.dtype != entry.dtype:
                self._fail(f"its slice {list(piece)} is of shape {list(held.shape)}, or of another type", key)
            pieces.append((box, Tensor(dtype, box.shape, self._source(key, held, dtype))))
        try:
            return JoinedSource(dtype, entry.shape, pieces)
        except FormatError as error:
            raise error.located(file=self._index, tensor=_shown(key)) from None
