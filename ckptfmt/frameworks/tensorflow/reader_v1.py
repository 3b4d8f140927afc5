"""Reads checkpoints as TensorFlow wrote them before its bundles: one table, or a set of them.

They hold variables by name and nothing else: the tree is a mapping of names as they stand. Only read; what is
written is a bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.checkpoint_v1.reader import read_checkpoint_v1
from ckptfmt.frameworks.tensorflow.reader import step_of
from ckptfmt.frameworks.tensorflow.state_file import newest
from ckptfmt.tree.checkpoint import Checkpoint

if TYPE_CHECKING:
    import os

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["read"]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a V1 checkpoint.

    Parameters
    ----------
    path : str or os.PathLike
        The file, one of a set, what the names of a set begin with, or a directory whose ``checkpoint`` file
        tells the newest.

    Raises
    ------
    MissingFileError
        A file of the set is not there.
    FormatError, TruncatedError, ChecksumError, LimitError, UnsupportedVersionError
        The files are malformed or hostile.
    NotFoundError, StorageError
        Something cannot be opened.
    """
    opened = read_checkpoint_v1(newest(path) if Path(path).is_dir() else path)
    try:
        tree: dict[Key, Tree] = {name: entry.node for name, entry in opened.entries.items()}
        step = step_of(tree)
        stored = sum(Path(name).stat().st_size for name in opened.files)
    except BaseException:
        opened.close()
        raise
    return Checkpoint(tree, format="tensorflow-v1", step=step, stored=stored, close=opened.close)
