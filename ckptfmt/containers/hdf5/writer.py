"""HDF5 files, written front to back, the same bytes for the same calls.

The library lays out groups, headers and indices; elements are streamed by us to where it says. Files are of
the version of HDF5 1.8 (2008): every reader of today knows it, its metadata has checksums, a group may have
any number of members. No times are recorded. Types that HDF5 has no name for are raw bytes with the attribute
``dtype``.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from itertools import product
from typing import TYPE_CHECKING, BinaryIO, final

import h5py
import numpy as np
from h5py import h5d, h5f, h5fd, h5g, h5p, h5s, h5t

from ckptfmt.containers.hdf5.elements import ML_NAMES, SHAPE_ATTRIBUTE, TYPE_ATTRIBUTE
from ckptfmt.containers.noted.planning import pieces
from ckptfmt.errors import CkptError, ConversionError
from ckptfmt.tree.nodes import Strings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.tensor import Tensor

__all__ = ["MAX_ATTRIBUTE", "Hdf5Writer", "held_as", "is_path"]

MAX_ATTRIBUTE = 64_000
"""Greatest size of an attribute in bytes: what fits into an object header of 64 KiB beside its name."""

_ALIGNMENT = 64
_ALIGNED_FROM = 256  # bytes; with less, the library searches the gaps it leaves, in quadratic time
_CHUNK = 1 << 20
_LEVEL = 4  # of deflate, as Chainer has it (chainer/serializers/hdf5.py)
_POINTER = 16  # what a string of any length takes where it is used
_MAX_NDIM = 32  # of HDF5 (H5S_MAX_RANK)


def is_path(path: str) -> bool:
    """Whether a path can be one of HDF5: parts that are not empty and not ``.``, without NUL."""
    return "\0" not in path and all(part not in ("", ".") for part in path.split("/"))


def held_as(kind: DType, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the words and the shape that `Hdf5File` gives to a tensor that `Hdf5Writer.add` wrote."""
    if kind.packed:
        return f"|u1 as {kind}", (kind.nbytes(shape),)
    if kind.name in ML_NAMES:
        return f"|V{kind.bits // 8} as {kind}", shape
    return kind.numpy.str, shape


