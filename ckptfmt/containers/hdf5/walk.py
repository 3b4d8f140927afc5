"""One walk over the objects of an HDF5 file, by their links; each is read once, however often linked.

Links that leave the file end the reading: external links, links of a user's own kind, soft links to nothing.
A soft link within the file is another name of what it points to. Nothing here follows a name out of a file:
all links are seen, and external ones refused, before the first soft one is looked up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from h5py import h5d, h5f, h5g, h5l, h5o, h5s, h5t

from ckptfmt.containers.hdf5.attributes import AttributeReader, decoded
from ckptfmt.containers.hdf5.budget import MAX_LINKS, Budget
from ckptfmt.containers.hdf5.elements import element_type, named_type
from ckptfmt.containers.hdf5.heaps import Heaps
from ckptfmt.containers.hdf5.layout import check_layout, source_of
from ckptfmt.containers.hdf5.library import NATIVE_ORDER, translated
from ckptfmt.containers.hdf5.sources import SlabCache
from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import FormatError, LimitError, UnsupportedVersionError
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.containers.hdf5.elements import ElementType
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.source import Source

__all__ = ["Dataset", "Group", "walk"]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """One array of a file.

    Attributes
    ----------
    path : str
        The first of its names, from the root, with ``/`` between groups and none before.
    words : str
        The type in the file's words, as numpy writes it: ``"<f4"``, ``">i8"``, ``"|b1"``, ``"|S3"``;
        ``"|V2"`` for opaque bytes; ``"text"`` for strings of any length; ``"null"`` for an empty dataset.
        Where an attribute names the type of the bytes, that follows: ``"|V2 as bf16"``.
    shape : tuple of int
        In the file; () for an empty dataset.
    node : Tree
        A tensor that is read when asked; `Strings` for text; None for an empty dataset (null dataspace); a
        composite ``numpy.void`` for opaque bytes without a name, ``hdf5.raw`` for other types that we keep as
        bytes, both with a part ``bytes``: u8, one more dimension.
    attributes : dict
    """

    path: str
    words: str
    shape: tuple[int, ...]
    node: Tree
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A group: named members, in the order of their names' bytes.

    Attributes
    ----------
    path : str
        The first of its names; empty for the root.
    attributes : dict
    members : dict
        Groups and datasets by name. One object may have several names, and a group may lie within itself.
    """

    path: str
    attributes: Mapping[str, Attribute]
    members: dict[str, Group | Dataset] = field(default_factory=dict)


@dataclass(slots=True)
class _Walk:
    """What one walk knows."""

    reader: ByteReader
    budget: Budget
    heaps: Heaps
    attributes: AttributeReader
    cache: SlabCache
    findings: list[Finding]
    objects: dict[int, Group | Dataset | None] = field(default_factory=dict)
    pending: list[tuple[h5g.GroupID, Group]] = field(default_factory=list)
    soft: list[tuple[h5g.GroupID, Group, bytes, str]] = field(default_factory=list)


def walk(file: h5f.FileID, reader: ByteReader, base: int) -> tuple[Group, tuple[Finding, ...]]:
    """Return the root group of a file that is open in the library, and what is worth telling.

    Parameters
    ----------
    file : h5py.h5f.FileID
    reader : ByteReader
    base : int
        Where the superblock is: what addresses are counted from.

    Raises
    ------
    UnsupportedVersionError
        A link leaves the file, elements lie elsewhere, or are of a kind that is not read.
    FormatError, TruncatedError, LimitError
        The file is damaged, lies about sizes, or has more of something than any file needs.
    """
    budget, heaps = Budget(reader), Heaps(reader, base)
    findings: list[Finding] = []
    attributes = AttributeReader(reader, base, heaps, budget, findings)
    state = _Walk(reader, budget, heaps, attributes, SlabCache(), findings)
    with translated(reader.name):
        root = _object(state, h5o.open(file, b"/"), "")
    if not isinstance(root, Group):
        raise FormatError("the root is no group", file=reader.name)
    while state.pending:
        found, group = state.pending.pop()
        _members(state, found, group)
    for found, group, raw, name in state.soft:
        _follow(state, found, group, raw, name)
    for group in {id(group): group for _, group, _, _ in state.soft}.values():
        _sort(group)
    state.budget.check_owners()
    return root, tuple(state.findings)


def _sort(group: Group) -> None:
    """Put the members of a group into the order of their names again."""
    ordered = sorted(group.members.items(), key=lambda item: item[0].encode())
    group.members.clear()
    group.members.update(ordered)


