"""Reads bare pickles: nested containers of numpy arrays and plain values, as people keep weights in ``.pkl``.

Inert: nothing that the file names is imported or called. Tensors that were pickled without `torch.save` are
read too, for each of their storages is a stream in bytes. Long arrays stay in the file where the protocol
keeps them as bytes (3 and later, and Python 2); older ones of Python 3 write them as text, which is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.pickle.arrays import bytes_of
from ckptfmt.containers.pickle.interpreter import interpret_from
from ckptfmt.containers.pickle.nodes import Call, FileBytes, PersistentId
from ckptfmt.errors import FormatError, LimitError, MissingFileError
from ckptfmt.frameworks.pytorch.opening import opened
from ckptfmt.frameworks.pytorch.reader import limits_for, tree_of
from ckptfmt.frameworks.pytorch.rebuild import FREE_BYTES, MAX_EXPANSION, Tensors
from ckptfmt.frameworks.pytorch.stream import Stream
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.storage.slices import SliceReader
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    import os

    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.frameworks.pytorch.storages import Storage
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.nodes import Tree

__all__ = ["read", "read_bare"]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a bare pickle.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        Close it when done.

    Raises
    ------
    FormatError
        The file is damaged, hostile, or refers to something outside; says where.
    TruncatedError
        It ends early.
    NotFoundError, StorageError
        It is not there, or cannot be read.
    """
    return opened(path, "pickle", read_bare)


def read_bare(reader: ByteReader) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of a bare pickle, and what was found; errors as `read`."""
    body = interpret_from(reader, limits=limits_for(reader))
    inside = _Inside(reader)
    makes = Tensors(inside, refer=_outside, embedded=inside.open)
    tree, findings = tree_of(body.value, makes, file=reader.name)
    _check_claims(tree, reader)
    if body.end == reader.size:
        return tree, findings
    message = f"{reader.size - body.end} bytes follow the pickle, another one perhaps; they are not read"
    more = Finding("trailing-bytes", "", Severity.LOSS, message, offset=body.end)
    return tree, (*findings, more)


def _check_claims(tree: Tree, reader: ByteReader) -> None:
    """Refuse arrays that are made of the same bytes again and again, as `Tensors` does views."""
    claimed = {place.tensor.identity or place.path: place.tensor.nbytes for place in survey(tree)}
    if sum(claimed.values()) > FREE_BYTES + MAX_EXPANSION * reader.size:
        message = f"arrays claim more than {FREE_BYTES} bytes and {MAX_EXPANSION} times those of the file"
        raise LimitError(message, file=reader.name)


def _outside(_: PersistentId) -> NoReturn:
    message = "the pickle refers to something outside: it was part of a file; give the whole file"
    raise MissingFileError(message)


class _Inside:
    """Storages that lie in the pickle: each is a stream of its own."""

    def __init__(self, reader: ByteReader) -> None:
        self.nbytes = reader.size
        self._reader = reader
        self._opened: dict[int, tuple[Call, Storage, ElementType | None]] = {}

    def find(self, key: str, nbytes: int) -> Storage:
        """Refuse: a pickle has no storages by key."""
        raise MissingFileError(f"there is no storage {key!r} of {nbytes} bytes", file=self._reader.name)

    def open(self, call: Call) -> tuple[Storage, ElementType | None]:
        """Return the one storage of the stream that a call would load, and its type unless it is untyped."""
        known = self._opened.get(id(call))
        if known is None:
            known = self._opened[id(call)] = (call, *self._storage(call))
        return known[1:]

    def _storage(self, call: Call) -> tuple[Storage, ElementType | None]:
        data = call.args[0] if len(call.args) == 1 else None
        name = f"{self._reader.name}: a storage in bytes"
        reader: ByteReader
        if isinstance(data, FileBytes):
            reader = SliceReader(data.reader, data.offset, data.length, name=name)
        else:
            held = bytes_of(data)
            if held is None:
                raise FormatError("a storage without bytes")
            reader = MemoryReader(held, name)
        stream = Stream(reader)
        value = stream.value.value if isinstance(stream.value, PersistentId) else None
        if not isinstance(value, tuple):
            raise FormatError("bytes of a storage that hold something else", file=name)
        return Tensors(stream.storages).find(value)
