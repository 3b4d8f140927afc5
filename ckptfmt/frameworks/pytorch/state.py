"""A tree as plain containers of Python: the kinds, tags and references that need no framework.

Shared containers stay shared, cycles through dicts and lists are closed again, ties stay ties. Leaves are
made by whoever asks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, tag_of
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["Leaves", "StateBuilder"]

_FACTORIES: dict[str, Callable[[], object]] = {
    f"builtins.{kind.__name__}": kind
    for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
}


class Leaves(Protocol):
    """Makes what a tree's own kinds stand for in a framework."""

    def tensor(self, tensor: Tensor, shared: Hashable | None) -> object:
        """Return the object of a tensor; the same memory for each `shared` that is equal and not None."""

    def composite(self, node: Composite, build: Callable[[Tree], object]) -> object:
        """Return the object of a composite, whose parts `build` makes, or the node itself."""

    def opaque(self, node: Opaque) -> object:
        """Return a constant of the framework, or the node itself."""

    def sequence(self, items: tuple[object, ...], tag: Tag) -> object:
        """Return a tuple of a class of the framework, or the plain tuple."""


class StateBuilder:
    """Makes plain objects of one tree.

    Parameters
    ----------
    leaves : Leaves
    """

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves
        self._done: dict[int, object] = {}
        self._open: list[object] = []

    def build(self, node: Tree) -> object:
        """Return the object of a node."""
        if isinstance(node, Tensor):
            return self._leaves.tensor(node, node.identity)
        if isinstance(node, dict | list):
            if id(node) not in self._done:
                self._done[id(node)] = self._mapping(node) if isinstance(node, dict) else self._list(node)
            return self._done[id(node)]
        if isinstance(node, tuple):
            return self._tuple(node)
        if isinstance(node, set | frozenset):
            elements = [self.build(element) for element in node]
            return frozenset(elements) if isinstance(node, frozenset) else set(elements)
        if isinstance(node, Composite):
            return self._leaves.composite(node, self.build)
        if isinstance(node, Opaque):
            return self._opaque(node)
        if isinstance(node, Strings):
            kind = str if all(isinstance(value, str) for value in node.values) else object
            return np.array(node.values, kind).reshape(node.shape)
        tag = tag_of(node)
        return (
            bytearray(node) if isinstance(node, bytes) and tag and tag.name == "builtins.bytearray" else node
        )

    def _mapping(self, node: dict[Key, Tree]) -> object:
        tag = tag_of(node)
        made: dict[object, object] = _empty(tag)
        self._open.append(made)
        for key, child in node.items():
            made[key] = self.build(child)
        self._open.pop()
        if tag is not None and isinstance(made, OrderedDict):
            for name, value in tag.attributes.items():
                setattr(made, str(name), self.build(value))
        return made

    def _list(self, node: list[Tree]) -> object:
        made: list[object] = []
        self._open.append(made)
        made += [self.build(child) for child in node]
        self._open.pop()
        return made

    def _tuple(self, node: tuple[Tree, ...]) -> object:
        self._open.append(None)
        made = tuple(self.build(child) for child in node)
        self._open.pop()
        tag = tag_of(node)
        return made if tag is None else self._leaves.sequence(made, tag)

    def _opaque(self, node: Opaque) -> object:
        up = node.parts.get("up")
        if node.name == CYCLE and isinstance(up, int) and 1 <= up <= len(self._open):
            meant = self._open[-up]
            return node if meant is None else meant
        return self._leaves.opaque(node)


def _empty(tag: Tag | None) -> dict[object, object]:
    name = None if tag is None else tag.name
    if name == "collections.OrderedDict":
        return OrderedDict()
    if name == "collections.Counter":
        return Counter()  # type: ignore[return-value] # its values may be anything, for all that Python minds
    if name == "collections.defaultdict" and tag is not None:
        factory = tag.attributes.get("default_factory")
        if factory is None or factory in _FACTORIES:
            return defaultdict(None if factory is None else _FACTORIES[str(factory)])
    return {}
