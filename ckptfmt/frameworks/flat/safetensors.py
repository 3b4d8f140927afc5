"""A tree in safetensors: one file, or shards with an index, and a structure note where the tree needs one.

Names are paths with ``.``. Types that safetensors 0.8 cannot name (c128, 4- and 2-bit integers, byte strings
and one 8-bit float) lie as U8 with all their bits; readers of before 0.6 refuse files with some that it can
(f8_e8m0fnu, the fnuz kinds, f4_e2m1fn, c64). ``"format": "pt"`` is always in the metadata, for transformers
refuses files without it; other metadata of a file stays with the tree, as a tag of its root.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.names import contained_path
from ckptfmt.containers.noted.note import NOTE, tree_of
from ckptfmt.containers.safetensors import decode_header
from ckptfmt.containers.safetensors_index import (
    INDEX_SUFFIX,
    MAX_SHARDS,
    check_index,
    decode_index,
    stray_shards,
)
from ckptfmt.containers.safetensors_parts import PARTS, is_part_name
from ckptfmt.errors import FormatError, LimitError, NotFoundError
from ckptfmt.frameworks.flat.safetensors_entries import joined_entries, several_parts
from ckptfmt.frameworks.flat.safetensors_files import METADATA_TAG, write_file, write_shards
from ckptfmt.storage.pool import open_files
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Tag, tagged
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptfmt.containers.noted.entries import Entry
    from ckptfmt.containers.safetensors import Header
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree

__all__ = ["read", "write"]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a safetensors file, or a sharded set by its index or by the directory that has exactly one.

    A directory without an index, of files that the ranks of torch.distributed wrote, is read as a set, too:
    tensors that lie there in parts are joined when they are asked for.

    Tensors stay in the files until they are read. Without a note, or with one that does not match (finding
    ``note-mismatch``), the tree is a mapping of header names to tensors, in the order of their bytes.

    Parameters
    ----------
    path : str or os.PathLike
        What it is is told by its content.

    Raises
    ------
    FormatError, TruncatedError, LimitError, MissingFileError
        A file is malformed or hostile, or an index and its files disagree.
    NotFoundError, StorageError
        Something cannot be opened.
    """
    path = Path(path)
    with ExitStack() as stack, collector_paused():
        if path.is_dir():
            index = _index_in(path)
            if index is None:
                return _read_parts(path, stack)
            path = index
        reader = stack.enter_context(FileReader(path))
        if _is_index(reader):
            return _read_shards(path, reader, stack)
        tree, findings = _tree([(reader, decode_header(reader))])
        return _checkpoint(tree, findings, stack)


def _checkpoint(tree: Tree, findings: tuple[Finding, ...], stack: ExitStack) -> Checkpoint:
    closing = stack.pop_all()
    return Checkpoint(tree, format="safetensors", findings=findings, close=closing.close)


def _index_in(directory: Path) -> Path | None:
    """Return the index of a directory; None where there is none, but parts that ranks wrote."""
    names = sorted(path.name for path in directory.iterdir())
    found = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if not found and any(map(is_part_name, names)):
        return None
    if not found:
        raise NotFoundError(f"there is no index (*{INDEX_SUFFIX}) in it", file=os.fspath(directory))
    if len(found) > 1:
        raise FormatError(f"several indices, {', '.join(found[:5])}: give one", file=os.fspath(directory))
    return contained_path(directory, found[0], file=os.fspath(directory))


def _is_index(reader: ByteReader) -> bool:
    """Whether a file is JSON: no header is so long that its length ends in anything but a zero byte."""
    head = reader.read(0, min(8, reader.size))
    return head.lstrip()[:1] == b"{" and head[7:8] != b"\0"


def _read_shards(path: Path, reader: FileReader, stack: ExitStack) -> Checkpoint:
    index = decode_index(reader)
    paths = {name: contained_path(path.parent, name, file=reader.name) for name in index.shards()}
    readers = open_files({name: found for name, found in paths.items() if found.exists()}, stack)
    headers = {name: decode_header(shard) for name, shard in readers.items()}  # check_index names the others
    files = [(readers[name], header) for name, header in headers.items()]
    check_index(index, headers, file=reader.name, parts=several_parts(files))
    tree, findings = _tree(files, whole=True)
    strays = tuple(
        Finding(
            "stray-shard", "", Severity.INFO, "the index does not know this file: it is not read", file=name
        )
        for name in stray_shards((beside.name for beside in path.parent.iterdir()), index)
    )
    return _checkpoint(tree, (*findings, *strays), stack)


