"""Writes a tree as a stream of pickles, the form of `torch.save` before 1.6.

Needs no PyTorch; the bytes depend on nothing but the tree, where PyTorch names storages after addresses.
``torch.load(weights_only=True)`` of 2.13 reads what is written, and so do releases from 1.0 on as far as they
know the types in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from ckptfmt.containers.pickle.emitter import BATCH, Emitter
from ckptfmt.frameworks.pytorch.emit import TreeEmitter
from ckptfmt.frameworks.pytorch.stream import MAGIC, PROTOCOL
from ckptfmt.storage.replace import replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["write", "write_to"]

_TYPE_SIZES = (("short", 2), ("int", 4), ("long", 4))


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
        What the form cannot hold, and what stands for it. Types without a storage class (8-bit floats,
        unsigned integers of more than 8 bits) and nested tensors are among it: PyTorch writes them and cannot
        read them back.

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
    emitter = TreeEmitter(legacy=True)
    pickled = emitter.emit(tree)
    file.write(_integer(MAGIC) + _integer(PROTOCOL) + _machine())
    file.write(pickled)
    numbers = sorted(range(len(emitter.storages)), key=str)  # as PyTorch sorts its keys: as strings
    file.write(_listed([str(number) for number in numbers]))
    for number in numbers:
        storage = emitter.storages[number]
        file.write((storage.nbytes // storage.element.width).to_bytes(8, "little"))
        file.writelines(storage.pieces())
    return tuple(emitter.findings)


def _integer(value: int) -> bytes:
    out = Emitter()
    out.integer(value)
    return out.finish()


def _machine() -> bytes:
    """Return the facts about a little-endian machine."""
    out = Emitter()
    out.op(b"}(")
    out.text("protocol_version")
    out.integer(PROTOCOL)
    out.text("little_endian")
    out.boolean(True)  # noqa: FBT003 - the value to write
    out.text("type_sizes")
    out.op(b"}(")
    for name, size in _TYPE_SIZES:
        out.text(name)
        out.integer(size)
    out.op(b"uu")
    return out.finish()


def _listed(names: Sequence[str]) -> bytes:
    out = Emitter()
    out.op(b"]")
    for start in range(0, len(names), BATCH):
        out.op(b"(")
        for name in names[start : start + BATCH]:
            out.text(name)
        out.op(b"e")
    return out.finish()
