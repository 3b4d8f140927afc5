"""Removing a staging or old checkpoint directory: flat, by its descriptor, the commit record first.

So what is half removed is never taken for a whole checkpoint. Links are removed, never followed; a directory
inside (which no checkpoint has) is never entered, so the removal then fails and the rest stays.
"""

from __future__ import annotations

import contextlib
import stat
from typing import TYPE_CHECKING, Literal

from ckptfmt.errors import NotFoundError
from ckptfmt.storage.directory import Directory, identity

if TYPE_CHECKING:
    import os

    from ckptfmt.storage.directory import Identity
    from ckptfmt.storage.system import System

__all__ = ["COMMIT_RECORD", "entry_size", "is_checkpoint", "look_at", "remove_entry"]

COMMIT_RECORD = "manifest.json"

Found = Literal["free", "checkpoint", "foreign"]
_LOOKS = 100


def look_at(place: Directory, name: str, *, record: str = COMMIT_RECORD) -> Found:
    """Return what an entry is, as far as overwriting it goes.

    Other writers may rename and remove while we look: only what stood still meanwhile is believed.

    Parameters
    ----------
    place : Directory
    name : str
    record : str
        The name of the commit record.

    Returns
    -------
    {"free", "checkpoint", "foreign"}
        "free": nothing, or an empty directory. "checkpoint": a directory, not a link, flat, with a commit
        record; whether that is valid is not asked, as a damaged checkpoint may be overwritten too.
    """
    found: Found = "foreign"
    for _ in range(_LOOKS):
        before = place.status(name)
        if before is None:
            return "free"
        found = _examine(place, name, record) if stat.S_ISDIR(before.st_mode) else "foreign"
        after = place.status(name)
        if after is not None and _state(after) == _state(before):
            break
    return found


def _state(status: os.stat_result) -> tuple[Identity, int]:
    return identity(status), status.st_ctime_ns


def _examine(place: Directory, name: str, record: str) -> Found:
    try:
        with place.subdirectory(name) as child:
            entries = child.names()
            if not entries:
                return "free"
            whole = child.is_file(record) and not any(_is_directory(child, entry) for entry in entries)
    except NotFoundError:
        return "free"
    return "checkpoint" if whole else "foreign"


def is_checkpoint(place: Directory, name: str, *, record: str = COMMIT_RECORD) -> bool:
    """Return whether an entry is a directory with a commit record, as `look_at` says."""
    return look_at(place, name, record=record) == "checkpoint"


def _is_directory(place: Directory, name: str) -> bool:
    status = place.status(name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def remove_entry(
    system: System,
    place: Directory,
    name: str,
    *,
    only: Identity | None = None,
    first: str = COMMIT_RECORD,
) -> None:
    """Remove a file or a flat directory; nothing where there is none.

    Parameters
    ----------
    system : System
    place : Directory
    name : str
    only : Identity, optional
        Remove it only if it is this very file or directory.
    first : str
        The file of a directory to remove first: its commit record.

    Raises
    ------
    OSError
        Something could not be removed; the rest of a directory may be gone.
    """
    status = place.status(name)
    if status is None or (only is not None and identity(status) != only):
        return
    if not stat.S_ISDIR(status.st_mode):
        system.unlink(place, name)
        return
    with place.subdirectory(name) as child:
        for entry in sorted(child.names(), key=lambda entry: entry != first):
            with contextlib.suppress(FileNotFoundError):  # somebody else removes the same
                system.unlink(child, entry)
    with contextlib.suppress(FileNotFoundError):
        system.remove_directory(place, name)


def entry_size(place: Directory, name: str) -> int:
    """Return the bytes in a file, or in the files of a flat directory; 0 where there is none."""
    status = place.status(name)
    if status is None:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    with place.subdirectory(name) as child:
        found = [child.status(entry) for entry in child.names()]
    return sum(status.st_size for status in found if status is not None)
