"""Putting a tree into TensorFlow's objects: every check first, then every change.

What variables, models and modules are, and how they take values, is told by whoever has TensorFlow.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ckptfmt.frameworks.tensorflow.names import COUNTER, MODEL, OPTIMIZER
from ckptfmt.frameworks.tensorflow.objects import GRAPH
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.restoration import Restoration, described
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Objects", "VariableRestoration"]

_TABLES = ("/.ATTRIBUTES/table-keys", "/.ATTRIBUTES/table-values")


class Objects(Protocol):
    """TensorFlow's objects, as far as restoring has to know them."""

    def variable(self, target: object) -> str | None:
        """Return the type and shape of a variable, or None for anything else."""

    def assign(self, node: Tensor | Strings, target: object) -> None:
        """Give a variable a value that fits."""

    def parts(self, target: object) -> Mapping[str, object] | None:
        """Return the variables of an object by name, or None for what is no such object."""

    def constants(self, target: object) -> Mapping[str, object] | None:
        """Return the parts of an object some of which must be equal, or None for what is no such object."""

    def is_saved(self, target: object) -> bool:
        """Whether an object is restored from a checkpoint of its own."""

    def saved(self, target: object) -> Tree:
        """Return the tree of such an object as it is."""

    def load(self, tree: Tree, target: object) -> None:
        """Restore such an object."""

    def value(self, node: Tree) -> object:
        """Return a node as a plain object."""


class VariableRestoration(Restoration):
    """Collects what is wrong and what is to be done; `run` does it.

    Parameters
    ----------
    objects : Objects
    """

    def __init__(self, objects: Objects) -> None:
        super().__init__()
        self._objects = objects

    def plan(self, node: Tree, target: object, path: Path = ()) -> bool:
        """Plan to put a node into a target; return whether the target is of a kind that takes it in place."""
        objects = self._objects
        spec = objects.variable(target)
        parts = objects.parts(target)
        constants = objects.constants(target)
        if spec is not None:
            self._variable(node, target, spec, path)
        elif parts is not None:
            self._parts(node, parts, path)
        elif constants is not None:
            self._constants(node, constants, path)
        elif objects.is_saved(target):
            self._saved(node, target, path)
        else:
            return self.container(node, target, path)
        return True

    def value(self, node: Tree) -> object:
        """Return a node as a plain object."""
        return self._objects.value(node)

    def _variable(self, node: Tree, target: object, spec: str, path: Path) -> None:
        found = described(node)
        if isinstance(node, Tensor | Strings) and found == spec:
            self.do(partial(self._objects.assign, node, target))
        else:
            self.wrong(path, f"{found} where {spec} must be")

    def _parts(self, node: Tree, parts: Mapping[str, object], path: Path) -> None:
        if not isinstance(node, dict):
            self.wrong(path, f"{described(node)} where a mapping of variables must be")
            return
        self.names(node, parts, path)
        for name, part in parts.items():
            if name in node:
                self.plan(node[name], part, (*path, name))

    def _constants(self, node: Tree, parts: Mapping[str, object], path: Path) -> None:
        self._parts(node, parts, path)
        for name, part in parts.items():
            told = isinstance(node, dict) and name in node
            if told and self._objects.variable(part) is None and node[name] != part:  # type: ignore[call-overload, index] # a dict
                self.wrong((*path, name), f"it is {part} here")

    def _saved(self, node: Tree, target: object, path: Path) -> None:
        """Compare with what the target would save itself, and plan to load it by the target's own graph."""
        own = self._objects.saved(target)
        if not isinstance(node, dict) or not isinstance(own, dict):
            self.wrong(path, f"{described(node)} where the tree of a checkpoint must be")
            return
        merged: dict[Key, Tree] = {GRAPH: own[GRAPH]}
        for group in (name for name in (MODEL, OPTIMIZER) if name in own or name in node):
            merged[group] = self._group(node.get(group, {}), own.get(group, {}), (*path, group))
        if COUNTER in own:
            merged[COUNTER] = self._value(node.get(COUNTER), own[COUNTER], (*path, COUNTER))
        self.do(partial(self._objects.load, merged, target))

    def _group(self, node: Tree, own: Tree, path: Path) -> Tree:
        if not isinstance(node, dict) or not isinstance(own, dict):
            self.wrong(path, f"{described(node)} where a mapping must be")
            return own
        self.names(node, own, path)
        return {
            name: self._value(node[name], value, (*path, name)) for name, value in own.items() if name in node
        }

    def _value(self, node: Tree, own: Tree, path: Path) -> Tree:
        table = isinstance(own, Strings | Tensor) and path[-1:] != () and str(path[-1]).endswith(_TABLES)
        if table and type(node) is type(own):
            return node  # of any length
        if described(node) != described(own):
            self.wrong(path, f"{described(node)} where {described(own)} must be")
        return node
