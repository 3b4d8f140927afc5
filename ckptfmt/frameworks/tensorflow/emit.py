"""A tree as the items of a bundle: names, a graph of objects where the tree is not flat, a structure note.

A flat mapping keeps its names, as TensorFlow 1 has them. The tree of an object-based checkpoint becomes the
same checkpoint again, by the graph that it brought along. Any other tree becomes a graph of our own. A note
is added only where reading would not give the tree back without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.containers.bundle.kinds import NAMES, number_of, tag_of_number
from ckptfmt.containers.bundle.writer import Item
from ckptfmt.containers.noted.note import NOTE
from ckptfmt.containers.noted.planning import Held, plan
from ckptfmt.frameworks.tensorflow.graph import GRAPH_KEY, encode_graph
from ckptfmt.frameworks.tensorflow.nodes import (
    COUNTER_KEY,
    counter,
    has_counter,
    key_of,
    own_graph,
    same_text,
    storable,
)
from ckptfmt.frameworks.tensorflow.regraph import regraphed
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.nodes import Opaque, Strings, tag_of
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import children, leaves

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from ckptfmt.containers.noted.planning import Plan, Row
    from ckptfmt.frameworks.tensorflow.regraph import Regraphed
    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Emission", "emit"]


@dataclass(frozen=True, slots=True)
class Emission:
    """What is to be written, and what is worth telling about it."""

    items: tuple[Item, ...]
    findings: tuple[Finding, ...]


class _Container:
    """What planning must know of a bundle.

    Parameters
    ----------
    keys : mapping of path to str
        Names that are known; others are spelled from their path.
    reserved : frozenset of str
    """

    def __init__(self, keys: Mapping[Path, str], reserved: frozenset[str] = frozenset()) -> None:
        self._keys = keys
        self.reserved = reserved | {GRAPH_KEY}

    def name(self, path: Path) -> str:
        """Return a known name, or the key of a variable at the path."""
        return self._keys.get(path) or key_of(path)

    @staticmethod
    def held(kind: DType, shape: tuple[int, ...]) -> Held:
        """Return how a bundle holds a tensor."""
        number = number_of(kind)
        if number is None:
            return Held("uint8", (kind.nbytes(shape),), exact=False)
        return Held(NAMES[number], shape, exact=True)


def emit(tree: Tree) -> Emission:
    """Return the items of a tree.

    Parameters
    ----------
    tree : Tree

    Raises
    ------
    TreeError
        A set holds a tensor, or a string is not valid Unicode.
    LimitError
        The tree is deeper than 64 levels or expands to more than 2^24 nodes.
    """
    known = regraphed(tree)
    if known is not None:
        return _by_graph(tree, known)
    return _by_name(tree) if _is_flat(tree) else _by_objects(tree)


def _is_flat(tree: Tree) -> bool:
    """Whether a tree is a mapping of names to values, none of which holds others."""
    return isinstance(tree, dict) and all(
        isinstance(key, str) and key and "\0" not in key and (storable(node) or not children(node))
        for key, node in tree.items()
    )


def _by_name(tree: Tree) -> Emission:
    assert isinstance(tree, dict)  # noqa: S101 - as _is_flat saw
    names: dict[Path, str] = {(key,): str(key) for key in tree}
    planned = plan(tree, _Container(names))
    texts: dict[str, Tree] = {
        str(key): node
        for key, node in tree.items()
        if storable(node) and not isinstance(node, Tensor) and key not in (GRAPH_KEY, NOTE)
    }
    expected: dict[Key, Tree] = {row.name: row.tensor for row in planned.rows}
    expected.update(texts)
    return _emission(planned, texts, needed=tag_of(tree) is not None or not _alike(tree, expected))


def _by_graph(tree: Tree, known: Regraphed) -> Emission:
    planned = plan(tree, _Container(known.keys))
    names = {row.name for row in planned.rows}
    texts = {key: node for key, node in known.values.items() if not isinstance(node, Tensor)}
    needed = not _alike(tree, known.expected) or not names <= known.values.keys()
    return _emission(planned, texts, needed=needed, graph=known.message)


def _by_objects(tree: Tree) -> Emission:
    counted = not has_counter(tree)
    planned = plan(tree, _Container({}, frozenset({COUNTER_KEY} if counted else ())))
    keys = {_identity(row.tensor): row.name for row in planned.rows}
    taken = {*keys.values(), GRAPH_KEY, NOTE, COUNTER_KEY}
    texts: dict[str, Tree] = {}
    for path, node in _texts(tree):
        key = key_of(path)
        while key in taken:
            key += "#"
        if id(node) not in keys:
            taken.add(key)
            keys[id(node)] = key
            texts[key] = node
    graph = own_graph(tree, lambda node: keys.get(_identity(node)), counted=counted)
    if counted:
        texts[COUNTER_KEY] = counter()
    return _emission(planned, texts, needed=True, graph=encode_graph(graph))


def _texts(tree: Tree) -> list[tuple[Path, Tree]]:
    """Return the arrays of strings of a tree with their paths."""
    return [(path, leaf) for path, leaf in leaves(tree) if isinstance(leaf, Strings)]


def _emission(
    planned: Plan, others: Mapping[str, Tree], *, needed: bool, graph: bytes | None = None
) -> Emission:
    """Return what was planned, with the note if it is needed."""
    items = [Item(row.name, _as_held(row)) for row in planned.rows]
    for key, node in sorted(others.items()):
        assert isinstance(node, Tensor | Strings | Opaque)  # noqa: S101 - storable
        items.append(Item(key, node))
    if graph is not None:
        items.append(Item(GRAPH_KEY, Strings((), (graph,))))
    untold = {"structure-note", "tie-noted"} if not needed else {"tie-noted"} if graph is not None else set()
    if needed and planned.note is not None:
        items.append(Item(NOTE, Strings((), (planned.note,))))
    return Emission(tuple(items), tuple(one for one in planned.findings if one.kind not in untold))


def _as_held(row: Row) -> Tensor:
    """Return a tensor of a type that a bundle has: itself, or its bytes."""
    if number_of(row.tensor.dtype) is not None:
        return row.tensor
    return Tensor(dtype("u8"), row.shape, row.tensor.source)


def _identity(node: Tree) -> Hashable:
    return node.identity if isinstance(node, Tensor) and node.identity is not None else id(node)


def _alike(node: Tree, other: Tree) -> bool:
    """Whether two trees are equal: the same tensors at the same places, tied to the same; key order aside."""
    if type(node) is not type(other):
        return False
    if isinstance(node, dict) and isinstance(other, dict):
        return node.keys() == other.keys() and all(_alike(child, other[key]) for key, child in node.items())
    if isinstance(node, Tensor) and isinstance(other, Tensor):
        return _identity(node) == _identity(other) and _plain_tag(node)
    if isinstance(node, Strings | Opaque):
        return same_text(node, other) and _all_bytes(node)
    return isinstance(node, bytes) and node == other


def _all_bytes(node: Strings | Opaque) -> bool:
    """Whether strings are as TensorFlow has them, so that they are read as they are here."""
    strings = node if isinstance(node, Strings) else node.parts["state"]
    return isinstance(strings, Strings) and all(isinstance(value, bytes) for value in strings.values)


def _plain_tag(tensor: Tensor) -> bool:
    """Whether a tensor's type in the bundle tells its tag, and its type is one that a bundle has."""
    number = number_of(tensor.dtype, tensor.tag)
    return number is not None and tag_of_number(number) == tensor.tag
