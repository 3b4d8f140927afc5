"""A tree in an HDF5 file: datasets at paths with ``/``, and a structure note where the tree needs one.

A file of others is a mapping of ``group/dataset`` names to arrays; nothing is renamed. Its attributes, and
its groups without members, are kept as the tag of the root, outside every digest, and are written again.
Types that HDF5 has no name for (bf16, 8-bit floats, 4- and 2-bit elements) are raw bytes with the attribute
``dtype`` that names them, as Keras does for bfloat16. The note is the root dataset ``ckptfmt.tree``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.hdf5.reader import Hdf5File
from ckptfmt.containers.hdf5.writer import MAX_ATTRIBUTE, Hdf5Writer, held_as, is_path
from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, note_bytes, note_entry, tree_of
from ckptfmt.containers.noted.planning import Held, plan
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Strings, Tag, tag_of, tagged
from ckptfmt.tree.paths import dotted
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["ATTRIBUTES_TAG", "read", "write"]

ATTRIBUTES_TAG = "hdf5.attributes"
"""The tag of a root that came with attributes: by path of a group or dataset (the root's is empty), a mapping
of their names to text, bytes, numbers, None, and lists of those."""

_MAX_KEPT = 1 << 16
_OURS = ("dtype", "shape")


class _Hdf5:
    """What planning must know of HDF5.

    Parameters
    ----------
    paths : iterable of Path
        Of all tensors, so that none is called as a group that another needs.
    """

    def __init__(self, paths: Iterator[Path]) -> None:
        names = {self.name(path) for path in paths}
        above: set[str] = set()
        for name in names:
            parts = name.split("/")
            above.update("/".join(parts[:end]) for end in range(1, len(parts)))
        self.reserved = frozenset(above)

    @staticmethod
    def name(path: Path) -> str:
        """Return the keys of a path joined by ``/``; parts that HDF5 cannot have are escaped by ``#``."""
        joined = "/".join(dotted((key,)) for key in path).replace("\0", "\\0")
        parts = [f"{part}#" if part in ("", ".") else part for part in joined.split("/")]
        if len(parts) > 1 and parts[0] == NOTE:
            parts[0] = f"{NOTE}#"
        return "/".join(parts)

    @staticmethod
    def held(kind: DType, shape: tuple[int, ...]) -> Held:
        """Return how HDF5 holds a tensor: every type is told, by the file's own type or by an attribute."""
        words, extents = held_as(kind, shape)
        return Held(words, extents, exact=True)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open an HDF5 file.

    Tensors stay in the file until they are read, in their own type and canonical byte order; datasets with
    several names (hard links, soft links within the file) are tied. Text of any length becomes `Strings`,
    text of a fixed width stays an array of bytes, an empty dataset is None. Without a note, or with one that
    does not match (finding ``note-mismatch``), the tree is a mapping of names, and nothing is split.

    Parameters
    ----------
    path : str or os.PathLike

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
        note = note_entry(entries)
        others = [entry for entry in entries if entry is not note]
        read_note = None if note is None else partial(note_bytes, note, file.size)
        tree, findings = tree_of(others, read_note, file=file.name)
        if note is None or findings:
            tree, more = _with_attributes(tree, file)
            findings = (*findings, *more)
    except BaseException:
        file.close()
        raise
    return Checkpoint(tree, format="hdf5", findings=(*file.findings, *findings), close=file.close)


def _with_attributes(tree: Tree, file: Hdf5File) -> tuple[Tree, list[Finding]]:
    """Return a flat tree with the tag of its file's attributes, if there are any."""
    kept: dict[Key, Tree] = {}
    findings: list[Finding] = []
    for path, group in file.groups.items():
        values = _kept(path, group.attributes, file.name, findings)
        if values or (path and not group.members):
            kept[path] = values
    for path, found in file.datasets.items():
        typed = " as " in found.words
        ours = {name for name in _OURS if typed and name in found.attributes}
        others = {name: value for name, value in found.attributes.items() if name not in ours}
        values = _kept(path, others, file.name, findings)
        if values:
            kept[path] = values
    return (tagged(tree, Tag(ATTRIBUTES_TAG, kept)) if kept else tree), findings


def _kept(
    path: str, attributes: Mapping[str, Attribute], file: str, findings: list[Finding]
) -> dict[Key, Tree]:
    values: dict[Key, Tree] = {}
    for name, value in attributes.items():
        if isinstance(value, np.ndarray) and value.size > _MAX_KEPT:
            message = f"attribute {name!r} of {value.size} numbers is left out"
            findings.append(Finding("attribute-unread", path, Severity.LOSS, message, file=file))
        else:
            values[name] = _plain(value)
    return values


def _plain(value: Attribute) -> Tree:
    """Return an attribute as a plain value; the width of its numbers is not kept."""
    if isinstance(value, np.ndarray):
        plain: Tree = value.tolist()
        return plain
    if isinstance(value, Strings):
        return list(value.values)
    return value


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    compressed: bool = False,
) -> tuple[Finding, ...]:
    """Write a tree as an HDF5 file that h5py reads.

    The bytes depend on the tree alone, not on the order of its keys, except that a structure note keeps that
    order; they depend on the version of the HDF5 library, and compressed ones on that of zlib, too. Tied
    tensors are written once.

    Parameters
    ----------
    tree : Tree
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced; whoever has it open keeps its bytes.
    compressed : bool
        Whether elements are deflated.

    Returns
    -------
    tuple of Finding
        ``structure-note`` and ``tie-noted`` for what only our reader brings back; ``attribute-lost`` for
        attributes of a file that was read that HDF5 cannot have.

    Raises
    ------
    ConversionError
        More dimensions, or longer names, than the format can have.
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    strings, rest = _split_strings(tree)
    planned = plan(rest, _Hdf5(path for path, _ in tensors(rest)), root_tag=ATTRIBUTES_TAG)
    if strings and (planned.note is not None or not _apart(strings, [row.name for row in planned.rows])):
        strings = {}
        planned = plan(tree, _Hdf5(path for path, _ in tensors(tree)), root_tag=ATTRIBUTES_TAG)
    kept, lost = _attributes(tree, {*strings, *(row.name for row in planned.rows)})
    with replacing(target, overwrite=overwrite) as file, Hdf5Writer(file) as writer:
        if planned.note is not None:
            size = len(planned.note)
            writer.add(NOTE, Tensor(dtype("u8"), (size,), BytesSource(memoryview(planned.note))))
        for row in planned.rows:
            writer.add(row.name, row.tensor, attributes=kept.pop(row.name, None), compressed=compressed)
        for name in sorted(strings):
            writer.add_text(name, strings[name], attributes=kept.pop(name, None))
        for path, values in sorted(kept.items()):
            writer.group(path, values)
    return (*planned.findings, *lost)


def _split_strings(tree: Tree) -> tuple[dict[str, Strings], Tree]:
    """Return the arrays of text of a flat mapping that HDF5 can hold as they are, and the rest of it."""
    tag = tag_of(tree)
    if not isinstance(tree, dict) or (tag is not None and tag.name != ATTRIBUTES_TAG):
        return {}, tree
    strings = {
        key: node
        for key, node in tree.items()
        if isinstance(node, Strings) and isinstance(key, str) and _fits(key, node)
    }
    rest: Tree = {key: node for key, node in tree.items() if key not in strings}
    return strings, (rest if tag is None else tagged(rest, tag)) if strings else tree


def _fits(key: str, strings: Strings) -> bool:
    """Whether a name is one of HDF5, and a dataset of text gives these strings back."""
    texts = [text for text in strings.values if isinstance(text, str) and "\0" not in text]
    if len(texts) < len(strings.values) or not is_path(key) or key.partition("/")[0] == NOTE:
        return False
    try:
        key.encode()
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False  # planning tells of it
    return len(strings.shape) <= 32


def _apart(strings: Mapping[str, Strings], names: list[str]) -> bool:
    """Whether no name of texts is that of a group which another name needs, nor the other way round."""
    taken = {*strings, *names}
    for name in taken:
        parts = name.split("/")
        if any("/".join(parts[:end]) in taken for end in range(1, len(parts))):
            return False
    return True


def _attributes(tree: Tree, names: set[str]) -> tuple[dict[str, dict[str, Attribute]], list[Finding]]:
    """Return by path the attributes that a tree brought along from an HDF5 file, and what is lost of them."""
    tag = tag_of(tree)
    if tag is None or tag.name != ATTRIBUTES_TAG:
        return {}, []
    kept: dict[str, dict[str, Attribute]] = {}
    lost: list[Finding] = []
    for path, values in tag.attributes.items():
        if not isinstance(path, str) or not isinstance(values, dict) or not _has_place(path, names):
            lost.append(_lost(str(path), "its attributes: no group can be called so beside the datasets"))
            continue
        kept[path] = {}
        for name, value in values.items():
            made = _made(value)
            if isinstance(name, str) and made is not None:
                kept[path][name] = made[0]
            else:
                lost.append(_lost(path, f"its attribute {name!r}"))
    return kept, lost


def _has_place(path: str, names: set[str]) -> bool:
    """Whether a path is a dataset's or the root's, or can be a group's."""
    parts = path.split("/")
    above = {"/".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return path == "" or path in names or (is_path(path) and not above & {*names, NOTE})


def _lost(path: str, what: str) -> Finding:
    return Finding("attribute-lost", path, Severity.LOSS, f"HDF5 cannot keep {what}")


def _made(value: Tree) -> tuple[Attribute] | None:
    """Return a plain value as an attribute; None where none can hold it."""
    if value is None or isinstance(value, str):
        return (value,)
    if isinstance(value, bytes):
        return (value,) if len(value) <= MAX_ATTRIBUTE else None
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        made: Attribute = Strings((len(value),), tuple(str(text) for text in value))
        return (made,) if 16 * len(value) <= MAX_ATTRIBUTE else None
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return None
    fits = array.dtype.kind in "biufc" and array.nbytes <= MAX_ATTRIBUTE
    return (array,) if fits else None
