"""A tree in an NPZ file: members named by paths with ``/``, and a structure note where the tree needs one.

Types that numpy cannot name keep their bits: bf16 and 8-bit floats as raw elements of the same shape
(``|V2``, ``|V1``: what numpy itself makes of ml_dtypes), 4- and 2-bit types packed as bytes. Object arrays
are refused, except the one that holds None. Arrays of strings stand for themselves in a mapping that is flat
otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, note_bytes, note_entry, tree_of
from ckptfmt.containers.noted.planning import plan
from ckptfmt.containers.npz import NpzWriter, read_members
from ckptfmt.containers.npz_nodes import (
    NpzNames,
    add_note,
    add_row,
    add_strings,
    strings_fit,
)
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.storage.reader import FileReader
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.nodes import Strings, tag_of

if TYPE_CHECKING:
    import os

    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["read", "write"]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open an NPZ file.

    Tensors stay in the file until they are read, in their own type; big-endian and Fortran-ordered arrays
    come in canonical order. Without a note, or with one that does not match (finding ``note-mismatch``), the
    tree is a mapping of names to arrays, and nothing is split.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    FormatError, TruncatedError, ChecksumError, LimitError, UnsupportedVersionError
        The file is malformed, hostile, or holds Python objects other than None.
    NotFoundError, StorageError
        It cannot be opened.
    """
    reader = FileReader(path)
    try:
        archive = ZipArchive(reader)
        entries = [Entry(m.name, m.descr, m.shape, m.node) for m in read_members(archive)]
        tree, findings = _tree(entries, reader)
    except BaseException:
        reader.close()
        raise
    return Checkpoint(tree, format="npz", findings=(*archive.findings(), *findings), close=reader.close)


def _tree(entries: list[Entry], reader: FileReader) -> tuple[Tree, tuple[Finding, ...]]:
    note = note_entry(entries)
    if note is None:
        return tree_of(entries, None, file=reader.name)
    others = [entry for entry in entries if entry is not note]
    return tree_of(others, partial(note_bytes, note, reader.size), file=reader.name)


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    compressed: bool = False,
) -> tuple[Finding, ...]:
    """Write a tree as an NPZ file that ``numpy.load`` reads without pickle.

    The bytes depend on the tree alone, not on the order of its keys, except that a structure note keeps that
    order; compressed bytes depend on the version of zlib, too. Tied tensors are written once.

    Parameters
    ----------
    tree : Tree
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced; whoever has it open keeps its bytes.
    compressed : bool
        Whether members are deflated where that helps.

    Returns
    -------
    tuple of Finding
        ``stored-raw`` for types that numpy cannot name, ``structure-note`` and ``tie-noted`` for what only
        our reader brings back.

    Raises
    ------
    ConversionError
        More arrays, or longer names, than the format can have.
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    strings, rest = _split_strings(tree)
    planned = plan(rest, NpzNames())
    if strings and planned.note is not None:
        strings, planned = {}, plan(tree, NpzNames())
    with replacing(target, overwrite=overwrite) as file:
        writer = NpzWriter(file, compressed=compressed)
        if planned.note is not None:
            add_note(writer, planned.note)
        for row in planned.rows:
            add_row(writer, row)
        for name in sorted(strings):
            add_strings(writer, name, strings[name])
        writer.close()
    return planned.findings


def _split_strings(tree: Tree) -> tuple[dict[str, Strings], Tree]:
    """Return the arrays of strings of a flat mapping that numpy can hold as they are, and the rest of it."""
    if not isinstance(tree, dict) or tag_of(tree) is not None:
        return {}, tree
    strings = {
        key: node
        for key, node in tree.items()
        if isinstance(node, Strings) and isinstance(key, str) and key != NOTE and strings_fit(node)
    }
    return strings, {key: node for key, node in tree.items() if key not in strings} if strings else tree
