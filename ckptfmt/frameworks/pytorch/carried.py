"""How PyTorch can hold a tensor: its element type and shape there, and the bytes of its storage.

Types that PyTorch has are carried bit for bit. The others are widened to one that holds every value exactly,
and byte strings become bytes with one more dimension; both are told of. Bytes come in pieces, never whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.storages import CHANNELS_LAST, contiguous
from ckptfmt.tree.box import Box
from ckptfmt.tree.source import ArraySource, read_box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.tree.source import Source
    from ckptfmt.tree.tensor import Tensor

__all__ = ["PIECE", "Carried", "carry"]

PIECE = 16 << 20
"""Bytes that are in memory at a time."""

_WIDENED = {
    "i4": "int8",
    "u4": "uint8",
    "i2": "int8",
    "u2": "uint8",
    "f8_e4m3b11fnuz": "float16",
    "f4_e2m1fn": "float16",  # where PyTorch cannot count its pairs
}
_WIDENED_TYPED = _WIDENED | {
    "f8_e4m3fn": "float16",
    "f8_e5m2": "float16",
    "f8_e4m3fnuz": "float16",
    "f8_e5m2fnuz": "float16",
    "f8_e8m0fnu": "float32",
    "u16": "int32",
    "u32": "int64",
}
"""Where there are no untyped storages."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A tensor as PyTorch can hold it.

    Attributes
    ----------
    tensor : Tensor
        What is held.
    element : ElementType
        PyTorch's type.
    shape, strides : tuple of int
        As PyTorch counts them, in elements.
    change : str or None
        How it differs from the tensor: ``dtype-widened`` or ``dtype-as-bytes``.
    order : tuple of int or None
        The order of the axes in memory, where it is not that of the shape.
    """

    tensor: Tensor
    element: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    change: str | None = None
    order: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the storage."""
        if self.element.role == "quantized" and self.tensor.dtype.packed:
            return self.tensor.nbytes
        return math.prod(self.shape) * self.element.width

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the storage, at most `PIECE` at a time; each is valid until the next."""
        if self.nbytes == 0:
            return iter(())
        if self.change == "dtype-widened":
            return _widened(self.tensor, np.dtype(self.element.name))
        if self.order is not None:
            array = self.tensor.numpy().transpose(self.order)
            return _pieces(ArraySource(array, self.tensor.dtype), self.nbytes)
        return _pieces(self.tensor.source, self.nbytes)


def carry(tensor: Tensor, *, memory_format: str | None = None, typed: bool = False) -> Carried:
    """Return how PyTorch can hold a tensor.

    Parameters
    ----------
    tensor : Tensor
    memory_format : str, optional
        One of `CHANNELS_LAST`; ignored where it does not fit.
    typed : bool
        Whether only types that have a storage class can be held.
    """
    name, shape = tensor.dtype.name, tensor.shape
    element = keys.BY_DTYPE.get(name)
    if typed and element is not None and element.storage is None:
        element = None
    if element is not None and element.role == "packed":
        if not shape or shape[-1] % 2:
            element = None
        else:
            shape = (*shape[:-1], shape[-1] // 2)
    if element is not None:
        order = CHANNELS_LAST.get(memory_format or "")
        if order is None or len(order) != len(shape) or element.role == "packed":
            return Carried(tensor, element, shape, contiguous(shape))
        inner = contiguous(tuple(shape[axis] for axis in order))
        strides = tuple(inner[order.index(axis)] for axis in range(len(shape)))
        return Carried(tensor, element, shape, strides, order=order)
    widened = _WIDENED_TYPED if typed else _WIDENED
    if name in widened:
        wide = keys.BY_NAME[widened[name]]
        return Carried(tensor, wide, shape, contiguous(shape), "dtype-widened")
    shape = (*shape, tensor.dtype.bits // 8)
    return Carried(tensor, keys.BY_NAME["uint8"], shape, contiguous(shape), "dtype-as-bytes")


def _pieces(source: Source, nbytes: int) -> Iterator[memoryview]:
    buffer: memoryview | None = None
    for start in range(0, nbytes, PIECE):
        stop = min(start + PIECE, nbytes)
        piece = source.view(start, stop)
        if piece is None:
            if buffer is None:
                buffer = np.empty(min(PIECE, nbytes), np.uint8).data
            piece = buffer[: stop - start]
            source.readinto(start, piece)
        yield piece


def _widened(tensor: Tensor, wide: np.dtype) -> Iterator[memoryview]:
    step = PIECE // wide.itemsize
    for first in range(0, tensor.size, step):
        box = Box((first,), (min(step, tensor.size - first),))
        numbers = read_box(tensor.source, tensor.dtype, (tensor.size,), box)
        yield numbers.astype(wide).view(np.uint8).data
