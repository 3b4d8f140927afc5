"""What killed writers left: finding it, naming it, and, only when asked, putting it right.

`leftovers` and `locate` change nothing. `recover` restores what a two-step overwrite had moved aside, and
removes the rest; it touches only what bears our names and our record, and only when the writer is known to
be gone. Whether a checkpoint's bytes are good is not asked here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ckptfmt.errors import NotFoundError, StorageError
from ckptfmt.storage.claim import split_target
from ckptfmt.storage.directory import Directory
from ckptfmt.storage.failures import doing
from ckptfmt.storage.owner import owner_state, parse_name, read_owner
from ckptfmt.storage.removal import COMMIT_RECORD, entry_size, is_checkpoint, remove_entry
from ckptfmt.storage.system import System

if TYPE_CHECKING:
    from ckptfmt.storage.owner import Names, Owner, State

__all__ = ["Action", "Leftover", "leftovers", "locate", "recover"]

_KINDS: dict[str, Literal["staging", "set-aside", "owner-record"]] = {
    "": "staging",
    ".old": "set-aside",
    ".owner": "owner-record",
}
_MAX_RECORD = 1 << 16


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something beside a target that a writer made and has not removed, or not yet.

    Parameters
    ----------
    kind : {"staging", "set-aside", "owner-record"}
        The new in the making (or the old after an exchange); the old during a two-step overwrite; a record
        with nothing else left.
    path : str
    target : str
        The path that was to be written.
    size : int
        In bytes.
    owner : Owner or None
        Who made it; None where there is no readable record.
    state : {"running", "gone", "other-host", "unknown"}
        Whether its maker still runs.
    complete : bool
        Whether it is a directory with a commit record.
    """

    kind: Literal["staging", "set-aside", "owner-record"]
    path: str
    target: str
    size: int
    owner: Owner | None
    state: State
    complete: bool


@dataclass(frozen=True, slots=True)
class Action:
    """What `recover` did, or with `dry_run` would do, with one left-over.

    Parameters
    ----------
    kind : {"restored", "removed", "kept"}
    path : str
        The left-over.
    target : str
        The path that was to be written.
    reason : str
        Why, in words.
    """

    kind: Literal["restored", "removed", "kept"]
    path: str
    target: str
    reason: str


def leftovers(directory: str | os.PathLike[str], *, target: str | None = None) -> list[Leftover]:
    """Return what writers left in a directory, or are making there now, sorted by target and path.

    Parameters
    ----------
    directory : str or os.PathLike
        The directory that holds checkpoints.
    target : str, optional
        Only what belongs to the entry of this name.

    Raises
    ------
    NotFoundError, StorageError
        There is no such directory, or it cannot be read.
    """
    with Directory(directory) as place, doing("could not list", file=place.path):
        found = [(name, parse_name(name)) for name in place.names()]
        ours = [(name, *parsed) for name, parsed in found if parsed and target in {None, parsed[0].target}]
        busy = {names.token for _, names, suffix in ours if suffix != ".owner"}
        listed = [row for row in ours if row[2] != ".owner" or row[1].token not in busy]
        result = [_leftover(place, name, names, suffix) for name, names, suffix in listed]
    return sorted(result, key=lambda leftover: (leftover.target, leftover.path))


def _leftover(place: Directory, name: str, names: Names, suffix: str) -> Leftover:
    owner = _read_record(place, names.owner)
    return Leftover(
        kind=_KINDS[suffix],
        path=place.joined(name),
        target=place.joined(names.target),
        size=_size(place, name),
        owner=owner,
        state=owner_state(owner),
        complete=is_checkpoint(place, name, record=owner.record if owner else COMMIT_RECORD),
    )


def _size(place: Directory, name: str) -> int:
    try:
        return entry_size(place, name)
    except (OSError, StorageError):  # being removed at this moment, or not ours to read
        return 0


def _read_record(place: Directory, name: str) -> Owner | None:
    try:
        with place.reader(name, mapped=False) as reader:
            return read_owner(reader.read(0, reader.size)) if reader.size <= _MAX_RECORD else None
    except (StorageError, ValueError):
        return None


def locate(path: str | os.PathLike[str]) -> Directory:
    """Open the checkpoint directory at `path`; close it after use.

    Raises
    ------
    NotFoundError
        It is not there. The message names `ckptfmt recover` where a two-step overwrite that was cut short
        has left the old checkpoint under another name.
    StorageError
        It is no directory, or cannot be opened.
    """
    try:
        return Directory(path)
    except NotFoundError as error:
        aside = _set_aside(path)
        if aside is None:
            raise
        message = _set_aside_message(aside)
        raise NotFoundError(message, file=os.fspath(path), errno=error.errno) from error


def _set_aside(path: str | os.PathLike[str]) -> Leftover | None:
    try:
        parent, name = split_target(path)
        found = leftovers(parent, target=name)
    except StorageError:
        return None
    return _newest([leftover for leftover in found if leftover.kind == "set-aside" and leftover.complete])


def _newest(found: list[Leftover]) -> Leftover | None:
    return max(found, key=lambda one: one.owner.time_ns if one.owner else 0, default=None)


