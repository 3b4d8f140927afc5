"""Putting a tree into objects that are there: every check first, then every change.

Names are compared here; what variables, models and modules are, and how they take values, is told by whoever
has TensorFlow.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.tensorflow.names import COUNTER, MODEL, OPTIMIZER
from ckptfmt.frameworks.tensorflow.objects import GRAPH
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Objects", "Restoration"]

_SHOWN = 200


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


class Restoration:
    """Collects what is wrong and what is to be done; `run` does it.

    Parameters
    ----------
    objects : Objects
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._problems: list[str] = []
        self._jobs: list[Callable[[], None]] = []

    def run(self) -> None:
        """Do what was planned.

        Raises
        ------
        ConversionError
            Something is wrong; nothing was changed.
        """
        if self._problems:
            shown = self._problems[:_SHOWN]
            more = len(self._problems) - len(shown)
            lines = "\n  ".join([*shown, *([f"and {more} more"] if more else [])])
            raise ConversionError(f"cannot be restored, and nothing was changed:\n  {lines}")
        for job in self._jobs:
            job()

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
        elif isinstance(target, dict):
            self._mapping(node, target, path)
        elif isinstance(target, list):
            self._list(node, target, path)
        else:
            return False
        return True

    def _wrong(self, path: Path, reason: str) -> None:
        self._problems.append(f"{display(path) or 'the root'}: {reason}")

    def _variable(self, node: Tree, target: object, spec: str, path: Path) -> None:
        found = _spec(node)
        if isinstance(node, Tensor | Strings) and found == spec:
            self._jobs.append(partial(self._objects.assign, node, target))
        else:
            self._wrong(path, f"{found} where {spec} must be")

    def _names(self, node: dict[Key, Tree], expected: Iterable[Key], path: Path) -> None:
        names = list(expected)
        for name in names:
            if name not in node:
                self._wrong((*path, name), "missing")
        for name in node.keys() - set(names):
            self._wrong((*path, name), "unexpected")

    def _parts(self, node: Tree, parts: Mapping[str, object], path: Path) -> None:
        if not isinstance(node, dict):
            self._wrong(path, f"{_spec(node)} where a mapping of variables must be")
            return
        self._names(node, parts, path)
        for name, part in parts.items():
            if name in node:
                self.plan(node[name], part, (*path, name))

    def _constants(self, node: Tree, parts: Mapping[str, object], path: Path) -> None:
        self._parts(node, parts, path)
        for name, part in parts.items():
            told = isinstance(node, dict) and name in node
            if told and self._objects.variable(part) is None and node[name] != part:  # type: ignore[call-overload, index] # a dict
                self._wrong((*path, name), f"it is {part} here")

    def _saved(self, node: Tree, target: object, path: Path) -> None:
        """Compare with what the target would save itself, and plan to load it by the target's own graph."""
        own = self._objects.saved(target)
        if not isinstance(node, dict) or not isinstance(own, dict):
            self._wrong(path, f"{_spec(node)} where the tree of a checkpoint must be")
            return
        merged: dict[Key, Tree] = {GRAPH: own[GRAPH]}
        for group in (name for name in (MODEL, OPTIMIZER) if name in own or name in node):
            merged[group] = self._group(node.get(group, {}), own.get(group, {}), (*path, group))
        if COUNTER in own:
            merged[COUNTER] = self._value(node.get(COUNTER), own[COUNTER], (*path, COUNTER))
        self._jobs.append(partial(self._objects.load, merged, target))

    def _group(self, node: Tree, own: Tree, path: Path) -> Tree:
        if not isinstance(node, dict) or not isinstance(own, dict):
            self._wrong(path, f"{_spec(node)} where a mapping must be")
            return own
        self._names(node, own, path)
        return {
            name: self._value(node[name], value, (*path, name)) for name, value in own.items() if name in node
        }

    def _value(self, node: Tree, own: Tree, path: Path) -> Tree:
        table = isinstance(own, Strings | Tensor) and path[-1:] != () and str(path[-1]).endswith(_TABLES)
        if table and type(node) is type(own):
            return node  # of any length
        if _spec(node) != _spec(own):
            self._wrong(path, f"{_spec(node)} where {_spec(own)} must be")
        return node

    def _mapping(self, node: Tree, target: dict[Key, object], path: Path) -> None:
        if not isinstance(node, dict):
            self._wrong(path, f"{_spec(node)} where a mapping must be")
            return
        self._names(node, target, path)
        for key, item in target.items():
            if key in node and not self.plan(node[key], item, (*path, key)):
                self._jobs.append(partial(self._put, partial(target.__setitem__, key), node[key]))

    def _list(self, node: Tree, target: list[object], path: Path) -> None:
        if not isinstance(node, list | tuple) or len(node) != len(target):
            self._wrong(path, f"a list of {len(target)} items must be here")
            return
        for index, item in enumerate(target):
            if not self.plan(node[index], item, (*path, index)):
                self._jobs.append(partial(self._put, partial(target.__setitem__, index), node[index]))

    def _put(self, put: Callable[[object], None], node: Tree) -> None:
        put(self._objects.value(node))


_TABLES = ("/.ATTRIBUTES/table-keys", "/.ATTRIBUTES/table-values")


def _spec(node: Tree) -> str:
    """Return the type and shape of a value, as they are compared."""
    if isinstance(node, Tensor):
        return f"{node.dtype.name} {node.shape}"
    if isinstance(node, Strings):
        return f"string {node.shape}"
    return f"a {type(node).__name__}"
