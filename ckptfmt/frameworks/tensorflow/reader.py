"""Reads TensorFlow's checkpoints: bundles by name, and those of TensorFlow 2 by their object graph.

Without a graph the tree is a mapping of names as they stand, slots of optimizers among them. With one it is
what `objects` says. A structure note of ours goes before both. No tensor is read to open a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.bundle.kinds import NAMES, number_of
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, decode_note
from ckptfmt.errors import FormatError
from ckptfmt.frameworks.tensorflow.graph import GRAPH_KEY
from ckptfmt.frameworks.tensorflow.nodes import COUNTER_KEY
from ckptfmt.frameworks.tensorflow.objects import object_tree
from ckptfmt.frameworks.tensorflow.prefixes import prefix_of
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    import os

    from ckptfmt.containers.bundle.reader import Bundle
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["STEP", "read", "step_of"]

STEP = "global_step"
"""The variable in which TensorFlow 1 counts steps."""


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a TensorFlow checkpoint (a V2 bundle).

    Parameters
    ----------
    path : str or os.PathLike
        A prefix such as ``d/ckpt-1``, any file of the bundle, a directory whose ``checkpoint`` file tells the
        newest, or a SavedModel.

    Returns
    -------
    Checkpoint
        Variables by name, or the tree of an object graph; strings and variants are read at once. The step is
        that of ``global_step`` where there is one.

    Raises
    ------
    MissingFileError
        An index, or a file of data, is not there.
    FormatError, TruncatedError, ChecksumError, LimitError, UnsupportedVersionError
        The files are malformed or hostile. A tensor that is not what was written is told when it is read.
    NotFoundError, StorageError
        Something cannot be opened.
    """
    bundle = read_bundle(prefix_of(path))
    try:
        tree, findings = _tree(bundle)
        step = step_of(tree)
    except BaseException:
        bundle.close()
        raise
    stored = sum(Path(name).stat().st_size for name in bundle.files)
    return Checkpoint(
        tree, format="tensorflow", findings=findings, step=step, stored=stored, close=bundle.close
    )


def _tree(bundle: Bundle) -> tuple[Tree, tuple[Finding, ...]]:
    values: dict[Key, Tree] = {name: entry.node for name, entry in bundle.entries.items()}
    index = bundle.files[0]
    note, graph = _text(values.get(NOTE)), _text(values.get(GRAPH_KEY))
    findings: tuple[Finding, ...] = ()
    if note is not None:
        try:
            return _noted(note, bundle), ()
        except FormatError as error:
            message = f"the structure note is ignored: {error.message}"
            findings = (Finding("note-mismatch", "", Severity.LOSS, message, file=index),)
        del values[NOTE]
    if graph is None:
        return values, findings
    del values[GRAPH_KEY]
    try:
        tree, told = object_tree(graph, {str(key): _tieable(node) for key, node in values.items()})
    except FormatError as error:
        raise error.located(file=index, tensor=GRAPH_KEY) from None
    return tree, (*findings, *told)


def _tieable(node: Tree) -> Tree:
    """Return a tensor that is known for the same wherever it stands; its paths are many."""
    if not isinstance(node, Tensor) or 0 in node.shape:
        return node
    return Tensor(node.dtype, node.shape, node.source, tag=node.tag, identity=("entry", id(node.source)))


def _text(node: Tree) -> bytes | None:
    """Return the bytes of a scalar string."""
    if not isinstance(node, Strings) or node.shape != ():
        return None
    value = node.values[0]
    return value if isinstance(value, bytes) else None


def _noted(note: bytes, bundle: Bundle) -> Tree:
    """Return the tree of a note, which is bound to all tensors; strings and variants it holds itself.

    The counter of saves may have been added by the writer: then the note does not know it.
    """
    entries = {
        entry.name: Entry(entry.name, NAMES[number_of(entry.node.dtype) or 0], entry.shape, entry.node)
        for entry in bundle.entries.values()
        if isinstance(entry.node, Tensor)
    }
    try:
        return decode_note(note, list(entries.values()))
    except FormatError:
        if entries.pop(COUNTER_KEY, None) is None:
            raise
    return decode_note(note, list(entries.values()))


def step_of(tree: Tree) -> int | None:
    """Return the value of ``global_step`` in a mapping of variables by name, if there is one."""
    node = tree.get(STEP) if isinstance(tree, dict) else None
    if not isinstance(node, Tensor) or node.shape != () or node.dtype.name not in ("i64", "i32"):
        return None
    value = int(node.numpy())
    return value if value >= 0 else None