def _set_aside_message(aside: Leftover) -> str:
    where = f"no such directory, but an overwrite has moved the old checkpoint to {aside.path}"
    if aside.state == "running":
        return f"{where} and is still at work: try again"
    return f"{where} and did not finish: run `ckptfmt recover {aside.target}`"


def recover(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    dry_run: bool = False,
    system: System | None = None,
) -> list[Action]:
    """Put right what killed writers left: restore an old checkpoint that was moved aside, remove the rest.

    Parameters
    ----------
    path : str or os.PathLike
        A checkpoint (there or not): only what was left beside it. Any other directory: all that was left in
        it.
    force : bool
        Also where the writer may still run: on another machine, or without a readable record. A writer that
        is known to run is never disturbed.
    dry_run : bool
        Change nothing, only say what would be done.
    system : System, optional

    Returns
    -------
    list of Action
        One for each left-over.

    Raises
    ------
    NotFoundError
        There is neither such a path nor anything left by a writer of it.
    StorageError
        Something could not be restored or removed; run again after mending the cause.
    """
    directory, target = _scope(path)
    found = leftovers(directory, target=target)
    if not found and target is not None and not os.path.lexists(path):
        message = "no such checkpoint, and nothing is left of a writer of it"
        raise NotFoundError(message, file=os.fspath(path))
    system = System() if system is None else system
    with Directory(directory, descriptors=system.descriptors) as place:
        restored = [one for one in _to_restore(place, found) if _refusal(one, force=force) is None]
        rest = [one for one in found if one not in restored]
        whole = {one.target for one in restored} | {one.target for one in found if _is_there(place, one)}
        if not dry_run:
            for one in restored:
                _restore(system, place, one)
        return [
            *(Action("restored", one.path, one.target, _WHY_RESTORED) for one in restored),
            *(_settle(system, place, one, whole, force=force, dry_run=dry_run) for one in rest),
        ]


def _is_there(place: Directory, one: Leftover) -> bool:
    return place.status(Path(one.target).name) is not None


def _scope(path: str | os.PathLike[str]) -> tuple[str, str | None]:
    """Return the directory to look in, and the name of the only target if it is about one."""
    if Path(path).is_dir() and not os.path.lexists(Path(path, COMMIT_RECORD)):
        return os.fspath(path), None
    return split_target(path)


def _to_restore(place: Directory, found: list[Leftover]) -> list[Leftover]:
    """Return, of each target that is missing, the newest complete checkpoint that was moved aside."""
    candidates: dict[str, list[Leftover]] = {}
    for one in found:
        if one.kind == "set-aside" and one.complete and not _is_there(place, one):
            candidates.setdefault(one.target, []).append(one)
    newest = [_newest(group) for group in candidates.values()]
    return [one for one in newest if one is not None]


def _settle(
    system: System, place: Directory, one: Leftover, whole: set[str], *, force: bool, dry_run: bool
) -> Action:
    """Remove what need not be restored, or say why it is kept. `whole` has the targets that are there."""
    refusal = _refusal(one, force=force)
    if refusal is None and one.kind == "set-aside" and one.target not in whole and not force:
        refusal = "there is nothing at its target: look at it yourself (or see --force)"
    if refusal is not None:
        return Action("kept", one.path, one.target, refusal)
    if not dry_run:
        _remove(system, place, one)
    return Action("removed", one.path, one.target, _WHY_REMOVED[one.kind])


_WHY_RESTORED = "an overwrite was cut short before the new was in place"
_WHY_REMOVED = {
    "staging": "its writer is gone and had not put it in place, or had already replaced it",
    "set-aside": "it was replaced by what is at the target",
    "owner-record": "its writer left nothing else",
}


def _refusal(one: Leftover, *, force: bool) -> str | None:
    if one.state == "running":
        pid = one.owner.pid if one.owner else 0
        return f"its writer (process {pid}) is still running"
    if one.state == "gone" or force:
        return None
    if one.kind == "owner-record" and one.owner is None and one.size <= _MAX_RECORD:
        return None  # cut short in the making, before there was anything to lose
    if one.state == "other-host" and one.owner is not None:
        return f"its writer ran on {one.owner.host}: whether it still does cannot be told here (see --force)"
    return "it has no record of a writer that could be looked for here (see --force)"


def _restore(system: System, place: Directory, one: Leftover) -> None:
    with doing("could not restore the old checkpoint", file=one.path):
        system.rename(place, Path(one.path).name, Path(one.target).name)
        system.sync_directory(place)
    _release(system, place, one)


def _remove(system: System, place: Directory, one: Leftover) -> None:
    with doing("could not remove", file=one.path):
        first = one.owner.record if one.owner else COMMIT_RECORD
        remove_entry(system, place, Path(one.path).name, first=first)
    _release(system, place, one)


def _release(system: System, place: Directory, one: Leftover) -> None:
    """Remove the owner record when nothing else of its writer is left."""
    parsed = parse_name(Path(one.path).name)
    if parsed is None:
        return
    names = parsed[0]
    if place.status(names.staging) is None and place.status(names.aside) is None:
        with doing("could not remove", file=place.joined(names.owner)):
            remove_entry(system, place, names.owner)
