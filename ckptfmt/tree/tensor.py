"""A named n-dimensional array leaf: a type, a shape, and a source that is read when asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import TreeError
from ckptfmt.tree.box import Box, Index, box_of_index
from ckptfmt.tree.dtypes import DType, dtype_of
from ckptfmt.tree.source import ArraySource, ZeroPadded, may_overlap, read_box

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ckptfmt.tree.nodes import Tag
    from ckptfmt.tree.source import Source

__all__ = ["Tensor"]


class Tensor:
    """An n-dimensional array that may still lie in a file.

    Indexing with integers, slices of step 1 and ``...`` reads just that box; `numpy` reads all of it.

    Parameters
    ----------
    dtype : DType
    shape : tuple of int
        In elements.
    source : Source
        Its canonical bytes.
    tag : Tag, optional
        The class it came from; outside every digest.
    identity : hashable, optional
        Equal for tensors that are one and the same memory (storage, offset, shape, strides, type): a tie.
        None if it shares with nobody.
    digest : bytes, optional
        The tensor digest that its checkpoint claims; not verified by itself.
    """

    __slots__ = ("__weakref__", "digest", "dtype", "identity", "shape", "source", "tag")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        source: Source,
        *,
        tag: Tag | None = None,
        identity: Hashable | None = None,
        digest: bytes | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.source = _zero_padded(source, dtype, shape) if dtype.bits < 8 else source
        self.tag = tag
        self.identity = identity
        self.digest = digest

    @classmethod
    def of(cls, array: np.ndarray, *, tag: Tag | None = None) -> Tensor:
        """Return a tensor over a numpy array of any strides and byte order, without a copy.

        Raises
        ------
        TreeError
            No type of the specification holds the array's elements.
        """
        array = np.asarray(array)  # subclasses reshape in ways of their own
        kind = dtype_of(array.dtype)
        identity = _array_identity(array, kind) if array.size else None
        return cls(kind, array.shape, ArraySource(array, kind), tag=tag, identity=identity)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The length of the canonical bytes."""
        return self.dtype.nbytes(self.shape)

    def numpy(self) -> np.ndarray:
        """Return all elements, shape `shape`, type ``dtype.numpy``; without a copy where that can be."""
        data = None if self.dtype.packed else self.source.view(0, self.nbytes)
        if not data:
            return self.read(Box.whole(self.shape))
        return np.frombuffer(data, self.dtype.numpy).reshape(self.shape)

    def read(self, box: Box) -> np.ndarray:
        """Return the elements of a box, shape ``box.shape``, type ``dtype.numpy``.

        Raises
        ------
        IndexError
            The box does not lie inside the tensor.
        FormatError, StorageError
            The bytes cannot be read or are not what their checkpoint says.
        """
        if not box.fits(self.shape):
            message = f"{box} does not lie inside a tensor of shape {self.shape}"
            raise IndexError(message)
        return read_box(self.source, self.dtype, self.shape, box)

    def into(self, out: np.ndarray) -> None:
        """Fill `out`, of the tensor's shape and type, any strides and byte order.

        Raises
        ------
        TreeError
            Shape or type differ (nothing is cast or broadcast), it is read-only, or its elements overlap.
        """
        self.check_fits(out)
        if out.flags.c_contiguous and out.size and out.dtype == self.dtype.numpy and not self.dtype.packed:
            self.source.readinto(0, out.reshape(-1).view(np.uint8).data)
        else:
            np.copyto(out, self.numpy())

    def check_fits(self, out: np.ndarray) -> None:
        """Raise TreeError unless `into` could fill `out`; reads nothing."""
        if out.shape != self.shape or dtype_of(out.dtype) != self.dtype:
            message = (
                f"cannot fill an array of {out.dtype} {out.shape} from a tensor of"
                f" {self.dtype} {self.shape}: nothing is cast or broadcast"
            )
            raise TreeError(message)
        if not out.flags.writeable:
            message = "cannot fill a copy of a tensor that numpy cannot share, or an array that is read-only"
            raise TreeError(message)
        if may_overlap(out):
            message = "cannot fill an array whose elements share memory with each other"
            raise TreeError(message)

    def bytes(self) -> memoryview:
        """Return the canonical bytes, without a copy where that can be."""
        data = self.source.view(0, self.nbytes)
        if data is None:
            data = np.empty(self.nbytes, np.uint8).data
            if self.nbytes:
                self.source.readinto(0, data)
        return data

    def __getitem__(self, index: Index) -> np.ndarray:
        box, shape = box_of_index(index, self.shape)
        return read_box(self.source, self.dtype, self.shape, box).reshape(shape)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001 - numpy's protocol
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                message = f"elements of {self.dtype} cannot be had as {dtype} without a copy"
                raise ValueError(message)
            return array.astype(dtype)
        return array.copy() if copy else array

    def __len__(self) -> int:
        if not self.shape:
            message = "len() of a 0-d tensor"
            raise TypeError(message)
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, {self.shape})"


def _zero_padded(source: Source, dtype: DType, shape: tuple[int, ...]) -> Source:
    """Return a source whose padding bits are zero, as canonical bytes demand."""
    used = math.prod(shape) * dtype.bits % 8
    if not used or isinstance(source, ArraySource | ZeroPadded):
        return source
    return ZeroPadded(source, dtype.nbytes(shape), used)


def _array_identity(array: np.ndarray, kind: DType) -> tuple[object, ...]:
    address = array.__array_interface__["data"][0]
    # numpy's own string names several of the types of ml_dtypes alike
    return ("memory", address, array.shape, array.strides, kind.name, array.dtype.str)
