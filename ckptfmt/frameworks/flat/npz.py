"""A tree in an NPZ file: members named by paths with ``/``, and a structure note where the tree needs one.

Types that numpy cannot name keep their bits: bf16 and 8-bit floats as raw elements of the same shape
(``|V2``, ``|V1``: what numpy itself makes of ml_dtypes), 4- and 2-bit types packed as bytes. Object arrays
are refused, except the one that holds None. Arrays of strings stand for themselves in a mapping that is flat
otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, tree_of
from ckptfmt.containers.noted.planning import Held, pieces, plan
from ckptfmt.containers.npy.values import MAX_STRINGS
from ckptfmt.containers.npz import NpzWriter, read_members
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.errors import LimitError, TreeError
from ckptfmt.storage.reader import FileReader
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.nodes import Strings, tag_of
from ckptfmt.tree.paths import dotted
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = ["read", "write"]

_FREE_NOTE = 1 << 20
_SLAB = 1 << 16


class _Npz:
    """What planning must know of NPZ."""

    reserved: frozenset[str] = frozenset()

    @staticmethod
    def name(path: Path) -> str:
        """Return the keys of a path joined by ``/``; no zip archive holds a NUL in a name."""
        return "/".join(dotted((key,)) for key in path).replace("\0", "\\0")

    @staticmethod
    def held(dtype: DType, shape: tuple[int, ...]) -> Held:
        """Return how NPZ holds a tensor."""
        if dtype.packed:
            return Held("|u1", (dtype.nbytes(shape),), exact=False)
        if dtype.numpy.isbuiltin == 1 or dtype.numpy.kind == "S":
            return Held(dtype.numpy.str, shape, exact=True)
        return Held(f"|V{dtype.bits // 8}", shape, exact=False)


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
    notes = [entry for entry in entries if entry.name == NOTE and _is_note(entry)]
    if not notes:
        return tree_of(entries, None, file=reader.name)
    others = [entry for entry in entries if entry is not notes[0]]
    return tree_of(others, partial(_note_bytes, notes[0], reader.size), file=reader.name)


def _is_note(entry: Entry) -> bool:
    return isinstance(entry.node, Tensor) and entry.node.dtype.name == "u8" and entry.node.ndim == 1


def _note_bytes(entry: Entry, size: int) -> bytes:
    """Return the note; it is never deflated by us, so one that is larger than its file is not ours."""
    assert isinstance(entry.node, Tensor)  # noqa: S101 - as _is_note saw
    if entry.node.nbytes > max(_FREE_NOTE, size):
        raise LimitError("it expands to more than its file")
    return bytes(entry.node.bytes())


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
    planned = plan(rest, _Npz())
    if strings and planned.note is not None:
        strings, planned = {}, plan(tree, _Npz())
    with replacing(target, overwrite=overwrite) as file:
        writer = NpzWriter(file, compressed=compressed)
        if planned.note is not None:
            note = planned.note
            writer.add(NOTE, "|u1", (len(note),), len(note), lambda: (note,), stored=True)
        for row in planned.rows:
            writer.add(row.name, row.kind, row.shape, row.tensor.nbytes, partial(pieces, row.tensor))
        for name in sorted(strings):
            values = strings[name]
            width = max(1, max(map(len, values.values), default=1))
            nbytes = 4 * width * len(values.values)
            writer.add(name, f"<U{width}", values.shape, nbytes, partial(_string_pieces, values, width))
        writer.close()
    return planned.findings


def _split_strings(tree: Tree) -> tuple[dict[str, Strings], Tree]:
    """Return the arrays of strings of a flat mapping that numpy can hold as they are, and the rest of it."""
    if not isinstance(tree, dict) or tag_of(tree) is not None:
        return {}, tree
    strings = {
        key: node
        for key, node in tree.items()
        if isinstance(node, Strings) and isinstance(key, str) and key != NOTE and _fits(node)
    }
    return strings, {key: node for key, node in tree.items() if key not in strings} if strings else tree


def _fits(strings: Strings) -> bool:
    """Whether a unicode array gives these strings back, and is not much larger than they are."""
    values = strings.values
    _check_text(values)
    if len(values) > MAX_STRINGS or any(isinstance(text, bytes) or text.endswith("\0") for text in values):
        return False
    longest = max(map(len, values), default=0)
    return longest * len(values) <= _SLAB + 16 * sum(map(len, values))


def _check_text(values: tuple[str, ...] | tuple[bytes, ...]) -> None:
    try:
        "".join(text for text in values if isinstance(text, str)).encode()
    except UnicodeEncodeError as error:
        raise TreeError(f"a string is not valid Unicode: {error.object[error.start : error.end]!r}") from None


def _string_pieces(strings: Strings, width: int) -> Iterator[bytes]:
    step = max(1, _SLAB // width)
    for first in range(0, len(strings.values), step):
        values = strings.values[first : first + step]
        yield np.array(values, f"<U{width}").tobytes()
