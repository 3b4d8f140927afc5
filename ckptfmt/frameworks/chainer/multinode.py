"""The files of several ranks of ChainerMN as one checkpoint.

What all ranks hold alike stands once under ``shared``; what differs, such as the order of a rank's iterator
or its batch statistics, under ``ranks``. Large arrays count as alike if their names, types, shapes, lengths
and CRC-32 are: the directories of the archives tell, no data is read. Arrays that should be alike and are
not stay per rank, with a finding.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.noted.note import NOTE
from ckptfmt.errors import FormatError, TreeError
from ckptfmt.frameworks.chainer.hierarchy import nested
from ckptfmt.frameworks.chainer.members import MARK, equal
from ckptfmt.frameworks.chainer.npz import ChainerNpz, step_of
from ckptfmt.frameworks.chainer.ranks import chosen_set, leftovers, rank_files
from ckptfmt.storage.directory import Directory
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from ckptfmt.containers.noted.entries import Entry
    from ckptfmt.frameworks.chainer.ranks import RankSet
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["of_rank", "read"]

_SMALL = 4096
_REPLICATED = ("updater/model:", "updater/optimizer:")
_STATISTICS = frozenset({"avg_mean", "avg_var", "avg_projection", "N"})
_SHOWN = 3


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open the files of all ranks of one iteration.

    Parameters
    ----------
    path : str or os.PathLike
        A directory, of which the newest complete iteration is read, or any file of a set.

    Returns
    -------
    Checkpoint
        ``{"shared": ..., "ranks": {0: ..., 1: ...}}``; each part nested by ``/``.

    Raises
    ------
    MissingFileError
        Files of ranks are missing; the message names them.
    FormatError, TruncatedError, LimitError, UnsupportedVersionError
        There is no such set, ranks are of different iterations, or a file is malformed or hostile.
    NotFoundError, StorageError
        Something cannot be opened.
    """
    where = Path(path)
    given = None if where.is_dir() else where.name
    if given is not None:
        FileReader(where).close()  # tells whether there is such a file
    with ExitStack() as stack:
        place = stack.enter_context(Directory(where if given is None else where.parent))
        names = place.names()
        files = rank_files(names, lambda name: _recorded(place, name))
        found = chosen_set(files, given, file=place.path)
        opened = {
            rank: ChainerNpz(stack.enter_context(place.reader(name))) for rank, name in found.files.items()
        }
        tree, findings = _joined(opened)
        findings = (*found.findings, *leftovers(names), *_checked_steps(opened, found), *findings)
        closing = stack.pop_all()
    return Checkpoint(tree, format="chainermn", findings=findings, step=found.iteration, close=closing.close)


def of_rank(tree: Tree, rank: int) -> Tree:
    """Return the snapshot of one rank out of the tree of all, as ``chainer-npz`` writes it.

    Raises
    ------
    TreeError
        It is no such tree, or has no such rank.
    """
    ranks = tree.get("ranks") if isinstance(tree, dict) else None
    own = ranks.get(rank) if isinstance(ranks, dict) else None
    if not isinstance(tree, dict) or "shared" not in tree or own is None:
        raise TreeError(f"this is not the tree of several ranks, or rank {rank} is not among them")
    return _merged(tree["shared"], own)


def _merged(one: Tree, two: Tree) -> Tree:
    """Return the mappings of two trees as one; a leaf is in one of them only."""
    if not isinstance(one, dict) or not isinstance(two, dict):
        raise TreeError("the tree of several ranks holds something twice")
    both = {**one, **two}
    return {key: _merged(one[key], two[key]) if key in one and key in two else both[key] for key in both}


def _recorded(place: Directory, name: str) -> int | None:
    """Return the iteration that a file records, None if it is no snapshot that can be read."""
    try:
        with place.reader(name) as reader:
            return step_of(ChainerNpz(reader).entries)
    except (FormatError, OSError):
        return None


def _checked_steps(opened: Mapping[int, ChainerNpz], found: RankSet) -> tuple[Finding, ...]:
    """Raise unless all ranks are of one iteration; tell if their names say another."""
    steps = {rank: step_of(file.entries) for rank, file in opened.items()}
    kinds = sorted({step for step in steps.values() if step is not None})
    if len(kinds) > 1:
        shown = [f"rank {rank} of {step}" for rank, step in steps.items()]
        raise FormatError(f"ranks are of different iterations: {', '.join(shown[:16])}", file=found.files[0])
    if not kinds or kinds[0] == found.iteration:
        return ()
    message = f"by its names this is iteration {found.iteration}; it records {kinds[0]}"
    return (Finding("iteration-name", "", Severity.PROBLEM, message),)


def _joined(opened: Mapping[int, ChainerNpz]) -> tuple[Tree, tuple[Finding, ...]]:
    entries = {
        rank: {entry.name: entry for entry in file.entries if entry.name not in (NOTE, MARK)}
        for rank, file in opened.items()
    }
    names = list(dict.fromkeys(name for held in entries.values() for name in held))
    first = next(iter(entries))
    alike = {name for name in names if _alike(name, entries, opened)}
    shared = {name: entry.node for name, entry in entries[first].items() if name in alike}
    ranks: dict[Key, Tree] = {
        rank: nested({name: entry.node for name, entry in held.items() if name not in alike})
        for rank, held in entries.items()
    }
    crcs = next((finding for file in opened.values() for finding in file.archive.findings()), None)
    told = tuple(_told([name for name in names if name not in alike], entries))
    return {"shared": nested(shared), "ranks": ranks}, (*([crcs] if crcs else []), *told)


def _alike(name: str, entries: Mapping[int, Mapping[str, Entry]], opened: Mapping[int, ChainerNpz]) -> bool:
    """Whether every rank holds the same array under a name."""
    if not all(name in held for held in entries.values()):
        return False
    (rank, held), *others = entries.items()
    size, _, unverifiable = own = opened[rank].print_of(name)
    for other, theirs in others:
        one, two = held[name], theirs[name]
        if (one.kind, one.shape) != (two.kind, two.shape) or opened[other].print_of(name) != own:
            return False
        if (size <= _SMALL or unverifiable) and not equal(one.node, two.node):
            return False
    return True


def _told(names: list[str], entries: Mapping[int, Mapping[str, Entry]]) -> Iterator[Finding]:
    """Tell of what data-parallel ranks would hold alike."""
    replicated = [name for name in names if name.startswith(_REPLICATED)]
    partial = [name for name in replicated if not all(name in held for held in entries.values())]
    both = [name for name in replicated if name not in set(partial)]
    statistics = [name for name in both if name.rpartition("/")[2] in _STATISTICS]
    differ = [name for name in both if name.rpartition("/")[2] not in _STATISTICS]
    rows = (
        ("per-rank", Severity.INFO, statistics, "statistics that each rank has its own of"),
        ("only-some-ranks", Severity.INFO, partial, "arrays that only some ranks hold"),
        (
            "ranks-differ",
            Severity.PROBLEM,
            differ,
            "arrays of models and optimizers that differ between ranks",
        ),
    )
    for kind, severity, found, what in rows:
        if found:
            more = " and more" if len(found) > _SHOWN else ""
            yield Finding(kind, found[0], severity, f"{len(found)} {what}: {', '.join(found[:_SHOWN])}{more}")
