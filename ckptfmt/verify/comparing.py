"""Everything that differs between two trees, to the bit: by path, with distances for numbers.

Tensors are compared by the digests that their checkpoints claim where both do, else by streaming both.
Class tags, key order and ties are outside the comparison, as they are outside every digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ckptfmt.format.digests import node_digest
from ckptfmt.tree.nodes import Composite, Opaque, Strings
from ckptfmt.tree.paths import display, encode_key
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import children
from ckptfmt.verify.numeric import Difference, difference, merged
from ckptfmt.verify.opening import tree_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Comparison", "Entry", "Status", "compare"]

Status = Literal["equal", "kind", "type", "shape", "bits", "value", "only-a", "only-b"]

_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """How the two trees compare at one path.

    Attributes
    ----------
    path : str
        As displayed.
    status : Status
        ``equal``; another ``kind`` of node; tensors of another ``type``, ``shape`` or other ``bits``; another
        ``value``; or a path that only one of them has.
    a, b : str
        What each side has there, for a person.
    difference : Difference or None
        Of tensors with other bits.
    first : tuple of int or None
        Index of the first element that differs.
    """

    path: str
    status: Status
    a: str = ""
    b: str = ""
    difference: Difference | None = None
    first: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two trees compare.

    Attributes
    ----------
    entries : tuple of Entry
        For every leaf of either, in the order of the first; equal ones included.
    """

    entries: tuple[Entry, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs: the roots are equal."""
        return all(entry.status == "equal" for entry in self.entries)

    @property
    def different(self) -> tuple[Entry, ...]:
        """The entries that are not equal."""
        return tuple(entry for entry in self.entries if entry.status != "equal")

    def count(self, status: Status) -> int:
        """Return the number of entries of a status."""
        return sum(entry.status == status for entry in self.entries)


def compare(a: object, b: object, *, progress: Callable[[int, int], None] | None = None) -> Comparison:
    """Compare two checkpoints of any formats, or two values that `save` takes.

    Parameters
    ----------
    a, b : str, os.PathLike, Checkpoint or object
        Paths of checkpoints of any format, opened ones, or values that `save` takes.
    progress : callable, optional
        Called with the number of leaves done and 0 (their number is not known before).

    Raises
    ------
    FormatError, StorageError
        A tensor cannot be read, or is not what its checkpoint says.
    TreeError, LimitError
        A value cannot be kept.
    """
    entries = []
    with tree_of(a) as one, tree_of(b) as other:
        for entry in _pairs(one, other, ()):
            entries.append(entry)
            if progress is not None:
                progress(len(entries), 0)
    return Comparison(tuple(entries))


def _pairs(a: Tree, b: Tree, path: Path) -> Iterator[Entry]:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        yield _tensors(a, b, display(path))
    elif _kind(a) != _kind(b):
        yield Entry(display(path), "kind", describe(a), describe(b))
    elif isinstance(a, set | frozenset) or not (children(a) or children(b)):
        same = node_digest(a) == node_digest(b)
        yield Entry(display(path), "equal" if same else "value", describe(a), describe(b))
    else:
        if isinstance(a, Composite | Opaque) and isinstance(b, Composite | Opaque) and a.name != b.name:
            yield Entry(display(path), "value", describe(a), describe(b))
        yield from _below(a, b, path)


def _below(a: Tree, b: Tree, path: Path) -> Iterator[Entry]:
    in_a, in_b = _by_key(a), _by_key(b)
    for encoded, (key, child) in in_a.items():
        if encoded in in_b:
            yield from _pairs(child, in_b[encoded][1], (*path, key))
        else:
            yield Entry(display((*path, key)), "only-a", describe(child))
    for encoded, (key, child) in in_b.items():
        if encoded not in in_a:
            yield Entry(display((*path, key)), "only-b", b=describe(child))


def _by_key(node: Tree) -> dict[bytes, tuple[Key, Tree]]:
    return {encode_key(key): (key, child) for key, child in children(node)}


_KINDS = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    Tensor,
    Strings,
    Composite,
    Opaque,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
)


def _kind(node: Tree) -> object:
    return next((kind for kind in _KINDS if isinstance(node, kind)), None)


def describe(node: Tree) -> str:
    """Return a node in a few words."""
    if isinstance(node, Tensor):
        return f"{node.dtype}{list(node.shape)}"
    if isinstance(node, Composite | Opaque):
        return f"{type(node).__name__.lower()} {node.name}"
    if isinstance(node, Strings):
        return f"strings{list(node.shape)}"
    if isinstance(node, dict | list | tuple | set | frozenset):
        kind = next(kind for kind in (dict, list, tuple, set, frozenset) if isinstance(node, kind))
        return f"{kind.__name__} of {len(node)}"
    shown = repr(node)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _tensors(a: Tensor, b: Tensor, path: str) -> Entry:
    shown = describe(a), describe(b)
    if a.dtype != b.dtype:
        return Entry(path, "type", *shown)
    if a.shape != b.shape:
        return Entry(path, "shape", *shown)
    if a.digest is not None and a.digest == b.digest:
        return Entry(path, "equal", *shown)
    found = _stream(a, b)
    if not found.count:
        return Entry(path, "equal", *shown)
    first = tuple(int(i) for i in np.unravel_index(found.first or 0, a.shape))
    return Entry(path, "bits", *shown, found, first)


def _stream(a: Tensor, b: Tensor) -> Difference:
    """Compare two tensors of one type and shape a piece at a time."""
    result = Difference(0, 0)
    flat_a, flat_b = (Tensor(t.dtype, (t.size,), t.source) for t in (a, b))
    step = _PIECE * 8 // a.dtype.bits or 1
    for start in range(0, a.size, step):
        one, other = flat_a[start : start + step], flat_b[start : start + step]
        if np.array_equal(one.view(np.uint8), other.view(np.uint8)):
            result = merged(result, Difference(one.size, 0))
        else:
            result = merged(result, difference(one, other, a.dtype))
    return result
