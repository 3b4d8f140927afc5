"""Names of the files that ranks of ChainerMN write, and which of them make up one checkpoint.

``chainermn/extensions/checkpoint.py`` writes ``<name>.<rank>.<iteration>``, every rank its own.
``chainermn/extensions/_multi_node_snapshot.py`` appends ``.<rank>`` to a snapshot's name, and only the least
rank of each set of replicas writes. Nothing here opens a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, MissingFileError
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["RankFile", "RankSet", "chosen_set", "leftovers", "rank_files"]

_CHECKPOINTER = re.compile(r"([^.]+)\.([0-9]{1,9})\.([0-9]{1,15})")
_SNAPSHOT = re.compile(r"(.*?[^0-9])([0-9]{1,15})\.([0-9]{1,9})")
_LEFTOVER = re.compile(r"\.?tmp[-_.]?")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file of one rank.

    Attributes
    ----------
    file : str
        Its name.
    run : str
        What the names of all ranks and iterations begin with.
    rank, iteration : int
    every : bool
        Whether every rank writes such a file; else one of each set of replicas does.
    """

    file: str
    run: str
    rank: int
    iteration: int
    every: bool


@dataclass(frozen=True, slots=True)
class RankSet:
    """The files of one checkpoint.

    Attributes
    ----------
    run : str
    iteration : int
    files : dict of int to str
        By rank, in its order.
    findings : tuple of Finding
        What else is there, and what is not.
    """

    run: str
    iteration: int
    files: dict[int, str]
    findings: tuple[Finding, ...]


def rank_files(names: Iterable[str], recorded: Callable[[str], int | None]) -> list[RankFile]:
    """Return what names say, without those that say nothing.

    Parameters
    ----------
    names : iterable of str
    recorded : callable
        The iteration that a file records. It is asked for one file of each run whose name can be taken
        either way, as ``model.5.0``.
    """
    found: list[RankFile] = []
    turned: dict[str, bool] = {}
    for name in sorted(names):
        three, two = _CHECKPOINTER.fullmatch(name), _SNAPSHOT.fullmatch(name)
        if _LEFTOVER.match(name) or not (three or two):
            continue
        if three:
            run, first, second = three[1], int(three[2]), int(three[3])
            if run not in turned:
                turned[run] = first != second and recorded(name) == first
            if not turned[run]:
                found.append(RankFile(name, run, first, second, every=True))
                continue
        if two:
            found.append(RankFile(name, two[1], int(two[3]), int(two[2]), every=False))
    return found


def leftovers(names: Iterable[str]) -> tuple[Finding, ...]:
    """Return a finding for files that a writer began and never finished."""
    found = sorted(name for name in names if _LEFTOVER.match(name))
    if not found:
        return ()
    message = f"begun and never finished, and not read: {_listed(found)}"
    return (Finding("leftover", "", Severity.INFO, message, file=found[0]),)


def chosen_set(files: Sequence[RankFile], given: str | None, *, file: str) -> RankSet:
    """Return the files of one checkpoint: the newest that is complete, or the one that a file belongs to.

    Parameters
    ----------
    files : sequence of RankFile
    given : str, optional
        The name of a file of it.
    file : str
        What to call the directory in errors.

    Raises
    ------
    FormatError
        There is none, or there are several runs.
    MissingFileError
        None is complete, or the one that was given is not; the message names the missing ranks.
    """
    member = next((known for known in files if known.file == given), None)
    if given is not None and member is None:
        raise FormatError(f"{given!r} is not named as ChainerMN names a rank's file", file=file)
    runs = sorted(
        {(known.run, known.every) for known in files} if member is None else {(member.run, member.every)}
    )
    if not runs:
        raise FormatError("no file is named as ChainerMN names a rank's", file=file)
    if len(runs) > 1:
        shown = _listed([run for run, _ in runs])
        raise FormatError(f"files of several runs, {shown}: give one of their files", file=file)
    own = [known for known in files if (known.run, known.every) == runs[0]]
    sets = _by_iteration(own, file)
    wanted = _wanted(own)
    missing = {iteration: sorted(wanted - set(found)) for iteration, found in sets.items()}
    iteration = _newest(missing, file) if member is None else member.iteration
    if missing[iteration]:
        raise _incomplete(iteration, missing[iteration], file)
    findings = (*_told_others(missing, iteration), *_told_gaps(sets[iteration]))
    return RankSet(runs[0][0], iteration, dict(sorted(sets[iteration].items())), findings)


def _by_iteration(files: Sequence[RankFile], file: str) -> dict[int, dict[int, str]]:
    sets: dict[int, dict[int, str]] = {}
    for known in files:
        other = sets.setdefault(known.iteration, {}).setdefault(known.rank, known.file)
        if other != known.file:
            raise FormatError(f"{other!r} and {known.file!r} are of one rank and iteration", file=file)
    return sets


def _wanted(files: Sequence[RankFile]) -> set[int]:
    """Return the ranks that a complete set has: 0 to the greatest, or those that ever wrote and 0."""
    ranks = {known.rank for known in files}
    greatest = max(ranks)
    if files[0].every and greatest < 2 * len(ranks) + 1024:  # else a stray name would ask for millions
        return set(range(greatest + 1))
    return ranks | {0}


def _newest(missing: dict[int, list[int]], file: str) -> int:
    complete = [iteration for iteration, ranks in missing.items() if not ranks]
    if complete:
        return max(complete)
    newest = max(missing)
    raise _incomplete(newest, missing[newest], file)


def _incomplete(iteration: int, ranks: list[int], file: str) -> MissingFileError:
    message = f"of iteration {iteration} the files of these ranks are missing: {_listed(map(str, ranks))}"
    return MissingFileError(message, file=file)


def _told_others(missing: dict[int, list[int]], taken: int) -> tuple[Finding, ...]:
    others = sorted(iteration for iteration in missing if iteration != taken)
    if not others:
        return ()
    shown = _listed(
        f"{iteration} (without rank {_listed(map(str, missing[iteration]))})"
        if missing[iteration]
        else f"{iteration}"
        for iteration in others
    )
    message = f"iteration {taken} is read; others are there: {shown}"
    return (Finding("other-iteration", "", Severity.INFO, message),)


def _told_gaps(files: dict[int, str]) -> tuple[Finding, ...]:
    absent = sorted(set(range(min(max(files), 1 << 20))) - set(files))
    if not absent:
        return ()
    shown = _listed(map(str, absent))
    message = f"no file of these ranks: {shown}; they were replicas of lower ones, or are missing"
    return (Finding("rank-absent", "", Severity.PROBLEM, message),)


def _listed(items: Iterable[str]) -> str:
    known = list(items)
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more
