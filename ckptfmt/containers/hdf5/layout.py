"""From a dataset's layout to the source of its elements.

Contiguous elements are a range of the file; chunks are listed once and read by us; compact elements are few
and read at once. Virtual datasets and elements in other files are refused by name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5d, h5i, h5s

from ckptfmt.containers.hdf5.filters import checked_filters
from ckptfmt.containers.hdf5.library import chunk_base
from ckptfmt.containers.hdf5.sources import ChunkedSource, Chunks, ConstantSource
from ckptfmt.containers.npy.sources import SwappedSource
from ckptfmt.errors import FormatError, LimitError, UnsupportedVersionError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.tree.source import BytesSource

if TYPE_CHECKING:
    from ckptfmt.containers.hdf5.budget import Budget
    from ckptfmt.containers.hdf5.elements import ElementType
    from ckptfmt.containers.hdf5.sources import SlabCache
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.source import Source

__all__ = ["check_layout", "source_of"]

_LAYOUTS = {h5d.COMPACT: "compact", h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked"}
_MAX_COMPACT = 1 << 16
_MAX_PLACE = 2**62
_MOVED = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def check_layout(found: h5d.DatasetID, *, file: str, name: str) -> str:
    """Return ``"compact"``, ``"contiguous"`` or ``"chunked"``.

    Raises
    ------
    UnsupportedVersionError
        The elements are in other files or datasets, or went through filters that we do not undo.
    """
    plist = found.get_create_plist()
    layout = plist.get_layout()
    if layout not in _LAYOUTS:
        message = "a virtual dataset: its elements are those of other files or datasets"
        raise UnsupportedVersionError(message, file=file, tensor=name)
    if plist.get_external_count():
        raise UnsupportedVersionError("its elements are in other files", file=file, tensor=name)
    checked_filters(_filters(plist), file=file, tensor=name)
    return _LAYOUTS[layout]


def _filters(plist: h5d.PropDCID) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (code, tuple(values)) for code, _, values, _ in map(plist.get_filter, range(plist.get_nfilters()))
    ]


def source_of(
    found: h5d.DatasetID,
    kind: ElementType,
    shape: tuple[int, ...],
    reader: ByteReader,
    name: str,
    budget: Budget,
    cache: SlabCache,
) -> Source:
    """Return the canonical bytes of a dataset whose layout was checked.

    Parameters
    ----------
    found : h5py.h5d.DatasetID
    kind : ElementType
    shape : tuple of int
    reader : ByteReader
        The file, from its very first byte.
    name : str
    budget : Budget
    cache : SlabCache

    Raises
    ------
    TruncatedError, FormatError, LimitError
        Elements are not where they should be, or would be more than the file can hold.
    """
    layout = check_layout(found, file=reader.name, name=name)
    if layout == "compact" and kind.text:
        message = "strings of any length in an object header are not read"
        raise UnsupportedVersionError(message, file=reader.name, tensor=name)
    nbytes = math.prod(shape) * kind.width
    if nbytes == 0:
        return BytesSource(memoryview(b""))
    if layout == "compact":
        return _turned(BytesSource(memoryview(_compact(found, nbytes, reader, name))), kind)
    if layout == "contiguous":
        return _contiguous(found, kind, nbytes, reader, name, budget)
    return _chunked(found, kind, shape, reader, name, budget, cache)


def _turned(source: Source, kind: ElementType) -> Source:
    return SwappedSource(source, kind.stored) if kind.swapped else source


def _compact(found: h5d.DatasetID, nbytes: int, reader: ByteReader, name: str) -> bytes:
    if nbytes > _MAX_COMPACT:
        raise FormatError(f"{nbytes} bytes cannot be in an object header", file=reader.name, tensor=name)
    out = np.zeros(nbytes, np.uint8)
    found.read(h5s.ALL, h5s.ALL, out, mtype=found.get_type())
    return out.tobytes()


def _contiguous(
    found: h5d.DatasetID, kind: ElementType, nbytes: int, reader: ByteReader, name: str, budget: Budget
) -> Source:
    offset, stored = found.get_offset(), found.get_storage_size()
    if offset is None or not stored:  # nothing was ever written; an offset is meaningless then
        budget.expand(nbytes, name)
        return ConstantSource(_fill(found, kind))
    if stored < nbytes:
        message = f"shape {list(found.shape)} needs {nbytes} bytes; {stored} are stored"
        raise FormatError(message[:400], file=reader.name, tensor=name, offset=offset)
    budget.occupy(np.array([offset], np.int64), np.array([offset + nbytes], np.int64), name)
    return _turned(RangeSource(reader, offset, nbytes), kind)


def _chunked(
    found: h5d.DatasetID,
    kind: ElementType,
    shape: tuple[int, ...],
    reader: ByteReader,
    name: str,
    budget: Budget,
    cache: SlabCache,
) -> Source:
    plist = found.get_create_plist()
    pipeline = checked_filters(_filters(plist), file=reader.name, tensor=name)
    chunks = _chunks(found, tuple(plist.get_chunk()), shape, reader, name)
    chunk_bytes = math.prod(chunks.chunk) * kind.width
    if pipeline or not chunks.whole:
        budget.expand(max(math.prod(shape) * kind.width, chunks.place.size * chunk_bytes), name)
    budget.occupy(chunks.start, chunks.start + chunks.size, name)
    moved = np.dtype(_MOVED.get(kind.width, f"V{kind.width}"))
    return ChunkedSource(
        reader,
        name,
        chunks,
        pipeline,
        stored=kind.stored if kind.swapped else moved,
        canonical=kind.stored.newbyteorder("<") if kind.swapped else moved,
        fill=b"" if chunks.whole else _fill(found, kind),
        cache=cache,
    )


def _chunks(
    found: h5d.DatasetID, chunk: tuple[int, ...], shape: tuple[int, ...], reader: ByteReader, name: str
) -> Chunks:
    """Return where the chunks are, from one walk over the library's index."""
    grid = [-(-extent // step) for extent, step in zip(shape, chunk, strict=True)]
    if math.prod(grid) > _MAX_PLACE:
        raise LimitError(f"{math.prod(grid)} chunks", file=reader.name, tensor=name)
    strides = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]
    rows: list[tuple[int, int, int, int]] = []
    base = chunk_base(h5i.get_file_id(found).get_create_plist().get_userblock())
    most = reader.size // 8 + 64  # an entry of any index takes more

    def listed(info: h5d.StoreInfo) -> None:
        place = 0
        for at, step, count, stride in zip(info.chunk_offset, chunk, grid, strides, strict=True):
            if at % step or at // step >= count:
                raise FormatError(f"a chunk at {info.chunk_offset}", file=reader.name, tensor=name)
            place += at // step * stride
        if len(rows) > most or info.byte_offset is None:
            raise FormatError("an index of chunks that is damaged", file=reader.name, tensor=name)
        rows.append((place, base + info.byte_offset, info.size, info.filter_mask))

    found.chunk_iter(listed)
    columns = np.array(sorted(rows), np.int64).reshape(-1, 4)
    if (np.diff(columns[:, 0]) == 0).any():
        raise FormatError("two chunks at one place", file=reader.name, tensor=name)
    place, start, size, mask = (np.ascontiguousarray(columns[:, axis]) for axis in range(4))
    return Chunks(shape, chunk, place, start, size, mask)


def _fill(found: h5d.DatasetID, kind: ElementType) -> bytes:
    """Return the fill value in canonical order: zeros where none is defined."""
    plist = found.get_create_plist()
    if kind.text or plist.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return bytes(kind.width)
    out = np.zeros(1, kind.stored)
    if out.dtype.kind == "V":  # the library converts nothing to raw bytes
        plain = found.dtype
        out = np.zeros(1, plain if plain.itemsize == kind.width and plain.kind == "V" else kind.stored)
    plist.get_fill_value(out)
    return (out.byteswap() if kind.swapped else out).tobytes()