def _read_parts(directory: Path, stack: ExitStack) -> Checkpoint:
    """Read the files that ranks wrote without an index, and join their tensors."""
    names = sorted(path.name for path in directory.iterdir() if path.name.endswith(".safetensors"))
    shown = os.fspath(directory)
    if len(names) > MAX_SHARDS:
        raise LimitError(f"{len(names)} files; at most {MAX_SHARDS}", file=shown)
    readers = open_files({name: contained_path(directory, name, file=shown) for name in names}, stack)
    tree, findings = _tree([(reader, decode_header(reader)) for reader in readers.values()], whole=True)
    message = (
        f"joined from {len(names)} files: none of them tells the whole shapes, so that nobody can tell"
        " whether a last one is missing"
    )
    joined = Finding("parts-joined", "", Severity.INFO, message)
    return _checkpoint(tree, (*findings, joined), stack)


def _tree(
    files: Sequence[tuple[ByteReader, Header]], *, whole: bool = False
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of one file or of all shards; the note is the first one's.

    `whole` says that these are all files of a set, so that parts among them are no wonder.
    """
    entries = joined_entries(files)
    if not files:
        return {}, ()
    reader, header = files[0]
    metadata = {key: text for key, text in (header.metadata or {}).items() if key not in PARTS}
    note = _note(metadata.pop(NOTE, None), entries)
    others = [entry for entry in entries if entry.name != NOTE] if note else entries
    tree, findings = tree_of(others, note, file=reader.name)
    if metadata not in ({}, {"format": "pt"}) and (note is None or findings):
        assert isinstance(tree, dict)  # noqa: S101 - as it is without a note
        tree = tagged(tree, Tag(METADATA_TAG, dict(metadata.items())))
    if len(files) == 1 and not whole and PARTS & set(header.metadata or {}):
        message = "torch.distributed wrote this file as one of a set: its tensors may be parts of larger ones"
        findings = (*findings, Finding("maybe-parts", "", Severity.INFO, message, file=reader.name))
    return tree, findings


def _note(text: str | None, entries: Sequence[Entry]) -> Callable[[], bytes] | None:
    if text is not None:
        return text.encode
    for entry in entries:
        if entry.name == NOTE and entry.kind == "U8" and len(entry.shape) == 1:
            assert isinstance(entry.node, Tensor)  # noqa: S101 - U8 is a type of ours
            return partial(bytes, entry.node.bytes())
    return None


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    shard_size: int | None = None,
) -> tuple[Finding, ...]:
    """Write a tree as a safetensors file, or as a directory of shards with an index.

    The bytes depend on the tree alone, not on the order of its keys, except that a structure note keeps that
    order. Tied tensors are written once: safetensors has no aliases.

    Parameters
    ----------
    tree : Tree
    target : str or os.PathLike
        A file; with `shard_size` a directory, or the path of the index in it (``d/x.safetensors.index.json``
        makes `d` and the shards ``x-00001-of-...``), which implies shards.
    overwrite : bool
        Whether a file, or a directory that holds nothing but an index and its shards, is replaced.
    shard_size : int, optional
        Bytes of tensors at which a shard is closed. One tensor is never split. A header never passes the
        100 MB that readers accept: a shard is closed before.

    Returns
    -------
    tuple of Finding
        ``stored-raw`` for types without a name, ``structure-note`` and ``tie-noted`` for what only our reader
        brings back.

    Raises
    ------
    ConversionError
        So many tensors that one file's header would be refused by every reader.
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, UnsupportedError, NoSpaceError, StorageError
        It could not be written; the target is as it was.
    """
    with collector_paused():
        if shard_size is None and not os.fspath(target).endswith(INDEX_SUFFIX):
            return write_file(tree, target, overwrite=overwrite)
        return write_shards(tree, target, overwrite=overwrite, shard_size=shard_size)
