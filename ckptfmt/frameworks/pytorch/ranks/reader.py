"""Reads a directory with one file of `torch.save` from each rank as one checkpoint of global tensors.

FSDP's sharded state dicts, tensor parallelism, and any other script in which each rank saves its own file.
Needs no PyTorch and executes nothing. Tensors stay in the files of the ranks until they are asked for.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.names import contained_path
from ckptfmt.containers.rank_names import rank_names
from ckptfmt.errors import FormatError, NotFoundError
from ckptfmt.frameworks.pytorch.ranks.joining import RankTree, join_ranks
from ckptfmt.frameworks.pytorch.ranks.shards import rank_of
from ckptfmt.frameworks.pytorch.reader import read_zip
from ckptfmt.storage.pool import open_files
from ckptfmt.storage.reader import open_error
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptfmt.tree.nodes import Tree

__all__ = ["FORMAT", "read", "read_files"]

FORMAT = "torch-ranks"
_WORN = ("torch.distributed.", "torch._utils._rebuild_wrapper_subclass")


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a directory with one file of each rank.

    Parameters
    ----------
    path : str or os.PathLike
        Its PyTorch files have names that differ in the number of the rank only, such as ``model_rank0.pt`` or
        ``shard-0-of-4.pt``. Which rank a file is of is told by its distributed tensors, where it has any.

    Returns
    -------
    Checkpoint
        Distributed tensors are whole. What every rank has is there once; what differs is there for each rank,
        as a composite ``torch.per_rank``.

    Raises
    ------
    MissingFileError
        A tensor is not complete without the file of a rank that is not there.
    FormatError
        A file is damaged or hostile, files are of the same rank, or pieces contradict each other.
    UnsupportedVersionError
        A tensor is kept as partial sums.
    NotFoundError, StorageError
        There are no such files, or they cannot be read.
    """
    directory = Path(path)
    try:
        names = rank_names([entry.name for entry in directory.iterdir()])
    except OSError as error:
        raise open_error(error, os.fspath(path)) from error
    if names is None:
        message = "its PyTorch files are not one of each rank, with names alike but for the rank's number"
        raise NotFoundError(message, file=os.fspath(path))
    paths = {name: contained_path(directory, name, file=os.fspath(path)) for name in names.files.values()}
    ranks = {name: rank for rank, name in names.files.items()}
    return _read(paths, ranks, names.world)


def read_files(paths: Mapping[int, str | os.PathLike[str]]) -> Checkpoint:
    """Open one file of each rank, wherever they lie; as `read` otherwise.

    Parameters
    ----------
    paths : mapping of int to path
        By rank. A file whose distributed tensors tell another rank is taken for that one.
    """
    names = {rank: os.fspath(path) for rank, path in paths.items()}
    if len(set(names.values())) < len(names):
        raise FormatError("a file is given twice")
    return _read({name: Path(name) for name in names.values()}, {n: r for r, n in names.items()}, None)


def _read(paths: Mapping[str, Path], ranks: Mapping[str, int], world: int | None) -> Checkpoint:
    with ExitStack() as stack, collector_paused():
        trees: dict[str, Tree] = {}
        findings: list[Finding] = []
        for name, reader in open_files(paths, stack).items():
            trees[name], found = read_zip(reader)
            findings += found
        files, moved = _by_rank(trees, ranks)
        tree, joined = join_ranks(files, world=world)
        closing = stack.pop_all()
    told = _once([*findings, *moved, *joined])
    return Checkpoint(tree, format=FORMAT, findings=told, close=closing.close)


def _by_rank(trees: Mapping[str, Tree], ranks: Mapping[str, int]) -> tuple[list[RankTree], list[Finding]]:
    """Return the trees by rank: that of their content where there is one."""
    made: dict[int, RankTree] = {}
    findings = []
    for name, tree in trees.items():
        told = rank_of(tree)
        rank = ranks[name] if told is None else told
        if rank in made:
            raise FormatError(f"{made[rank].name!r} and {name!r} are both of rank {rank}", file=name)
        if rank != ranks[name]:
            message = f"its distributed tensors say that it is of rank {rank}"
            findings.append(Finding("rank-by-content", "", Severity.INFO, message, file=name))
        made[rank] = RankTree(rank, name, tree)
    return [made[rank] for rank in sorted(made)], findings


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings without those that several files share, and without classes that are gone."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        worn = finding.kind == "opaque" and finding.message.rpartition(" of ")[2].startswith(_WORN)
        if finding.kind != "local-shard" and not worn:
            kept.setdefault((finding.kind, finding.path, finding.message), finding)
    return tuple(kept.values())