def _members(state: _Walk, found: h5g.GroupID, group: Group) -> None:
    names: list[bytes] = []

    def listed(name: bytes) -> None:
        state.budget.link()
        names.append(name)

    with translated(state.reader.name, group.path or "/"):
        found.links.iterate(listed, order=NATIVE_ORDER)
    for raw in sorted(names):
        name = _name(state, raw, group)
        path = f"{group.path}/{name}" if group.path else name
        with translated(state.reader.name, path):
            kind = found.links.get_info(raw).type
            if kind == h5l.TYPE_SOFT:
                state.soft.append((found, group, raw, name))
            elif kind == h5l.TYPE_HARD:
                member = _object(state, h5o.open(found, raw), path)
                if member is not None:
                    group.members[name] = member
            else:
                what = "an external link" if kind == h5l.TYPE_EXTERNAL else "a link of a user's own kind"
                message = f"{what}: it leads out of the file, and is not followed"
                raise UnsupportedVersionError(message, file=state.reader.name, tensor=path)


def _follow(state: _Walk, found: h5g.GroupID, group: Group, raw: bytes, name: str) -> None:
    """Give the object that a soft link points to its further name; all hard links were walked before."""
    path = f"{group.path}/{name}" if group.path else name
    try:
        target = h5o.open(found, raw)
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        message = "a soft link to nothing in this file"
        raise FormatError(message, file=state.reader.name, tensor=path) from error
    address = h5o.get_info(target).addr
    if address not in state.objects:
        message = "a soft link to what no group of this file holds"
        raise FormatError(message, file=state.reader.name, tensor=path)
    member = state.objects[address]
    if member is not None:
        group.members[name] = member


def _name(state: _Walk, raw: bytes, group: Group) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        message = f"the name {raw[:80]!r} in group {group.path!r} is no UTF-8"
        raise FormatError(message, file=state.reader.name, tensor=group.path) from None


def _object(state: _Walk, found: h5o.ObjectID, path: str) -> Group | Dataset | None:
    """Return the object that was opened, read at its first name; None for a named type."""
    address = h5o.get_info(found).addr
    if address not in state.objects:
        state.objects[address] = _fresh(state, found, path, address)
    return state.objects[address]


def _fresh(state: _Walk, found: h5o.ObjectID, path: str, address: int) -> Group | Dataset | None:
    if isinstance(found, h5t.TypeID):
        return None
    attributes = state.attributes.read(found, path or "/")
    if isinstance(found, h5g.GroupID):
        group = Group(path, attributes)
        state.pending.append((found, group))
        return group
    return _dataset(state, found, path, address, attributes)


def _dataset(
    state: _Walk, found: h5d.DatasetID, path: str, address: int, attributes: dict[str, Attribute]
) -> Dataset:
    file = state.reader.name
    check_layout(found, file=file, name=path)
    kind = element_type(found.get_type(), file=file, name=path)
    space = found.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        return Dataset(path, "null", (), None, attributes)
    shape: tuple[int, ...] = tuple(space.get_simple_extent_dims())
    count = checked_count(shape, file=file, tensor=path)
    if kind.text:
        return Dataset(path, kind.words, shape, _texts(state, found, kind, shape, path), attributes)
    source = source_of(found, kind, shape, state.reader, path, state.budget, state.cache)
    named = named_type(kind, shape, attributes)
    words = kind.words if named is None else f"{kind.words} as {named[0]}"
    identity = (state.cache, address) if count else None
    node: Tree
    if named is not None:
        node = Tensor(named[0], named[1], source, identity=identity)
    elif kind.dtype is not None:
        node = Tensor(kind.dtype, shape, source, identity=identity)
    else:
        node = _raw(kind, shape, source)
    if kind.labels:
        message = "an enumeration: its numbers are kept, the names of its values are not"
        state.findings.append(Finding("enumeration", path, Severity.LOSS, message, file=file))
    return Dataset(path, words, shape, node, attributes)


def _raw(kind: ElementType, shape: tuple[int, ...], source: Source) -> Composite:
    parts: dict = {"bytes": Tensor(dtype("u8"), (*shape, kind.width), source)}
    if " " in kind.words:
        return Composite("hdf5.raw", {"type": kind.words}, parts)
    return Composite("numpy.void", {}, parts)


def _texts(
    state: _Walk, found: h5d.DatasetID, kind: ElementType, shape: tuple[int, ...], path: str
) -> Strings:
    """Return strings of any length: the dataset holds pointers, which we follow."""
    count = math.prod(shape)
    if count > MAX_LINKS:
        message = f"{count} strings; at most {MAX_LINKS} are read"
        raise LimitError(message, file=state.reader.name, tensor=path)
    source = source_of(found, kind, shape, state.reader, path, state.budget, state.cache)
    pointers = bytearray(count * kind.width)
    source.readinto(0, memoryview(pointers))
    texts = decoded(shape, state.heaps.strings(bytes(pointers), state.budget, path))
    return texts if isinstance(texts, Strings) else Strings((), (texts,))  # type: ignore[arg-type] # one of a kind
