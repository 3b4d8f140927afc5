"""Writes a tree as a zip file of `torch.save`, whose bytes depend on nothing but the tree.

Needs no PyTorch. ``torch.load(weights_only=True)`` of 2.13 reads what is written, mapped or not. The archive
is laid out as PyTorch's own writer does: stored members at multiples of 64 bytes below one folder, always
called ``archive``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, BinaryIO

from ckptfmt.containers.zip.writer import ZipWriter
from ckptfmt.frameworks.pytorch.emit import TreeEmitter
from ckptfmt.storage.replace import replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["write", "write_to"]

_ROOT = "archive"
_ALIGNMENT = 64


def write(tree: Tree, target: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Finding, ...]:
    """Write a tree to a file, all of it or none.

    Parameters
    ----------
    tree : Tree
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there may be replaced.

    Returns
    -------
    tuple of Finding
        What PyTorch cannot hold, and what stands for it.

    Raises
    ------
    ExistsError
        The target is there, and `overwrite` is not set.
    StorageError, NoSpaceError
        It cannot be written; what was there stays.
    FormatError
        A tensor's own file is damaged.
    """
    with replacing(target, overwrite=overwrite) as file:
        return write_to(tree, file)


def write_to(tree: Tree, file: BinaryIO) -> tuple[Finding, ...]:
    """Write a tree to an open file; returns and raises as `write`.

    Parameters
    ----------
    tree : Tree
    file : binary file
        Writable; it need not be seekable. Not closed here.
    """
    emitter = TreeEmitter()
    pickled = emitter.emit(tree)
    writer = _Records(ZipWriter(file, descriptors=True, alignment=_ALIGNMENT))
    writer.add("data.pkl", len(pickled), (pickled,))
    writer.word(".format_version", b"1")
    writer.word(".storage_alignment", b"%d" % _ALIGNMENT)
    writer.word("byteorder", b"little")
    for number, storage in enumerate(emitter.storages):
        writer.add(f"data/{number}", storage.nbytes, storage.pieces())
    writer.word("version", b"3\n")
    writer.word(".data/serialization_id", writer.identity())
    writer.close()
    return tuple(emitter.findings)


class _Records:
    """The members of one archive, and a checksum over all of them."""

    def __init__(self, writer: ZipWriter) -> None:
        self._writer = writer
        self._names = 0
        self._data = 0
        self.close = writer.close

    def add(self, name: str, size: int, pieces: Iterable[bytes | memoryview]) -> None:
        crc = self._writer.add(f"{_ROOT}/{name}", size, pieces)
        self._names = zlib.crc32(name.encode(), self._names)
        self._data = zlib.crc32(crc.to_bytes(4, "little"), self._data)

    def word(self, name: str, data: bytes) -> None:
        self.add(name, len(data), (data,))

    def identity(self) -> bytes:
        """Return 40 digits that depend on names and data, where PyTorch has a hash of the same."""
        return b"%020d%020d" % (self._names, self._data)
