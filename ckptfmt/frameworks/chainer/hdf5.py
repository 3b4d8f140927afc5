"""Chainer's HDF5 files: the same hierarchy as groups (``chainer/serializers/hdf5.py``). Needs h5py.

Datasets are read as they are; an empty one (a null dataspace) is a parameter that was never initialised:
None. Groups without members say nothing, as NPZ files of the same object do. What is written is loaded by
``load_hdf5``, which cannot load text: text is told as lost to Chainer, and stays in the structure note.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.hdf5.reader import Hdf5File
from ckptfmt.containers.hdf5.writer import Hdf5Writer, held_as
from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, note_bytes, note_entry
from ckptfmt.containers.noted.planning import Held
from ckptfmt.frameworks.chainer.members import MARK, members_of, tree_of_members
from ckptfmt.frameworks.chainer.npz import step_of
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.paths import dotted
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable

    from ckptfmt.frameworks.chainer.members import Members
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = ["read", "write"]

_OURS = frozenset({"dtype", "shape", MARK})


class _Names:
    """What planning must know of Chainer's HDF5 files.

    Parameters
    ----------
    tree : Tree
        None of its tensors may be called as a group that another needs.
    """

    def __init__(self, tree: Tree) -> None:
        above: set[str] = {MARK}
        for path, _ in tensors(tree):
            parts = self.name(path).split("/")
            above.update("/".join(parts[:count]) for count in range(1, len(parts)))
        self.reserved = frozenset(above)

    @staticmethod
    def name(path: Path) -> str:
        """Return the keys of a path joined by ``/``; parts that HDF5 cannot have are escaped by ``#``."""
        joined = "/".join(dotted((key,)) for key in path).replace("\0", "\\0")
        parts = [f"{part}#" if part in ("", ".") else part for part in joined.split("/")]
        if len(parts) > 1 and parts[0] in (NOTE, MARK):
            parts[0] += "#"
        return "/".join(parts)

    @staticmethod
    def held(kind: DType, shape: tuple[int, ...]) -> Held:
        """Return how HDF5 holds a tensor; types that it has no name for are told by an attribute."""
        words, extents = held_as(kind, shape)
        return Held(words, extents, exact=True)


class _Datasets:
    """The datasets of a file."""

    def __init__(self, file: Hdf5File) -> None:
        self._file = file

    def same(self, name: str, other: str) -> bool:
        """Whether two names are of one dataset."""
        return self._file.datasets[name] is self._file.datasets[other]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open an HDF5 file of Chainer.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        Nested as the groups are; a snapshot of a trainer tells its step.

    Raises
    ------
    FormatError, TruncatedError, ChecksumError, LimitError, UnsupportedVersionError
        The file is malformed, hostile, or leads out of itself.
    NotFoundError, StorageError
        It cannot be opened.
    """
    file = Hdf5File(path)
    try:
        entries = [Entry(name, found.words, found.shape, found.node) for name, found in file.datasets.items()]
        note = note_entry(entries) if MARK in file.root.attributes else None
        others = [entry for entry in entries if entry is not note]
        read_note = None if note is None else partial(note_bytes, note, file.size)
        tree, findings = tree_of_members(
            others, read_note, _Datasets(file), _Names({}), file=file.name, texts=False
        )
        step = step_of(others)
    except BaseException:
        file.close()
        raise
    told = (*file.findings, *_told_attributes(file), *findings)
    return Checkpoint(tree, format="chainer-hdf5", findings=told, step=step, close=file.close)


def _told_attributes(file: Hdf5File) -> tuple[Finding, ...]:
    """Tell of attributes, which Chainer neither writes nor reads."""
    groups = [path for path, found in file.groups.items() if not _OURS.issuperset(found.attributes)]
    datasets = [path for path, found in file.datasets.items() if not _OURS.issuperset(found.attributes)]
    names = groups + datasets
    if not names:
        return ()
    message = f"{len(names)} groups or datasets have attributes, {names[0] or '/'!r} first: they are not read"
    return (Finding("attribute-unread", names[0], Severity.LOSS, message, file=file.name),)


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    compressed: bool = False,
) -> tuple[Finding, ...]:
    """Write a tree as an HDF5 file that ``chainer.serializers.load_hdf5`` loads.

    The bytes depend on the tree and the version of the HDF5 library; compressed ones on zlib's, too.

    Parameters
    ----------
    tree : Tree
        As for `ckptfmt.frameworks.chainer.npz.write`.
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced; whoever has it open keeps its bytes.
    compressed : bool
        Whether arrays of more than one element are deflated (level 4), as Chainer does.

    Returns
    -------
    tuple of Finding
        ``text-lost`` (a loss) for text; ``structure-note`` and ``tie-noted``.

    Raises
    ------
    ConversionError
        More dimensions than the format can have.
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    members = members_of(tree, _Names(tree), texts=False)
    with replacing(target, overwrite=overwrite) as file, Hdf5Writer(file) as writer:
        if members.note is not None:
            size = len(members.note)
            writer.add(NOTE, Tensor(dtype("u8"), (size,), BytesSource(memoryview(members.note))))
            writer.group("", {MARK: np.array(1, np.uint8)})
        for row in members.rows:
            writer.add(row.name, row.tensor, compressed=compressed)
        _add_others(writer, members)
    return members.findings


def _add_others(writer: Hdf5Writer, members: Members) -> None:
    """Write what is no tensor of its own: None, numbers, further names of tied tensors."""
    written = {_identity(row.tensor): row.name for row in members.rows}
    for name, node in members.others.items():
        tied = written.get(_identity(node)) if isinstance(node, Tensor) else None
        if tied is not None:
            writer.link(name, tied)
        elif isinstance(node, Tensor):
            writer.add(name, node)
        else:
            writer.add_empty(name)


def _identity(tensor: Tensor) -> Hashable:
    return id(tensor) if tensor.identity is None else tensor.identity