@final
class Hdf5Writer:
    """Writes an HDF5 file; a context manager that closes it.

    Parameters
    ----------
    file : binary file
        Empty, seekable, readable and writable. Not closed here.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        access = h5p.create(h5p.FILE_ACCESS)
        access.set_fclose_degree(h5f.CLOSE_STRONG)
        access.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
        access.set_alignment(_ALIGNED_FROM, _ALIGNMENT)
        access.set_fileobj_driver(h5fd.fileobj_driver, file)
        creation = h5p.create(h5p.FILE_CREATE)
        creation.set_obj_track_times(False)
        with _translated(""):
            self._id = h5f.create(b"ckptfmt", h5f.ACC_TRUNC, creation, access)
        self._groups: dict[str, h5g.GroupID] = {"": h5g.open(self._id, b"/")}

    def group(self, path: str, attributes: Mapping[str, Attribute] | None = None) -> None:
        """Make a group and those above it where they are not there yet, and give it attributes.

        Parameters
        ----------
        path : str
            From the root, ``/`` between groups; empty for the root.
        attributes : dict, optional
            See `add`.

        Raises
        ------
        ConversionError
            The path is none, a dataset is there, or an attribute is too large.
        """
        _set_attributes(self._group(path), path, attributes or {})

    def add(
        self,
        path: str,
        tensor: Tensor,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        compressed: bool = False,
        named: bool = True,
    ) -> None:
        """Write a tensor, piece by piece.

        Parameters
        ----------
        path : str
            Groups on the way are made.
        tensor : Tensor
        attributes : dict, optional
            Text (UTF-8 of any length), bytes (of a fixed width), numbers as numpy arrays of any shape, arrays
            of strings (of any length where they are text, of a fixed width where they are bytes), None for
            an empty one.
        compressed : bool
            Whether elements are deflated (level 4) in chunks of about 1 MiB that run along the first axes.
        named : bool
            Whether a type that HDF5 has no name for is told by the attribute ``dtype``.

        Raises
        ------
        ConversionError
            The path is none or taken, an attribute is too large, or there are more than 32 dimensions.
        FormatError, StorageError
            As the tensor's source or the file says.
        """
        words, shape = held_as(tensor.dtype, tensor.shape)
        kind = np.dtype(words.partition(" ")[0])
        if len(shape) > _MAX_NDIM:
            raise ConversionError(f"{path!r} has {len(shape)} dimensions; HDF5 has at most {_MAX_NDIM}")
        chunk = _chunk(shape, kind.itemsize) if compressed and math.prod(shape) > 1 else None
        found = self._create(path, h5t.py_create(kind, logical=True), _space(shape), chunk)
        said = dict(attributes or {})
        if named and tensor.dtype.name in ML_NAMES:
            said[TYPE_ATTRIBUTE] = ML_NAMES[tensor.dtype.name]
            if tensor.dtype.packed:
                said[SHAPE_ATTRIBUTE] = np.array(tensor.shape, np.int64)
        _set_attributes(found, path, said)
        if chunk is not None:
            _write_chunks(found, tensor, chunk, shape, kind.itemsize)
        elif tensor.nbytes:
            self._write(found.get_offset(), tensor)

    def _write(self, offset: int, tensor: Tensor) -> None:
        """Write elements to where the library has made room for them."""
        for piece in pieces(tensor):
            self._file.seek(offset)
            self._file.write(piece)
            offset += len(piece)

    def add_text(
        self, path: str, strings: Strings, *, attributes: Mapping[str, Attribute] | None = None
    ) -> None:
        """Write an array of text as UTF-8 strings of any length.

        Raises
        ------
        ConversionError
            As `add`; also for bytes, and for text with a NUL, at which HDF5 would end it.
        """
        values = strings.values
        if any(isinstance(text, bytes) or "\0" in text for text in values):
            raise ConversionError(f"{path!r}: HDF5 holds text without NUL only")
        if len(strings.shape) > _MAX_NDIM:
            raise ConversionError(f"{path!r}: HDF5 has at most {_MAX_NDIM} dimensions")
        found = self._create(
            path, h5t.py_create(h5py.string_dtype(), logical=True), _space(strings.shape), None
        )
        if values:
            array = np.empty(len(values), h5py.string_dtype())
            array[:] = values
            with _translated(path):
                found.write(h5s.ALL, h5s.ALL, array.reshape(strings.shape))
        _set_attributes(found, path, attributes or {})

    def add_empty(self, path: str, *, attributes: Mapping[str, Attribute] | None = None) -> None:
        """Write an empty dataset (a null dataspace, of type f32): None, as Chainer has it.

        Raises
        ------
        ConversionError
            As `add`.
        """
        found = self._create(path, h5t.py_create(np.dtype("<f4")), h5s.create(h5s.NULL), None)
        _set_attributes(found, path, attributes or {})

    def link(self, path: str, written: str) -> None:
        """Give a dataset that was written a further name (a hard link).

        Raises
        ------
        ConversionError
            The path is none or taken, or nothing was written under the other name.
        """
        above, _, name = path.rpartition("/")
        group = self._group(above)
        if not is_path(path):
            raise ConversionError(f"{path!r} is no name of a dataset in HDF5")
        with _translated(path):
            group.links.create_hard(name.encode(), self._groups[""], written.encode())

    def _create(
        self, path: str, kind: h5t.TypeID, space: h5s.SpaceID, chunk: tuple[int, ...] | None
    ) -> h5d.DatasetID:
        above, _, name = path.rpartition("/")
        group = self._group(above)
        if not is_path(path):
            raise ConversionError(f"{path!r} is no name of a dataset in HDF5")
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_obj_track_times(False)
        plist.set_fill_time(h5d.FILL_TIME_NEVER if kind.get_class() != h5t.STRING else h5d.FILL_TIME_ALLOC)
        if chunk is not None:
            plist.set_chunk(chunk)
            plist.set_deflate(_LEVEL)
        else:
            plist.set_layout(h5d.CONTIGUOUS)
            plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        with _translated(path):
            return h5d.create(group, name.encode(), kind, space, dcpl=plist)

    def _group(self, path: str) -> h5g.GroupID:
        """Return a group, made together with those above it where it is not there yet."""
        found = self._groups.get(path)
        if found is not None:
            return found
        if not is_path(path):
            raise ConversionError(f"{path!r} is no name of a group in HDF5")
        at = ""
        for part in path.split("/"):
            above, at = self._groups[at], f"{at}/{part}" if at else part
            if at not in self._groups:
                plist = h5p.create(h5p.GROUP_CREATE)
                plist.set_obj_track_times(False)
                with _translated(at):
                    self._groups[at] = h5g.create(above, part.encode(), gcpl=plist)
        return self._groups[path]

    def close(self) -> None:
        """Write what the library still has, and let go of the file."""
        self._groups.clear()
        if self._id.valid:
            with _translated(""):
                self._id.close()
            self._file.flush()

    def __enter__(self) -> Hdf5Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(CkptError, OSError):
            self.close()


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Raise failures of the library within a block as a `ConversionError` that names the object."""
    try:
        yield
    except CkptError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
        said = " ".join(str(error).split())[:200]
        raise ConversionError(f"the HDF5 library cannot write {path!r}: {said}") from error


