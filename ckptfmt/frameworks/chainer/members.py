"""What a tree becomes among named arrays that Chainer loads, and the tree that such arrays are.

Nested mappings of tensors, None and arrays of strings need no note. Any other tree has one, and beside its
tensors the members that Chainer would look for: numbers and strings as 0-d arrays, None, tied tensors under
each of their names. They repeat what the note says; a reader that finds them otherwise trusts no note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckptfmt.containers.noted.note import NOTE, encode_note, tree_of
from ckptfmt.containers.noted.planning import Row, plan
from ckptfmt.containers.npz_nodes import strings_fit
from ckptfmt.errors import FormatError, LimitError
from ckptfmt.frameworks.chainer.hierarchy import joined, nested, parts_of
from ckptfmt.tree.canonical import loads
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptfmt.containers.noted.entries import Entry
    from ckptfmt.containers.noted.planning import Container, Plan
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["MARK", "Members", "equal", "members_of", "tree_of_members"]

MARK = "ckptfmt.chainer"
"""A member that only files with a note and repeated members have: by it they are told from other files."""

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_MAX_NODES = 1 << 21


class Held(Protocol):
    """How a container holds what repeats a tensor."""

    def same(self, name: str, other: str) -> bool:
        """Whether two arrays of the container are equal, as far as its directory tells."""


@dataclass(frozen=True, slots=True)
class Members:
    """What is to be written.

    Attributes
    ----------
    rows : tuple of Row
        Tensors, in canonical order.
    others : mapping of str to None, Strings or Tensor
        What is written besides, sorted by name.
    note : bytes or None
    findings : tuple of Finding
    """

    rows: tuple[Row, ...]
    others: Mapping[str, Tree]
    note: bytes | None
    findings: tuple[Finding, ...]


def members_of(tree: Tree, container: Container, *, texts: bool = True) -> Members:
    """Plan the writing of a tree.

    Parameters
    ----------
    tree : Tree
    container : Container
        It must reserve `MARK`.
    texts : bool
        Whether Chainer loads text from such a container.

    Raises
    ------
    TreeError, LimitError
        As `ckptfmt.containers.noted.planning.plan`; LimitError also where shared containers make more than
        2^21 names.
    """
    flat = joined(tree)
    if flat is not None and _is_simple(flat, container, texts=texts):
        rows: dict[Key, Tree] = {name: node for name, node in flat.items() if isinstance(node, Tensor)}
        planned = plan(rows, container)
        if planned.note is None and all(row.name in flat for row in planned.rows):
            others = {name: flat[name] for name in sorted(flat) if name not in rows}
            return Members(planned.rows, others, None, planned.findings)
    planned = plan(tree, container)
    note = planned.note or _forced(tree, planned)
    taken = {row.name for row in planned.rows}
    found = _repeated(tree, taken, container)
    lost = () if texts else _told_texts(found)
    return Members(planned.rows, found if texts else _without_texts(found), note, (*planned.findings, *lost))


def _without_texts(found: Mapping[str, Tree]) -> dict[str, Tree]:
    return {name: node for name, node in found.items() if not isinstance(node, Strings)}


def _told_texts(found: Mapping[str, Tree]) -> tuple[Finding, ...]:
    names = [name for name, node in found.items() if isinstance(node, Strings)]
    if not names:
        return ()
    message = (
        f"{len(names)} texts, {names[0]!r} first: Chainer loads no text from HDF5, so that only the structure"
        " note has them; write chainer-npz, or hdf5"
    )
    return (Finding("text-lost", display(tuple(names[0].split("/"))), Severity.LOSS, message),)


def _is_simple(flat: Mapping[str, Tree], container: Container, *, texts: bool) -> bool:
    """Whether arrays by these names are all there is to tell."""
    if any(name in (NOTE, MARK) or container.name(parts_of(name, flat)) != name for name in flat):
        return False
    nodes = flat.values()
    tensors = [node for node in nodes if isinstance(node, Tensor)]
    identities = {id(node) if node.identity is None else node.identity for node in tensors}
    return (
        len(identities) == len(tensors)
        and all(node.tag is None for node in tensors)
        and all(node is None or isinstance(node, Tensor) or (texts and _is_text(node)) for node in nodes)
    )


def _is_text(node: Tree) -> bool:
    return isinstance(node, Strings) and strings_fit(node)


def _forced(tree: Tree, planned: Plan) -> bytes:
    """Return the note of a flat mapping whose names would be split."""
    index = {id(row.tensor): at for at, row in enumerate(planned.rows)}
    return encode_note(tree, planned.rows, lambda tensor: index[id(tensor)])


def _repeated(tree: Tree, taken: set[str], container: Container) -> dict[str, Tree]:
    """Return what is written beside the tensors of a tree that has a note, sorted by name."""
    found: dict[str, Tree] = {}
    groups = {group for name in taken for group in _above(name)}
    names = {NOTE, MARK, *taken}
    for path, node in sorted(_reachable(tree), key=lambda item: encode_path(item[0])):
        name = container.name(path)
        exact = not isinstance(node, Tensor) or container.held(node.dtype, node.shape).exact
        if exact and name not in names and name not in groups and names.isdisjoint(_above(name)):
            found[name] = node
            names.add(name)
            groups.update(_above(name))
    return {name: found[name] for name in sorted(found)}


def _above(name: str) -> list[str]:
    """Return the groups that a name lies in, as far down as a tree reaches."""
    parts = name.split("/", MAX_DEPTH)
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _reachable(tree: Tree) -> list[tuple[Path, Tree]]:
    """Return what Chainer could look for: arrays, and what it makes arrays of, below names and indices."""
    found: list[tuple[Path, Tree]] = []
    stack: list[tuple[Path, Tree]] = [((), tree)]
    count = 0
    while stack:
        path, node = stack.pop()
        count += 1
        if count > _MAX_NODES:
            raise LimitError(f"the tree expands to more than {_MAX_NODES} names")
        if isinstance(node, dict):
            stack += [((*path, key), child) for key, child in node.items() if type(key) is str]
        elif isinstance(node, list):
            stack += [((*path, index), child) for index, child in enumerate(node)]
        elif path:
            known, array = _as_array(node)
            if known:
                found.append((path, array))
    return found


def _as_array(node: Tree) -> tuple[bool, Tree]:
    """Return whether Chainer has an array for a value, and which: as ``numpy.asarray`` makes it."""
    kind: str | None = None
    if isinstance(node, str):
        node = Strings((), (node,))
    elif isinstance(node, bool):
        kind = "?"
    elif isinstance(node, int):
        kind = "<i8" if node in _INT64 else "<u8" if node in _UINT64 else None
    elif isinstance(node, float | complex):
        kind = "<f8" if isinstance(node, float) else "<c16"
    if kind is not None:
        return True, Tensor.of(np.array(node, kind))
    return node is None or isinstance(node, Tensor) or _is_text(node), node


# --- reading ---------------------------------------------------------------------------------------------


def tree_of_members(
    entries: Sequence[Entry],
    note: Callable[[], bytes] | None,
    held: Held,
    names: Container,
    *,
    file: str,
    texts: bool = True,
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of a file's arrays: by its note if it has one that matches, else by their names.

    Parameters
    ----------
    entries : sequence of Entry
        Without those of the note and of `MARK`.
    note : callable, optional
        Gives the note's bytes, or raises a FormatError.
    held : Held
    names : Container
    texts : bool
        As for `members_of`.
    file : str
        What to call the file in findings.
    """
    flat = {entry.name: entry.node for entry in entries}
    if note is None:
        return nested(flat), ()
    try:
        return _noted(entries, note(), held, names, texts=texts), ()
    except FormatError as error:
        message = f"the structure note is ignored: {error.message}"
        return nested(flat), (Finding("note-mismatch", "", Severity.LOSS, message, file=file),)


