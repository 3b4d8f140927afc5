"""The structure note: a tree beside the arrays that its tensors became, so that it comes back whole.

Annex A of ``spec/ckptfmt-1.0.md``. A note is bound to the names, types and shapes of all entries of its
container; one that does not match them exactly is not used. Nothing here reads or writes files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ckptfmt.errors import CkptError, FormatError, LimitError
from ckptfmt.tree.canonical import JSON, dumps, loads
from ckptfmt.tree.document import decode_tree, encode_tree
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import MAX_DEPTH, MAX_REFERENCES, children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptfmt.containers.noted.entries import Entry
    from ckptfmt.containers.noted.planning import Row
    from ckptfmt.tree.nodes import Tree

__all__ = ["NOTE", "decode_note", "encode_note", "note_bytes", "note_entry", "tree_of"]

NOTE = "ckptfmt.tree"
_FREE_NOTE = 1 << 20  # bytes of a note that no one has to account for
"""The name under which a container holds the note."""

_VERSION: JSON = [1, 0]
_MAX_NDIM = 64
_MAX_DIMENSION = 2**53


def encode_note(tree: Tree, rows: Sequence[Row], index_of: Callable[[Tensor], int]) -> bytes:
    """Return the note of a tree.

    Parameters
    ----------
    tree : Tree
    rows : sequence of Row
        What its tensors become.
    index_of : callable
        The row of a tensor.
    """
    entries: JSON = [
        [row.name, row.tensor.dtype.name, list(row.tensor.shape), row.kind, list(row.shape)] for row in rows
    ]
    return dumps({NOTE: _VERSION, "entries": entries, "tree": encode_tree(tree, index_of)})


def tree_of(
    entries: Sequence[Entry], note: Callable[[], bytes] | None, *, file: str
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree that a container holds, and what is worth telling about its note.

    Parameters
    ----------
    entries : sequence of Entry
        Without the note's own entry.
    note : callable, optional
        Gives the note's bytes, or raises a FormatError where they are out of measure.
    file : str
        What to call the container in findings.
    """
    if note is not None:
        try:
            return decode_note(note(), entries), ()
        except FormatError as error:
            message = f"the structure note is ignored: {error.message}"
            finding = Finding("note-mismatch", "", Severity.LOSS, message, file=file)
            return {entry.name: entry.node for entry in entries}, (finding,)
    return {entry.name: entry.node for entry in entries}, ()


def decode_note(data: bytes, entries: Sequence[Entry]) -> Tree:
    """Return the tree that a note describes, over the entries of its container.

    Raises
    ------
    FormatError
        The note is malformed or does not match the entries; nothing of it may be used.
    """
    note = loads(data)
    if not isinstance(note, dict) or set(note) != {NOTE, "entries", "tree"}:
        _mismatch("it is no note")
    if note[NOTE] != _VERSION:
        _mismatch(f"its version is {str(note[NOTE])[:20]}, not 1.0")
    rows = note["entries"]
    if not isinstance(rows, list):
        _mismatch("its entries are no list")
    by_name = {entry.name: entry for entry in entries}
    made = [_tensor(row, by_name) for row in rows]
    if by_name:
        _mismatch(f"it does not know {next(iter(by_name))!r}, which is there")
    tree = decode_tree(note["tree"], made)
    used = _used_sources(tree)
    unused = next(
        (row for row, tensor in zip(rows, made, strict=True) if id(tensor.source) not in used), None
    )
    if isinstance(unused, list):
        _mismatch(f"its tree does not use {unused[0]!r}")
    return tree


def _used_sources(tree: Tree) -> set[int]:
    """Return the ids of the sources that a tree uses; containers are visited once, however often shared."""
    used: set[int] = set()
    done: dict[int, tuple[int, int]] = {}

    def measured(node: Tree) -> tuple[int, int]:
        """Return how many nodes a node expands to, and its height."""
        if isinstance(node, Tensor):
            used.add(id(node.source))
        below = children(node)
        if not below:
            return 1, 0
        if id(node) not in done:
            sizes = [
                measured(child) for _, child in below
            ]  # as deep as the note itself: shared ones are done
            done[id(node)] = 1 + sum(count for count, _ in sizes), 1 + max(height for _, height in sizes)
        return done[id(node)]

    count, height = measured(tree)
    if count > MAX_REFERENCES or height > MAX_DEPTH:
        _mismatch(f"its tree expands to {count} nodes and {height} levels")
    return used


def _mismatch(message: str) -> NoReturn:
    raise FormatError(message)


def _tensor(row: JSON, left: dict[str, Entry]) -> Tensor:
    """Return the tensor of a row, and take its entry from those that are left."""
    if not isinstance(row, list) or len(row) != 5:
        _mismatch("a row that is none")
    name, kind, shape, held_kind, held_shape = row
    entry = left.pop(name, None) if isinstance(name, str) else None
    if entry is None:
        _mismatch(f"it knows {str(name)[:80]!r}, which is not there")
    if held_kind != entry.kind or held_shape != list(entry.shape):
        _mismatch(f"{name!r} is {entry.kind} of shape {list(entry.shape)}, not as it says")
    extents = _extents(shape)
    if not isinstance(kind, str) or extents is None:
        _mismatch(f"the type or shape of {name!r} is malformed")
    return _as_written(entry, kind, extents)


def _extents(shape: JSON) -> tuple[int, ...] | None:
    if not isinstance(shape, list) or len(shape) > _MAX_NDIM:
        return None
    extents = tuple(n for n in shape if type(n) is int and 0 <= n <= _MAX_DIMENSION)
    return extents if len(extents) == len(shape) else None


def _as_written(entry: Entry, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Return an entry as the tensor that was written to it: itself, or its bytes as another type.

    Every tensor has an identity: where the tree uses it several times, it was tied.
    """
    try:
        wanted = dtype(kind)
    except CkptError as error:
        raise FormatError(str(error)) from None
    node = entry.node
    if isinstance(node, Tensor) and (node.dtype, node.shape) == (wanted, shape):
        source = node.source
    else:
        raw = entry.raw()
        if raw is None or raw.nbytes != wanted.nbytes(shape):
            _mismatch(f"{entry.name!r} cannot hold {kind} of shape {list(shape)}")
        source = raw.source
    return Tensor(wanted, shape, source, identity=("entry", id(source)) if 0 not in shape else None)


def note_entry(entries: Sequence[Entry]) -> Entry | None:
    """Return the entry that holds a structure note, or None."""
    for entry in entries:
        node = entry.node
        if entry.name == NOTE and isinstance(node, Tensor) and node.dtype.name == "u8" and node.ndim == 1:
            return entry
    return None


def note_bytes(entry: Entry, size: int) -> bytes:
    """Return the note in the entry that `note_entry` found in a file of `size` bytes.

    Raises
    ------
    LimitError
        It is larger than its file: it is never deflated by us, so such a one is not ours.
    """
    assert isinstance(entry.node, Tensor)  # noqa: S101 - as note_entry saw
    if entry.node.nbytes > max(_FREE_NOTE, size):
        raise LimitError("it expands to more than its file")
    return bytes(entry.node.bytes())
