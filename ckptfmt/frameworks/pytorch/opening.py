"""Opening a single file: what every reader of such files does around its own work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["opened"]


def opened(
    path: str | os.PathLike[str],
    name: str,
    tree_of: Callable[[ByteReader], tuple[Tree, tuple[Finding, ...]]],
) -> Checkpoint:
    """Return the checkpoint of a file, which stays open until the checkpoint is closed.

    Parameters
    ----------
    path : str or os.PathLike
    name : str
        The registered name of its format.
    tree_of : callable
        Takes the open file, and returns the tree and what was found; its errors close the file.

    Raises
    ------
    NotFoundError, StorageError
        The file is not there, or cannot be read.
    """
    reader = FileReader(path)
    try:
        with collector_paused():
            tree, findings = tree_of(reader)
    except BaseException:
        reader.close()
        raise
    return Checkpoint(tree, format=name, findings=findings, close=reader.close)
