"""The elements of an npy file to a node of a tree, read when asked.

Plain types become tensors over the file's own bytes; unicode becomes `Strings`; raw bytes, structures, times
and long doubles become composites, as arrays in memory do in `ckptfmt.tree.capture`. Values are never
changed: byte order and index order are all that is turned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.npy.descr import is_long_double, simple_type, structured_type
from ckptfmt.containers.npy.objects import check_none
from ckptfmt.containers.npy.sources import FortranSource, SwappedSource
from ckptfmt.errors import FormatError, LimitError, TreeError, TruncatedError, UnsupportedVersionError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.tree.arrays import numpy_node
from ckptfmt.tree.dtypes import dtype, dtype_of
from ckptfmt.tree.nodes import Composite, Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.containers.npy.header import NpyHeader
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.source import Source

__all__ = ["MAX_STRINGS", "node_of", "raw_tensor"]

MAX_STRINGS = 1 << 20
"""Greatest number of elements of a unicode array: each becomes a Python string."""

_SLAB_BYTES = 4 << 20


def node_of(reader: ByteReader, header: NpyHeader) -> Tree:
    """Return the node of an array whose header was read from `reader`.

    Tensors stay in the file. A structure is mapped where the reader can, and read otherwise.

    Raises
    ------
    TruncatedError
        The elements end too early.
    UnsupportedVersionError
        Objects other than None, or a structure with members that no node holds.
    LimitError
        More than `MAX_STRINGS` unicode strings, or elements wider than 2^31 bytes.
    FormatError
        The type is none of numpy's, or bytes follow the elements.
    """
    if header.descr == "|O":
        check_none(reader, header)
        return None
    if not isinstance(header.descr, str):
        return _structured(reader, header)
    order, code, width = simple_type(header.descr, file=reader.name)
    _check_size(reader, header, width)
    if code == "U":
        return _strings(reader, header, np.dtype(header.descr))
    if code in "mM":
        return _times(reader, header, order)
    if code == "V":
        return Composite("numpy.void", {}, {"bytes": raw_tensor(reader, header, width)})
    if (code, width) == ("f", 1):  # what ml_dtypes calls its float8_e5m2, and only that
        return _tensor(reader, header, dtype("f8_e5m2").numpy)
    if is_long_double(code, width):
        parts: dict = {"bytes": raw_tensor(reader, header, width)}
        return Composite("numpy.longdouble", {"descr": header.descr}, parts)
    return _tensor(reader, header, np.dtype(header.descr))


def _check_size(reader: ByteReader, header: NpyHeader, width: int) -> None:
    """Check that the elements fill what follows the header, exactly."""
    needed = header.data_start + header.count * width
    if needed > reader.size:
        message = (
            f"shape {list(header.shape)} of {header.descr} needs {needed} bytes; there are {reader.size}"
        )
        raise TruncatedError(message[:400], file=reader.name, offset=reader.size)
    if needed < reader.size:
        excess = reader.size - needed
        raise FormatError(f"{excess} bytes after the last element", file=reader.name, offset=needed)


def _tensor(reader: ByteReader, header: NpyHeader, kind: np.dtype) -> Tensor:
    ours = dtype_of(kind)
    source: Source
    if header.fortran_order and len(header.shape) > 1 and header.count:
        source = FortranSource(reader, header.data_start, kind, header.shape)
    else:
        source = RangeSource(reader, header.data_start, header.count * kind.itemsize)
        if kind != ours.numpy:
            source = SwappedSource(source, kind)
    return Tensor(ours, header.shape, source)


def raw_tensor(reader: ByteReader, header: NpyHeader, width: int) -> Tensor:
    """Return the bytes of elements of `width` bytes as a u8 tensor of one more dimension, in C order."""
    source: Source
    if header.fortran_order and len(header.shape) > 1 and header.count:
        source = FortranSource(reader, header.data_start, np.dtype(np.uint8), header.shape, width=width)
    else:
        source = RangeSource(reader, header.data_start, header.count * width)
    return Tensor(dtype("u8"), (*header.shape, width), source)


def _times(reader: ByteReader, header: NpyHeader, order: str) -> Composite:
    kind = np.dtype(str(header.descr))
    unit, step = np.datetime_data(kind)
    values = _tensor(reader, header, np.dtype(f"{order}i8"))
    name = kind.name.partition("[")[0]
    return Composite("numpy.time", {"kind": name, "unit": f"{step}{unit}"}, {"values": values})


def _strings(reader: ByteReader, header: NpyHeader, kind: np.dtype) -> Strings:
    if header.count > MAX_STRINGS:
        raise LimitError(f"{header.count} unicode strings; at most {MAX_STRINGS} are read", file=reader.name)
    values = tuple(text for slab in _slabs(reader, header, kind) for text in slab)
    if header.fortran_order and len(header.shape) > 1:
        positions = np.arange(header.count).reshape(header.shape, order="F").reshape(-1)
        values = tuple(values[at] for at in positions)
    return Strings(header.shape, values)


def _slabs(reader: ByteReader, header: NpyHeader, kind: np.dtype) -> Iterator[list[str]]:
    """Yield the strings in the file's order, a few MiB at a time."""
    step = max(1, _SLAB_BYTES // kind.itemsize)
    for first in range(0, header.count, step):
        count = min(step, header.count - first)
        data = reader.read(header.data_start + first * kind.itemsize, count * kind.itemsize)
        points = np.frombuffer(data, f"{kind.str[0]}u4")
        if ((points >> 11 == 0xD800 >> 11) | (points > 0x10FFFF)).any():  # half a character, or none
            raise FormatError("a string that is not valid Unicode", file=reader.name)
        yield np.frombuffer(data, kind).tolist()


def _structured(reader: ByteReader, header: NpyHeader) -> Tree:
    kind = structured_type(header.descr, file=reader.name)
    _check_size(reader, header, kind.itemsize)
    length = header.count * kind.itemsize
    data = reader.view(header.data_start, length) or reader.read(header.data_start, length)
    order = "F" if header.fortran_order else "C"
    try:
        array = np.frombuffer(data, kind) if length else np.empty(header.count, kind)
        return numpy_node(array.reshape(header.shape, order=order))  # type: ignore[call-overload] # "C" or "F"
    except TreeError as error:
        raise UnsupportedVersionError(f"a structure that is not read: {error}", file=reader.name) from None
