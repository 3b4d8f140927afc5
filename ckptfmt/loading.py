"""Load our checkpoints: lazily, verified when bytes are handed out, a box at a time or into given arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ckptfmt.errors import OptionError, TreeError
from ckptfmt.format.manifest import ordinal_of
from ckptfmt.parallel.opened import OpenedCheckpoint, open_checkpoint
from ckptfmt.parallel.pipeline import thread_count
from ckptfmt.parallel.rowsource import RowSource
from ckptfmt.parallel.verifying import problems
from ckptfmt.registry import adapt
from ckptfmt.storage.places import place_of
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Opaque, Strings
from ckptfmt.tree.options import globs
from ckptfmt.tree.paths import display, glob_matcher
from ckptfmt.tree.source import ArraySource
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import children, node_at, replaced, select, tensors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = ["Verify", "checkpoint_of", "load"]

Verify: TypeAlias = Literal["access", "full", "none"]


def load(
    path: str | os.PathLike[str],
    *,
    verify: Verify = "access",
    copy: bool | None = None,
    want: str | Sequence[str] | None = None,
    into: object = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Checkpoint:
    """Open a checkpoint; its tensors are read when they are asked for.

    Parameters
    ----------
    path : str or os.PathLike
        The directory of a checkpoint of our own format (`read` takes files of any format).
    verify : {"access", "full", "none"}
        When bytes are compared with their digests: as they are handed out, all now, or never; "none" is
        told by a finding. With "full", bytes that are copied or decoded later are compared then, too.
    copy : bool, optional
        Whether bytes are read into memory and verified there, rather than mapped from the file, which
        is faster and as good as the file stays. By default only on network file systems.
    want : str or sequence of str, optional
        Globs of displayed paths, or one; the rest is left out of the tree.
    into : object, optional
        Nested dicts and lists of writable numpy arrays, of the shape of the tree or part of it: each is
        filled with the tensor at its path, and takes its place in the result (of arrays for tied tensors, the
        last takes the place of all). PyTorch's tensors are filled where they share their memory with numpy.
        Nothing is cast or broadcast, and nothing is filled unless all fit; plain values are left alone.
    threads : int, optional
        For ``verify="full"``.
    progress : callable, optional
        Called with bytes done and bytes in all.

    Returns
    -------
    Checkpoint
        A context manager; arrays taken from it outlive it. They are writable; what is written to one never
        reaches the file, but shows in what is read of the same checkpoint afterwards where bytes are mapped.

    Raises
    ------
    MissingFileError, FormatError
        It is no checkpoint, or breaks a rule of its format; `rule` names it.
    ReplacedError
        One of its files belongs to another checkpoint.
    ChecksumError
        With ``verify="full"``: the first damage; `check` finds all. Else when the bytes are asked for.
    TreeError
        `into` does not fit.
    OptionError
        `verify` is none of the three, `want` no globs, or `threads` no number of threads.
    StorageError
        It is not there, or cannot be read.
    """
    if verify not in ("access", "full", "none"):
        raise OptionError(f'verify must be "access", "full" or "none", not {verify!r}')
    wanted = None if want is None else globs("want", want)
    workers = thread_count(threads)
    mapped = not (place_of(path).network if copy is None else copy)
    opened = open_checkpoint(path, mapped=mapped)
    try:
        with collector_paused():
            checkpoint = checkpoint_of(opened, verify)
        if verify == "full":
            for problem in problems(opened, threads=workers, progress=progress):
                raise problem
        if wanted is not None:
            checkpoint.tree = _wanted(checkpoint.tree, wanted)
        if into is not None:
            checkpoint.tree = _fill(checkpoint.tree, into)
    except BaseException:
        opened.close()
        raise
    return checkpoint


def checkpoint_of(opened: OpenedCheckpoint, verify: Verify) -> Checkpoint:
    """Return the checkpoint over opened files, which it closes."""
    manifest = opened.manifest
    each = {True: verify == "access", False: verify != "none"}  # what was verified need not be what is copied
    sources = [
        RowSource(opened, row, verify=each[opened.mapped and row.codec == "raw"]) for row in manifest.rows
    ]
    for place in manifest.places:
        place.tensor.source = sources[ordinal_of(place.tensor)]
    findings: tuple[Finding, ...] = ()
    if verify == "none":
        findings = (Finding("unverified", "", Severity.INFO, "digests were not compared"),)
    return Checkpoint(
        manifest.tree,
        format="ckptfmt",
        findings=findings,
        step=manifest.step,
        root=manifest.root,
        bag=manifest.bag,
        close=opened.close,
    )


def _wanted(tree: Tree, patterns: Sequence[str]) -> Tree:
    matches = glob_matcher(patterns)
    return select(tree, lambda path, _: matches(display(path)))


def _targets(node: Tree, path: Path) -> Iterator[tuple[Path, Tensor]]:
    """Yield the arrays to fill; plain values are left alone, and what only looks like an array is refused."""
    if isinstance(node, Tensor):
        yield path, node
    elif isinstance(node, Composite | Strings) or (isinstance(node, Opaque) and any(tensors(node))):
        raise TreeError(f"what is given at {display(path)} is no plain array and cannot be filled in place")
    elif isinstance(node, dict | list | tuple):
        for key, child in children(node):
            yield from _targets(child, (*path, key))


def _fill(tree: Tree, into: object) -> Tree:
    """Fill the arrays of `into` and return the tree with them in the places of its tensors."""
    targets, _ = as_tree(into, adapt=adapt)
    filled: dict[int, Tensor] = {}
    pairs: list[tuple[Tensor, Tensor, np.ndarray]] = []
    for path, target in _targets(targets, ()):
        tensor = node_at(tree, path)
        if not isinstance(tensor, Tensor) or not isinstance(target.source, ArraySource):
            raise TreeError(f"there is no tensor at {display(path)} to fill the given array from")
        try:
            tensor.check_fits(target.source.array)
        except TreeError as error:
            raise TreeError(f"{error} at {display(path)}") from None
        pairs.append((tensor, target, target.source.array))
    for tensor, target, array in pairs:  # nothing is touched before everything fits
        tensor.into(array)
        filled[id(tensor)] = target
    return replaced(tree, lambda tensor: filled.get(id(tensor), tensor))
