"""Putting a tree into objects that are there: every check first, then every change.

Containers are compared key by key here; what tensors, modules and optimizers are, and how they take a state,
is told by whoever has the framework.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckptfmt.errors import ConversionError
from ckptfmt.tree.dtypes import dtype_of
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Objects", "Restoration"]

_SHOWN = 200


class Objects(Protocol):
    """A framework's objects, as far as restoring has to know them."""

    def is_tensor(self, target: object) -> bool:
        """Whether it is a tensor, which is filled in place."""

    def mismatch(self, node: Tree, target: object) -> str | None:
        """Return why a node cannot fill a tensor, or None."""

    def fill(self, node: Tree, target: object) -> None:
        """Fill a tensor with a node that matches."""

    def state(self, target: object) -> Mapping[str, object] | None:
        """Return the names and values that an object's state must have, or None where it is no such object.

        Empty where any state will do.
        """

    def optional(self, node: Tree, name: str) -> bool:
        """Whether a state may lack a name: what its version did not have yet."""

    def problems(self, node: Tree, target: object) -> list[str]:
        """Return what else stands against loading a state."""

    def load(self, node: Tree, target: object) -> None:
        """Give an object a state that was checked."""

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
        if objects.is_tensor(target):
            reason = objects.mismatch(node, target)
            if not self._wrong(path, reason):
                self._jobs.append(lambda: objects.fill(node, target))
            return True
        expected = objects.state(target)
        if expected is not None:
            self._object(node, target, expected, path)
            return True
        if isinstance(target, dict):
            self._mapping(node, target, path)
        elif isinstance(target, list):
            self._list(node, target, path)
        elif isinstance(target, np.ndarray):
            self._array(node, target, path)
        else:
            return False
        return True

    def _wrong(self, path: Path, reason: str | None) -> bool:
        if reason is not None:
            self._problems.append(f"{display(path) or 'the root'}: {reason}")
        return reason is not None

    def _object(self, node: Tree, target: object, expected: Mapping[str, object], path: Path) -> None:
        objects = self._objects
        if not isinstance(node, dict):
            self._wrong(path, f"a {type(node).__name__} where a state must be")
            return
        if expected:
            names = [name for name in expected if name in node or not objects.optional(node, name)]
            self._names(node, dict.fromkeys(names), path)
            for name in names:
                if name in node and objects.is_tensor(expected[name]):
                    self._wrong((*path, name), objects.mismatch(node[name], expected[name]))
        for reason in objects.problems(node, target):
            self._wrong(path, reason)
        self._jobs.append(lambda: objects.load(node, target))

    def _names(
        self, node: dict[Key, Tree], expected: Mapping[Key, object] | dict[str, None], path: Path
    ) -> None:
        for name in expected:
            if name not in node:
                self._wrong((*path, name), "missing")
        for name in node:
            if name not in expected:
                self._wrong((*path, name), "unexpected")

    def _mapping(self, node: Tree, target: dict[Key, object], path: Path) -> None:
        if not isinstance(node, dict):
            self._wrong(path, f"a {type(node).__name__} where a mapping must be")
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

    def _array(self, node: Tree, target: np.ndarray, path: Path) -> None:
        if not isinstance(node, Tensor):
            self._wrong(path, f"a {type(node).__name__} where an array must be")
            return
        kind = dtype_of(target.dtype)
        if (kind, target.shape) != (node.dtype, node.shape):
            found, wanted = f"{node.dtype} {node.shape}", f"{kind} {target.shape}"
            self._wrong(path, f"{found} where {wanted} must be")
            return
        self._jobs.append(lambda: node.into(target))