def _noted(entries: Sequence[Entry], note: bytes, held: Held, names: Container, *, texts: bool) -> Tree:
    flat = {entry.name: entry.node for entry in entries}
    by_source = {id(entry.node.source): entry.name for entry in entries if isinstance(entry.node, Tensor)}
    listed = _listed(note)
    tree, told = tree_of([entry for entry in entries if entry.name in listed], lambda: note, file="")
    if told:
        raise FormatError(told[0].message.removeprefix("the structure note is ignored: "))
    wanted = _repeated(tree, listed, names)
    wanted = wanted if texts else _without_texts(wanted)
    found = {name for name in flat if name not in listed}
    if found != set(wanted):
        name = min(found ^ set(wanted))
        raise FormatError(f"{name[:80]!r} {'is there' if name in found else 'is missing'}, not as it says")
    for name, node in wanted.items():
        own = by_source.get(id(node.source)) if isinstance(node, Tensor) else None
        if not (equal(node, flat[name]) if own is None else held.same(own, name)):
            raise FormatError(f"{name[:80]!r} is not what it says")
    return tree


def _listed(note: bytes) -> set[str]:
    """Return the names of a note's rows; what is malformed is for `decode_note` to say."""
    document = loads(note)
    rows = document.get("entries") if isinstance(document, dict) else None
    rows = rows if isinstance(rows, list) else []
    return {row[0] for row in rows if isinstance(row, list) and row and isinstance(row[0], str)}


def equal(node: Tree, other: Tree) -> bool:
    """Whether two small values are the same array."""
    if isinstance(node, Tensor) and isinstance(other, Tensor):
        alike = (node.dtype, node.shape) == (other.dtype, other.shape)
        return alike and bytes(node.bytes()) == bytes(other.bytes())
    if isinstance(node, Strings) and isinstance(other, Strings):
        return (node.shape, node.values) == (other.shape, other.values)
    return node is None and other is None