def _space(shape: tuple[int, ...]) -> h5s.SpaceID:
    return h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)


def _chunk(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Return a shape of chunks that are runs of the elements in C order, of about `_CHUNK` bytes."""
    run = width
    for axis in reversed(range(len(shape))):
        if run * shape[axis] > _CHUNK:
            return (*(1,) * axis, max(1, _CHUNK // run), *shape[axis + 1 :])
        run *= shape[axis]
    return shape


def _write_chunks(
    found: h5d.DatasetID, tensor: Tensor, chunk: tuple[int, ...], shape: tuple[int, ...], width: int
) -> None:
    """Deflate a tensor chunk by chunk; a last one that is not full is filled up with zeros."""
    axis = next((at for at, extent in enumerate(chunk) if extent > 1), len(chunk) - 1)
    row = math.prod(shape[axis + 1 :]) * width
    full = bytearray(chunk[axis] * row)
    start = 0
    for corner in product(*(range(0, extent, step) for extent, step in zip(shape, chunk, strict=True))):
        length = min(chunk[axis], shape[axis] - corner[axis]) * row
        if length < len(full):
            full[length:] = bytes(len(full) - length)
        tensor.source.readinto(start, memoryview(full)[:length])
        start += length
        with _translated("a chunk"):
            found.write_direct_chunk(corner, zlib.compress(full, _LEVEL))


def _set_attributes(
    found: h5g.GroupID | h5d.DatasetID, path: str, attributes: Mapping[str, Attribute]
) -> None:
    manager = h5py.AttributeManager(_Located(found))
    for name, value in sorted(attributes.items()):
        kind, data = _attribute(value)
        width = _POINTER if kind is None or kind.kind == "O" else kind.itemsize
        size = width * (data.size if isinstance(data, np.ndarray) else 1)
        if size > MAX_ATTRIBUTE:
            message = f"attribute {name!r} of {path!r} has {size} bytes; HDF5 has room for {MAX_ATTRIBUTE}"
            raise ConversionError(f"{message}: split it, or make it a dataset")
        with _translated(f"{path}@{name}"):
            manager.create(name, data, dtype=kind)


class _Located:
    """What h5py's manager of attributes wants to know of an object: its identifier."""

    __slots__ = ("id",)

    def __init__(self, found: h5g.GroupID | h5d.DatasetID) -> None:
        self.id = found


def _attribute(value: Attribute) -> tuple[np.dtype | None, object]:
    """Return the type that an attribute has in a file, and its value as h5py takes it."""
    if value is None:
        return None, h5py.Empty("f4")
    if isinstance(value, str):
        return h5py.string_dtype(), value
    if isinstance(value, bytes):
        return np.dtype(f"S{max(1, len(value))}"), np.array(value)
    if isinstance(value, Strings):
        if all(isinstance(text, bytes) for text in value.values):
            width = max(1, *map(len, value.values)) if value.values else 1
            return np.dtype(f"S{width}"), np.array(value.values, f"S{width}").reshape(value.shape)
        texts = np.empty(len(value.values), object)
        texts[:] = value.values
        return h5py.string_dtype(), texts.reshape(value.shape)
    return value.dtype, value
