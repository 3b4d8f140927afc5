"""The bytes of one item: a whole file of `torch.save` within a `.distcp` file.

An item that is a chunk of a tensor is opened when its bytes are asked for, and compared then with what the
metadata says of it. Other items are read with the tree; tensors inside of them stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError
from ckptfmt.frameworks.pytorch.reader import read_zip
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.nodes import Composite
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.source import Source

__all__ = ["ChunkSource", "read_object", "read_tensor_like"]

_SMALL = 64 << 10


class ChunkSource:
    """The canonical bytes of an item that must be a dense tensor.

    Parameters
    ----------
    reader : ByteReader
        All of the item.
    dtype : DType
    shape : tuple of int
        What the metadata says.
    label : str
        The tensor's name, for errors.
    """

    __slots__ = ("_dtype", "_inner", "_label", "_reader", "_shape")

    def __init__(self, reader: ByteReader, dtype: DType, shape: tuple[int, ...], label: str) -> None:
        self._reader = reader
        self._dtype = dtype
        self._shape = shape
        self._label = label
        self._inner: Source | None = None

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return mapped bytes, once their record is verified; None for small items."""
        if self._reader.size <= _SMALL:
            return None
        try:
            return self._source().view(start, stop)
        except FormatError as error:
            raise error.located(tensor=self._label) from None

    def readinto(self, start: int, out: memoryview) -> None:
        """Fill `out`, once the record is verified."""
        try:
            self._source().readinto(start, out)
        except FormatError as error:
            raise error.located(tensor=self._label) from None

    def _source(self) -> Source:
        """Return the bytes of the item, opened; it stays open unless it is small: of those there are many."""
        if self._inner is not None:
            return self._inner
        reader = _at_hand(self._reader)
        node, _ = read_zip(reader)
        if not isinstance(node, Tensor) or (node.dtype, node.shape) != (self._dtype, self._shape):
            found = f"{node.dtype} of {list(node.shape)}" if isinstance(node, Tensor) else "no tensor"
            message = f"an item is {found}; the metadata says {self._dtype} of {list(self._shape)}"
            raise FormatError(message, file=self._reader.name)
        if reader is self._reader:
            self._inner = node.source
        return node.source


def _at_hand(reader: ByteReader) -> ByteReader:
    """Return a small item in memory, where a dozen reads would follow."""
    return reader if reader.size > _SMALL else MemoryReader(reader.read(0, reader.size), reader.name)


def read_object(reader: ByteReader, label: str) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of an item that is no chunk of a tensor, and what was found.

    Raises
    ------
    FormatError
        It is malformed or hostile; names the item.
    """
    try:
        return read_zip(_at_hand(reader))
    except FormatError as error:
        raise error.located(tensor=label) from None


def read_tensor_like(reader: ByteReader, label: str) -> Tree:
    """Return an item that is a tensor of another layout: sparse, quantised, of bits.

    Raises
    ------
    FormatError
        As `read_object`, or it is none.
    """
    try:
        node, _ = read_zip(reader)
    except FormatError as error:
        raise error.located(tensor=label) from None
    if not isinstance(node, Composite):
        raise FormatError(
            "an item is not of the layout that the metadata says", tensor=label, file=reader.name
        )
    return node
