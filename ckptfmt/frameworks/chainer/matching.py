"""Whether a tree fits an object: its names, shapes and types against those that the object serialises.

Nothing is cast or broadcast, as Chainer itself would do without a word. A parameter without data takes any
array, and the state of an optimizer that was never used takes what its rule would make. Nothing here imports
Chainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["RENAMED", "LazyState", "OpenState", "array_of", "mismatches"]

RENAMED = {"order": "_order", "_order": "order"}
"""Names of an iterator's order, which differ between classes and versions (``chainer/iterators``)."""


class LazyState(dict["Key", "Tree"]):
    """What a rule serialises that was never used, and the names of the state that it would make."""

    __slots__ = ("names",)

    def __init__(self, known: Mapping[Key, Tree], names: Collection[str]) -> None:
        super().__init__(known)
        self.names = frozenset(names)


class OpenState(dict["Key", "Tree"]):
    """What an extension serialises: what must be there at least; the rest depends on what it has seen."""

    __slots__ = ()


def mismatches(node: Tree, wanted: Tree, path: Path) -> Iterator[str]:
    """Yield what stands against giving a node to an object.

    Parameters
    ----------
    node : Tree
    wanted : Tree
        What the object itself serialises, nested by names.
    path : Path
        Of both, for messages.
    """
    if isinstance(wanted, OpenState):
        yield from _open(node, wanted, path)
        return
    if isinstance(wanted, dict):
        yield from _mapping(node, wanted, path)
        return
    reason = _leaf(node, wanted)
    if reason is not None:
        yield f"{display(path) or 'the root'}: {reason}"


def _mapping(node: Tree, wanted: Mapping[Key, Tree], path: Path) -> Iterator[str]:
    if not isinstance(node, dict):
        yield f"{display(path) or 'the root'}: {_kind(node)} where a mapping must be"
        return
    left = dict(node)
    for name, value in wanted.items():
        found = name if name in left else RENAMED.get(str(name), name)
        if found in left:
            yield from mismatches(left.pop(found), value, (*path, name))
        elif _holds(value):
            yield f"{display((*path, name))}: missing"
    extra = {name for name in left if isinstance(name, str)}
    if isinstance(wanted, LazyState) and extra >= wanted.names:
        extra -= wanted.names
        left = {name: child for name, child in left.items() if name not in wanted.names}
    for other, child in left.items():
        if _holds(child):
            yield f"{display((*path, other))}: unexpected"


def _open(node: Tree, wanted: Mapping[Key, Tree], path: Path) -> Iterator[str]:
    found = node if isinstance(node, dict) else {}
    for name, value in wanted.items():
        if name not in found and _holds(value):
            yield f"{display((*path, name))}: missing"


def _holds(node: Tree) -> bool:
    """Whether there is anything in a node but empty mappings."""
    return any(map(_holds, node.values())) if isinstance(node, dict) else True


def _leaf(node: Tree, wanted: Tree) -> str | None:
    if isinstance(node, dict):
        return f"a mapping where {_kind(wanted)} must be"
    array, other = array_of(node), array_of(wanted)
    if wanted is None and (array is not None or node is None):
        return None
    if node is None:
        return "never initialised in the checkpoint, and initialised here"
    if array is None or other is None:
        return f"{_kind(node)} where {_kind(wanted)} must be"
    if isinstance(array, Strings) or isinstance(other, Strings):
        same = isinstance(array, Strings) and isinstance(other, Strings) and array.shape == other.shape
    else:
        same = (array.dtype, array.shape) == (other.dtype, other.shape)
    return None if same else f"{_kind(node)} where {_kind(wanted)} must be"


def array_of(node: Tree) -> Tensor | Strings | None:
    """Return a node as the array that Chainer has for it; None if it has none."""
    if isinstance(node, Tensor | Strings):
        return node
    if isinstance(node, str):
        return Strings((), (node,))
    kind = "?" if isinstance(node, bool) else "<i8" if isinstance(node, int) else "<f8"
    if isinstance(node, float) or (isinstance(node, int) and -(2**63) <= node < 2**63):
        return Tensor.of(np.array(node, kind))
    return None


def _kind(node: Tree) -> str:
    array = array_of(node)
    if isinstance(array, Tensor):
        return f"{array.dtype} {array.shape}"
    if isinstance(array, Strings):
        return f"text {array.shape}"
    return "nothing" if node is None else f"a {type(node).__name__}"
