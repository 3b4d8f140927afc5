"""Removing a staging or old checkpoint directory: flat, by its descriptor, the commit record first.

So what is half removed is never taken for a whole checkpoint. Links are removed, never followed; a directory
inside (which no checkpoint has) is never entered, so the removal then fails and the rest stays.
"""

from __future__ import annotations

import contextlib
import stat
from typing import TYPE_CHECKING

from ckptfmt.storage.directory import Directory, identity

if TYPE_CHECKING:
    from ckptfmt.storage.directory import Identity
    from ckptfmt.storage.system import System

__all__ = ["COMMIT_RECORD", "entry_size", "is_checkpoint", "remove_entry"]

COMMIT_RECORD = "manifest.json"


def is_checkpoint(place: Directory, name: str, *, record: str = COMMIT_RECORD) -> bool:
    """Return whether an entry looks like a checkpoint: a directory, not a link, flat, with a commit record.

    Whether the record is valid is not asked: a damaged checkpoint may be overwritten too.
    """
    status = place.status(name)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return False
    with place.subdirectory(name) as child:
        return child.is_file(record) and not any(_is_directory(child, entry) for entry in child.names())


def _is_directory(place: Directory, name: str) -> bool:
    status = place.status(name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def remove_entry(system: System, place: Directory, name: str, *, only: Identity | None = None) -> None:
    """Remove a file or a flat directory; nothing where there is none.

    Parameters
    ----------
    system : System
    place : Directory
    name : str
    only : Identity, optional
        Remove it only if it is this very file or directory.

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
        for entry in sorted(child.names(), key=lambda entry: entry != COMMIT_RECORD):
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
