"""Putting a tree into PyTorch's objects: every check first, then every change.

What tensors, modules and optimizers are, and how they take a state, is told by whoever has the framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckptfmt.tree.dtypes import dtype_of
from ckptfmt.tree.restoration import Restoration
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = ["ObjectRestoration", "Objects"]


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


class ObjectRestoration(Restoration):
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
        if objects.is_tensor(target):
            if not self._misfit(node, target, path):
                self.do(lambda: objects.fill(node, target))
            return True
        expected = objects.state(target)
        if expected is not None:
            self._object(node, target, expected, path)
            return True
        if isinstance(target, np.ndarray):
            self._array(node, target, path)
            return True
        return self.container(node, target, path)

    def value(self, node: Tree) -> object:
        """Return a node as a plain object."""
        return self._objects.value(node)

    def _misfit(self, node: Tree, target: object, path: Path) -> bool:
        """Tell why a node cannot fill a tensor, if it cannot."""
        reason = self._objects.mismatch(node, target)
        if reason is not None:
            self.wrong(path, reason)
        return reason is not None

    def _object(self, node: Tree, target: object, expected: Mapping[str, object], path: Path) -> None:
        objects = self._objects
        if not isinstance(node, dict):
            self.wrong(path, f"a {type(node).__name__} where a state must be")
            return
        if expected:
            names = [name for name in expected if name in node or not objects.optional(node, name)]
            self.names(node, names, path)
            for name in names:
                if name in node and objects.is_tensor(expected[name]):
                    self._misfit(node[name], expected[name], (*path, name))
        for reason in objects.problems(node, target):
            self.wrong(path, reason)
        self.do(lambda: objects.load(node, target))

    def _array(self, node: Tree, target: np.ndarray, path: Path) -> None:
        if not isinstance(node, Tensor):
            self.wrong(path, f"a {type(node).__name__} where an array must be")
            return
        kind = dtype_of(target.dtype)
        if (kind, target.shape) != (node.dtype, node.shape):
            found, wanted = f"{node.dtype} {node.shape}", f"{kind} {target.shape}"
            self.wrong(path, f"{found} where {wanted} must be")
            return
        self.do(lambda: node.into(target))
