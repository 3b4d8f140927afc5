"""One count of bytes over all that a conversion reads and writes, for a progress bar."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import replaced, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.source import Source

__all__ = ["Passes", "Progress", "counted", "tree_nbytes", "unique_tensors"]

Progress: TypeAlias = "Callable[[int, int], None]"


def unique_tensors(tree: Tree) -> dict[object, Tensor]:
    """Return the tensors of a tree, tied ones once."""
    found = [place.tensor for place in survey(tree)]
    return {id(tensor) if tensor.identity is None else tensor.identity: tensor for tensor in found}


def tree_nbytes(tree: Tree) -> int:
    """Return the canonical bytes of the tensors of a tree, tied ones once."""
    return sum(tensor.nbytes for tensor in unique_tensors(tree).values())


class Passes:
    """One count of bytes over several passes: writing, and for verification the target and the source.

    Parameters
    ----------
    tell : callable or None
        Called with bytes done and bytes in all.
    tree : Tree
        What is written.
    count : int
        How many passes there are.
    """

    def __init__(self, tell: Progress | None, tree: Tree, count: int) -> None:
        self._tell = tell
        self._nbytes = 0 if tell is None else tree_nbytes(tree)
        self._count = count
        self._begun = 0

    def next(self) -> Progress | None:
        """Return the callback of the next pass, which counts from 0 to the bytes of the tree."""
        tell, nbytes, total = self._tell, self._nbytes, self._nbytes * self._count
        if tell is None:
            return None
        base, self._begun = self._begun, self._begun + nbytes
        return lambda done, _total: tell(base + min(done, nbytes), total)


def counted(tree: Tree, progress: Progress) -> Tree:
    """Return a copy of a tree that tells how many bytes were taken from its tensors."""
    counter = _Counter(progress)

    def counting(tensor: Tensor) -> Tensor:
        return Tensor(
            tensor.dtype,
            tensor.shape,
            _CountedSource(tensor.source, counter),
            tag=tensor.tag,
            identity=tensor.identity,
            digest=tensor.digest,
        )

    return replaced(tree, counting)


class _Counter:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(self._done, 0)


class _CountedSource:
    """A source that counts the bytes it hands out."""

    __slots__ = ("_counter", "_source")

    def __init__(self, source: Source, counter: _Counter) -> None:
        self._source = source
        self._counter = counter

    def view(self, start: int, stop: int) -> memoryview | None:
        data = self._source.view(start, stop)
        if data is not None:
            self._counter.add(stop - start)
        return data

    def readinto(self, start: int, out: memoryview) -> None:
        self._source.readinto(start, out)
        self._counter.add(len(out))
