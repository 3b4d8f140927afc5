"""Putting a tree into objects that are there: every check first, then every change.

Containers are compared key by key here, and what does not fit is gathered; what a framework's objects are,
and how they take a value, is told by a subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from ckptfmt.errors import ConversionError
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Restoration", "described"]

_SHOWN = 200


def described(node: Tree) -> str:
    """Return the type and shape of a value, as they are compared."""
    if isinstance(node, Tensor):
        return f"{node.dtype.name} {node.shape}"
    if isinstance(node, Strings):
        return f"string {node.shape}"
    return f"a {type(node).__name__}"


class Restoration(ABC):
    """Collects what is wrong and what is to be done; `run` does it."""

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._jobs: list[Callable[[], None]] = []

    @abstractmethod
    def plan(self, node: Tree, target: object, path: Path = ()) -> bool:
        """Plan to put a node into a target; return whether the target is of a kind that takes it in place."""

    @abstractmethod
    def value(self, node: Tree) -> object:
        """Return a node as a plain object."""

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

    def do(self, job: Callable[[], None]) -> None:
        """Plan a change."""
        self._jobs.append(job)

    def wrong(self, path: Path, reason: str) -> None:
        """Tell of what does not fit."""
        self._problems.append(f"{display(path) or 'the root'}: {reason}")

    def names(self, node: dict[Key, Tree], expected: Iterable[Key], path: Path) -> None:
        """Tell of names that are missing, and of those that nothing expects."""
        wanted = dict.fromkeys(expected)
        for name in wanted:
            if name not in node:
                self.wrong((*path, name), "missing")
        for name in node:
            if name not in wanted:
                self.wrong((*path, name), "unexpected")

    def container(self, node: Tree, target: object, path: Path) -> bool:
        """Plan to put a node into a mapping or list, item by item; return whether the target is one."""
        if isinstance(target, dict):
            self._mapping(node, target, path)
        elif isinstance(target, list):
            self._list(node, target, path)
        else:
            return False
        return True

    def _mapping(self, node: Tree, target: dict[Key, object], path: Path) -> None:
        if not isinstance(node, dict):
            self.wrong(path, f"{described(node)} where a mapping must be")
            return
        self.names(node, target, path)
        for key, item in target.items():
            if key in node and not self.plan(node[key], item, (*path, key)):
                self.do(partial(self._put, partial(target.__setitem__, key), node[key]))

    def _list(self, node: Tree, target: list[object], path: Path) -> None:
        if not isinstance(node, list | tuple) or len(node) != len(target):
            self.wrong(path, f"a list of {len(target)} items must be here")
            return
        for index, item in enumerate(target):
            if not self.plan(node[index], item, (*path, index)):
                self.do(partial(self._put, partial(target.__setitem__, index), node[index]))

    def _put(self, put: Callable[[object], None], node: Tree) -> None:
        put(self.value(node))
