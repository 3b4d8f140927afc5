"""A checkpoint as every reader returns it: a tree, what was found while reading, and what is still open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.tree.paths import display
from ckptfmt.tree.walk import node_at, tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path
    from ckptfmt.tree.tensor import Tensor

__all__ = ["Checkpoint"]


class Checkpoint:
    """A tree whose tensors may still lie in files; a context manager that closes them.

    Attributes
    ----------
    tree : Tree
        The whole of it.
    format : str
        The registered name of the format it was read from.
    findings : tuple of Finding
        What the reader had to say.
    step : int or None
        The training step, where the checkpoint records one.
    root, bag : bytes or None
        The digests that the checkpoint claims.
    stored : int or None
        Bytes of the files it was read from, where they are not just the file or directory that was named.
    """

    def __init__(  # noqa: PLR0913 - what a reader has to tell
        self,
        tree: Tree,
        *,
        format: str,  # noqa: A002 - the word users know
        findings: tuple[Finding, ...] = (),
        step: int | None = None,
        root: bytes | None = None,
        bag: bytes | None = None,
        stored: int | None = None,
        verify: Callable[[], None] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.tree = tree
        self.format = format
        self.findings = findings
        self.step = step
        self.root = root
        self.bag = bag
        self.stored = stored
        self._verify = verify
        self._close = close

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by its displayed path."""
        return {display(path): tensor for path, tensor in tensors(self.tree)}

    def at(self, path: Path) -> Tree:
        """Return the node at a path of keys.

        Raises
        ------
        TreeError
            There is none.
        """
        return node_at(self.tree, path)

    def __getitem__(self, key: Key) -> Tree:
        return node_at(self.tree, (key,))

    def verify_whole(self) -> bool:
        """Compare checksums that are of whole files, which reading a part of one does not; reads all of it.

        Returns
        -------
        bool
            Whether there were any.

        Raises
        ------
        ChecksumError, StorageError
            One does not match, or the file cannot be read.
        """
        if self._verify is None:
            return False
        self._verify()
        return True

    def close(self) -> None:
        """Release open files. Arrays handed out before keep their bytes."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoint({self.format}, {sum(1 for _ in tensors(self.tree))} tensors)"
