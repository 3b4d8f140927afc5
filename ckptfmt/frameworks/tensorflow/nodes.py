"""A tree as an object graph of our own, for trees that brought none along.

A node for each container that holds a tensor somewhere, a child for each key, one node for tensors that are
tied. ``tf.train.Checkpoint(**objects).restore`` finds dicts, lists and modules of the same names by it. The
counter that ``Checkpoint.save`` adds is there too, for ``restore`` looks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.bundle.names import VARIANT_NAME
from ckptfmt.frameworks.tensorflow.graph import VALUE, Attribute, Node, escaped
from ckptfmt.frameworks.tensorflow.names import COUNTER
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.paths import dotted
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptfmt.frameworks.tensorflow.graph import Graph
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = ["COUNTER_KEY", "counter", "has_counter", "key_of", "own_graph", "same_text", "storable"]

_SUFFIX = f".ATTRIBUTES/{VALUE}"

COUNTER_KEY = f"{COUNTER}/{_SUFFIX}"
"""The key of the counter of saves."""


def counter() -> Tensor:
    """Return the counter as it is after one save: an int64 scalar."""
    return Tensor.of(np.array(1, np.int64))


def has_counter(tree: Tree) -> bool:
    """Whether a tree has something of its own where the counter would be."""
    return isinstance(tree, dict) and COUNTER in tree


def key_of(path: Path) -> str:
    """Return the key of a variable at a path, as TensorFlow spells it."""
    names = [escaped(_local_name(path[at : at + 1])) for at in range(len(path))]
    return "/".join([*names, _SUFFIX]).replace("\0", "\\0")


def _local_name(path: Path) -> str:
    return dotted(path)


def storable(node: Tree) -> bool:
    """Whether a bundle can hold a node as one value."""
    if isinstance(node, Opaque) and node.name == VARIANT_NAME:
        return set(node.parts) == {"state"} and isinstance(node.parts["state"], Strings)
    return isinstance(node, Tensor | Strings)


def same_text(node: Tree, other: Tree) -> bool:
    """Whether two nodes are equal arrays of strings, or equal variants."""
    if isinstance(node, Strings) and isinstance(other, Strings):
        return (node.shape, node.values) == (other.shape, other.values)
    if isinstance(node, Opaque) and isinstance(other, Opaque) and storable(node) and storable(other):
        return same_text(node.parts["state"], other.parts["state"])
    return False


def own_graph(tree: Tree, key: Callable[[Tree], str | None], *, counted: bool) -> Graph:
    """Return a graph of a tree.

    Parameters
    ----------
    tree : Tree
        No deeper than trees may be.
    key : callable
        Returns the key of a value, or None where the bundle does not hold it.
    counted : bool
        Whether the counter of saves is added.
    """
    return _Builder(key).build(tree, counted=counted)


class _Builder:
    def __init__(self, key: Callable[[Tree], str | None]) -> None:
        self._key = key
        self._valued: dict[int, bool] = {}
        self._containers: dict[int, int] = {}
        self._variables: dict[str, int] = {}
        self._children: list[tuple[tuple[str, int], ...]] = []
        self._attributes: list[tuple[Attribute, ...]] = []
        self._waiting: list[tuple[int, Path, Tree]] = []

    def build(self, tree: Tree, *, counted: bool) -> Graph:
        if self._variable((), tree) is None:
            self._container((), tree)
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for at, path, node in waiting:
                self._children[at] = tuple(self._below(path, node))
        if counted:
            attribute = Attribute(VALUE, COUNTER, COUNTER_KEY)
            self._children[0] = (*self._children[0], (COUNTER, self._new((attribute,))))
        return tuple(map(Node, self._children, self._attributes))

    def _new(self, attributes: tuple[Attribute, ...] = ()) -> int:
        self._children.append(())
        self._attributes.append(attributes)
        return len(self._children) - 1

    def _container(self, path: Path, node: Tree) -> int:
        at = self._containers.get(id(node))
        if at is None:
            at = self._containers[id(node)] = self._new()
            self._waiting.append((at, path, node))
        return at

    def _variable(self, path: Path, node: Tree) -> int | None:
        key = self._key(node) if storable(node) else None
        if key is None:
            return None
        if key not in self._variables:
            name = "/".join(_local_name(path[at : at + 1]) for at in range(len(path)))
            self._variables[key] = self._new((Attribute(VALUE, name, key),))
        return self._variables[key]

    def _below(self, path: Path, node: Tree) -> Iterator[tuple[str, int]]:
        taken: set[str] = {COUNTER} if not path and not has_counter(node) else set()
        for ordinal, (key, child) in enumerate(children(node)):
            if not self._has_values(child):
                continue
            below = (*path, key)
            name = _local_name((key,))
            while name in taken:
                name = f"{name}#{ordinal}"
            taken.add(name)
            variable = self._variable(below, child)
            yield name, self._container(below, child) if variable is None else variable

    def _has_values(self, node: Tree) -> bool:
        if storable(node) and self._key(node) is not None:
            return True
        found = self._valued.get(id(node))
        if found is None:
            found = any(self._has_values(child) for _, child in list(children(node)))
            self._valued[id(node)] = found
        return found
