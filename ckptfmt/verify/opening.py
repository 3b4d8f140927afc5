"""The tree of whatever a user names: a path, an opened checkpoint, or a value in memory."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckptfmt.loading import load
from ckptfmt.registry import adapt, detect, read_foreign
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.tree.nodes import Tree

__all__ = ["tree_of"]


@contextmanager
def tree_of(value: object) -> Iterator[Tree]:
    """Yield a tree; what is opened for it is closed again.

    Parameters
    ----------
    value : str, os.PathLike, Checkpoint or object
        The path of a checkpoint of any format, an opened one, or any value that `save` takes but a str.

    Raises
    ------
    UnknownFormatError, FormatError, StorageError
        The path cannot be read.
    TreeError, LimitError
        The value cannot be kept.
    """
    if isinstance(value, str | os.PathLike):
        name = detect(value).name
        with load(value) if name == "ckptfmt" else read_foreign(value, name) as checkpoint:
            yield checkpoint.tree
    elif isinstance(value, Checkpoint):
        yield value.tree
    else:
        yield as_tree(value, adapt=adapt)[0]
