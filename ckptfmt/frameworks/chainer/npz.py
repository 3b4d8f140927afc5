"""Chainer's NPZ files: models, optimizers, snapshots of trainers (``chainer/serializers/npz.py``).

Arrays are read as they are, by Chainer's hierarchy: 0-d arrays stay tensors, parameters that were never
initialised are None, texts are `Strings`. Any other array of Python objects is refused by name; Chainer
itself would unpickle it. What is written is loaded by ``load_npz(strict=True)``.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import note_bytes, note_entry
from ckptfmt.containers.noted.planning import Row
from ckptfmt.containers.npz import NpzWriter, read_members
from ckptfmt.containers.npz_nodes import (
    NpzNames,
    add_none,
    add_note,
    add_row,
    add_strings,
)
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.frameworks.chainer.hierarchy import is_trainer
from ckptfmt.frameworks.chainer.members import MARK, members_of, tree_of_members
from ckptfmt.storage.reader import FileReader
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree

__all__ = ["ChainerNpz", "read", "step_of", "write"]

_ITERATION = "updater/iteration"
_OF_A_RANK = re.compile(r"[^.]+\.[0-9]+\.[0-9]+|.*_[0-9]+\.[0-9]+")


class _Names(NpzNames):
    """What planning must know of Chainer's NPZ files."""

    reserved = frozenset({MARK})


class ChainerNpz:
    """One file, opened.

    Attributes
    ----------
    archive : ZipArchive
    entries : list of Entry
        In the order of the archive.
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self.archive = ZipArchive(reader)
        self.entries = [Entry(m.name, m.descr, m.shape, m.node) for m in read_members(self.archive)]

    def same(self, name: str, other: str) -> bool:
        """Whether two members have one length and checksum."""
        return self.print_of(name) == self.print_of(other)

    def print_of(self, name: str) -> tuple[int, int, bool]:
        """Return length and checksum of a member, and whether it has no checksum."""
        entry = self.archive.entries[f"{name}.npy"]
        return entry.size, entry.crc, entry.unverifiable

    def tree(self) -> tuple[Tree, tuple[Finding, ...]]:
        """Return what the file holds, and what is worth telling."""
        note = note_entry(self.entries)
        if note is None or all(entry.name != MARK for entry in self.entries):
            tree, findings = tree_of_members(self.entries, None, self, _Names(), file=self._reader.name)
        else:
            others = [entry for entry in self.entries if entry is not note and entry.name != MARK]
            read_note = partial(note_bytes, note, self._reader.size)
            tree, findings = tree_of_members(others, read_note, self, _Names(), file=self._reader.name)
        return tree, (*self.archive.findings(), *findings)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open an NPZ file of Chainer.

    Tensors stay in the file until they are read, in their own type. A snapshot of a trainer tells its step.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        Nested by ``/``; see `ckptfmt.frameworks.chainer.hierarchy`.

    Raises
    ------
    FormatError, TruncatedError, ChecksumError, LimitError, UnsupportedVersionError
        The file is malformed, hostile, or holds Python objects other than None.
    NotFoundError, StorageError
        It cannot be opened.
    """
    reader = FileReader(path)
    try:
        opened = ChainerNpz(reader)
        tree, findings = opened.tree()
        step = step_of(opened.entries)
    except BaseException:
        reader.close()
        raise
    told = (*findings, *_one_of_several(path, step))
    return Checkpoint(tree, format="chainer-npz", findings=told, step=step, close=reader.close)


def step_of(entries: Sequence[Entry]) -> int | None:
    """Return the iteration that a trainer's snapshot records, or None."""
    if not is_trainer({entry.name for entry in entries}):
        return None
    node = next(entry.node for entry in entries if entry.name == _ITERATION)
    whole = isinstance(node, Tensor) and node.shape == () and node.dtype.name in ("i32", "i64", "u32", "u64")
    step = int(node.numpy()) if isinstance(node, Tensor) and whole else -1
    return step if 0 <= step < 2**53 else None


def _one_of_several(path: str | os.PathLike[str], step: int | None) -> tuple[Finding, ...]:
    """Tell of a snapshot whose name says that it is one rank's."""
    if step is None or not _OF_A_RANK.fullmatch(Path(path).name):
        return ()
    message = "by its name it is the snapshot of one rank: give its directory, or read it as chainermn"
    return (Finding("one-rank", "", Severity.INFO, message, file=str(path)),)


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    compressed: bool = False,
) -> tuple[Finding, ...]:
    """Write a tree as an NPZ file that ``chainer.serializers.load_npz`` loads, strictly too.

    The bytes depend on the tree alone; compressed ones on the version of zlib, too. Chainer ignores the
    structure note, which only trees have that Chainer's files cannot tell.

    Parameters
    ----------
    tree : Tree
        Nested by links and names, or flat with names that hold ``/``. None is a parameter without data;
        numbers and strings become 0-d arrays.
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced; whoever has it open keeps its bytes.
    compressed : bool
        Whether members are deflated where that helps, as Chainer does.

    Returns
    -------
    tuple of Finding
        ``stored-raw`` for types that numpy cannot name, ``structure-note`` and ``tie-noted``.

    Raises
    ------
    ConversionError
        More arrays, or longer names, than the format can have.
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    names = _Names()
    members = members_of(tree, names)
    with replacing(target, overwrite=overwrite) as file:
        writer = NpzWriter(file, compressed=compressed)
        if members.note is not None:
            add_note(writer, members.note)
            writer.add(MARK, "|u1", (), 1, lambda: (b"\x01",), stored=True)
        for row in members.rows:
            add_row(writer, row)
        for name, node in members.others.items():
            _add(writer, name, node, names)
        writer.close()
    return members.findings


def _add(writer: NpzWriter, name: str, node: Tree, names: NpzNames) -> None:
    if isinstance(node, Tensor):
        add_row(writer, Row(name, node, names.held(node.dtype, node.shape).kind, node.shape))
    elif isinstance(node, Strings):
        add_strings(writer, name, node)
    else:
        add_none(writer, name)
