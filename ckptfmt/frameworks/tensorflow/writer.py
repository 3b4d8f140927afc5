"""Writes a tree as a checkpoint that TensorFlow restores, whose bytes depend on nothing but the tree.

Needs no TensorFlow. What `emit` says is written as a V2 bundle. The ``checkpoint`` file of the directory,
which tells TensorFlow the newest of several, is not touched: give the prefix to ``restore``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckptfmt.containers.bundle.writer import write_bundle
from ckptfmt.frameworks.tensorflow.emit import emit
from ckptfmt.frameworks.tensorflow.prefixes import INDEX

if TYPE_CHECKING:
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["write"]


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    shard_size: int | None = None,
) -> tuple[Finding, ...]:
    """Write a tree as a bundle: ``<prefix>.index`` and ``<prefix>.data-?????-of-?????``.

    A flat mapping is written by name, for ``tf.compat.v1.train.Saver``, ``tf.train.load_checkpoint`` and
    ``Checkpoint.read``; the tree of an object-based checkpoint as that checkpoint; any other tree with an
    object graph of its own, for ``tf.train.Checkpoint(**objects).restore``.

    Parameters
    ----------
    tree : Tree
    target : str or os.PathLike
        The prefix, or the path of the index.
    overwrite : bool
        Whether a bundle of that prefix is replaced.
    shard_size : int, optional
        Bytes at which a file of data is closed; one file by default. One tensor is never split.

    Returns
    -------
    tuple of Finding
        ``stored-raw`` for types that TensorFlow does not have, ``structure-note`` and ``tie-noted`` for what
        only our reader brings back.

    Raises
    ------
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, NoSpaceError, StorageError
        It could not be written; the target is as it was.
    """
    emission = emit(tree)
    prefix = os.fspath(target).removesuffix(INDEX)
    write_bundle(prefix, emission.items, overwrite=overwrite, shard_size=shard_size)
    return emission.findings
