"""From a tree to the rows of a container: order, names, types, and whether a note is needed.

A pure function of paths, types, shapes and ties: rows stand in canonical order (alignment class first, then
path), so key order never matters to them. Only the note keeps it. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ckptfmt.containers.noted.note import NOTE, encode_note
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import tag_of
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = ["Container", "Held", "Plan", "Row", "pieces", "plan"]

_MAX_CLASS = 12
_PIECE = 16 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """How a container holds a tensor.

    Attributes
    ----------
    kind : str
        The type, in its own words.
    shape : tuple of int
    exact : bool
        Whether its readers see the tensor's own type and shape.
    """

    kind: str
    shape: tuple[int, ...]
    exact: bool


class Container(Protocol):
    """What planning must know of a container."""

    @property
    def reserved(self) -> frozenset[str]:
        """Names that no tensor can have, besides the note's."""

    def name(self, path: Path) -> str:
        """Return what a tensor at a path is called, before that is made unique."""

    def held(self, dtype: DType, shape: tuple[int, ...]) -> Held:
        """Return how it holds a tensor of a type and shape."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor to write.

    Attributes
    ----------
    name : str
    tensor : Tensor
    kind : str
        The type in the container's own words.
    shape : tuple of int
        The shape in the container's own words.
    """

    name: str
    tensor: Tensor
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be written.

    Attributes
    ----------
    rows : tuple of Row
        In canonical order.
    note : bytes or None
        The structure note, where the rows alone would not give the tree back.
    findings : tuple of Finding
    """

    rows: tuple[Row, ...]
    note: bytes | None
    findings: tuple[Finding, ...]


def plan(tree: Tree, container: Container, *, root_tag: str | None = None) -> Plan:
    """Plan the writing of a tree.

    Parameters
    ----------
    tree : Tree
    container : Container
    root_tag : str, optional
        A tag of the root that the container keeps by itself.

    Raises
    ------
    TreeError
        A set holds a tensor, or a string is not valid Unicode.
    LimitError
        The tree is deeper than 64 levels or expands to more than 2^24 nodes.
    """
    firsts = _first_paths(tree)
    ordered = sorted(firsts.values(), key=lambda first: (-_alignment(first.tensor.nbytes), first.encoded))
    names = _names([first.path for first in ordered], container)
    held = [container.held(first.tensor.dtype, first.tensor.shape) for first in ordered]
    rows = tuple(
        Row(name, first.tensor, how.kind, how.shape)
        for name, first, how in zip(names, ordered, held, strict=True)
    )
    findings = tuple(_told_types(ordered, held))
    if all(how.exact for how in held) and _is_plain(tree, rows, root_tag):
        return Plan(rows, None, findings)
    index = {_identity(first.tensor): at for at, first in enumerate(ordered)}
    note = encode_note(tree, rows, lambda tensor: index[_identity(tensor)])
    tied = sum(first.count > 1 for first in ordered)
    return Plan(rows, note, (*findings, *_told_structure(tied)))


@dataclass(slots=True)
class _First:
    """A tensor with the first of its paths in canonical order, and the number of them."""

    tensor: Tensor
    path: Path
    encoded: tuple[bytes, ...]
    count: int


def _identity(tensor: Tensor) -> Hashable:
    return id(tensor) if tensor.identity is None else tensor.identity


def _first_paths(tree: Tree) -> dict[Hashable, _First]:
    firsts: dict[Hashable, _First] = {}
    for path, tensor in tensors(tree):
        encoded = encode_path(path)
        first = firsts.setdefault(_identity(tensor), _First(tensor, path, encoded, 0))
        first.count += 1
        if encoded < first.encoded:
            first.tensor, first.path, first.encoded = tensor, path, encoded
    return firsts


def _alignment(nbytes: int) -> int:
    """Return the alignment class of a length: its trailing zero bits, at most 12."""
    return min(_MAX_CLASS, (nbytes & -nbytes).bit_length() - 1) if nbytes else _MAX_CLASS


def _names(paths: Sequence[Path], container: Container) -> list[str]:
    """Return a name for each path, unique as section 8.4 of the specification makes shard names unique."""
    taken = {NOTE, *container.reserved}
    names = []
    for ordinal, path in enumerate(paths):
        name = container.name(path)
        while name in taken:
            name = f"{name}#{ordinal}"
        taken.add(name)
        names.append(name)
    return names


def _is_plain(tree: Tree, rows: Sequence[Row], root_tag: str | None) -> bool:
    """Whether reading the rows by name gives the tree back, but for the order of its keys."""
    if not isinstance(tree, dict) or len(tree) != len(rows):
        return False
    tag = tag_of(tree)
    return (tag is None or tag.name == root_tag) and all(
        type(node := tree.get(row.name)) is Tensor and node is row.tensor and node.tag is None for row in rows
    )


def _told_types(ordered: Sequence[_First], held: Sequence[Held]) -> Iterator[Finding]:
    """Yield one finding for each type that the container has no name for."""
    raw: dict[str, list[tuple[_First, str]]] = {}
    for first, how in zip(ordered, held, strict=True):
        if not how.exact:
            raw.setdefault(first.tensor.dtype.name, []).append((first, how.kind))
    for name, found in sorted(raw.items()):
        first, kind = found[0]
        count = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
        message = f"type {name}: {count} stored as {kind}, all bits kept; the structure note names the type"
        yield Finding("stored-raw", display(first.path), Severity.INFO, message)


def _told_structure(tied: int) -> Iterator[Finding]:
    message = (
        "names and tensors are there for every reader; what else the tree holds is in the structure note"
    )
    yield Finding("structure-note", "", Severity.INFO, message)
    if tied:
        message = (
            f"tensors with several names: {tied}, each stored once under its first name; readers that ignore"
            " the structure note do not see the others"
        )
        yield Finding("tie-noted", "", Severity.INFO, message)


def pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the canonical bytes of a tensor in pieces of at most 16 MiB; each is valid until the next."""
    buffer: memoryview | None = None
    for start in range(0, tensor.nbytes, _PIECE):
        stop = min(start + _PIECE, tensor.nbytes)
        piece = tensor.source.view(start, stop)
        if piece is None:
            if buffer is None:
                buffer = memoryview(bytearray(stop - start))
            piece = buffer[: stop - start]
            tensor.source.readinto(start, piece)
        yield piece
