"""A writer's claim: the owner record beside a target, from before the first byte until after the last step.

Whatever a killed writer leaves, its record is there first and goes last, and only when nothing else of the
same writer is left. A claim does not lock: two writers of one target may both hold one.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.errors import StorageError
from ckptfmt.storage.directory import Directory
from ckptfmt.storage.files import DataFile
from ckptfmt.storage.owner import new_names, this_process
from ckptfmt.storage.removal import COMMIT_RECORD, remove_entry

if TYPE_CHECKING:
    from ckptfmt.storage.directory import Identity
    from ckptfmt.storage.system import System

__all__ = ["Claim", "split_target"]

_log = logging.getLogger(__name__)


def split_target(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the absolute path of the parent and the name of an entry that may be written.

    Raises
    ------
    StorageError
        The path ends in no name (``/``, ``.``, ``..``).
    """
    target = Path(path)
    if target.name in {"", os.pardir}:
        message = "names no entry of a directory that could be written"
        raise StorageError(message, file=os.fspath(path))
    return str(target.parent.absolute()), target.name


class Claim:
    """One writer's names beside one target.

    Parameters
    ----------
    system : System
    path : str or os.PathLike
        The target.
    job : str, optional
        What to call the job in the record.
    record : str
        The commit record of what is made, if it is a directory.

    Attributes
    ----------
    path : str
        The target, absolute.
    names : Names
    held : bool
        Whether the parent is open and the claim not yet released.
    """

    __slots__ = ("_job", "_parent", "_parent_path", "_record", "_system", "held", "names", "path")

    def __init__(
        self,
        system: System,
        path: str | os.PathLike[str],
        *,
        job: str | None = None,
        record: str = COMMIT_RECORD,
    ) -> None:
        self._system = system
        self._job = job
        self._record = record
        self._parent_path, name = split_target(path)
        self.path = str(Path(self._parent_path, name))
        self.names = new_names(name)
        self.held = False

    def open(self) -> Directory:
        """Open and return the parent directory; errors as for `Directory`."""
        self._parent = Directory(self._parent_path, descriptors=self._system.descriptors)
        self.held = True
        return self._parent

    def make(self) -> None:
        """Write the owner record, durable; errors as for `DataFile`."""
        record = this_process(self._job, record=self._record).encode()
        with DataFile(self._system, self._parent, self.names.owner) as file:
            file.write_at(0, record)
            file.sync()

    def remove_staging(self, only: Identity | None) -> None:
        """Remove what is at the staging name, if it is `only` where that is given; OSError as it comes."""
        remove_entry(self._system, self._parent, self.names.staging, only=only)

    def release(self) -> None:
        """Remove the owner record, unless something that it names is still there; let go of the parent."""
        if not self.held:
            return
        self.held = False
        try:
            left = [name for name in (self.names.staging, self.names.aside) if self._parent.status(name)]
            if not left:
                remove_entry(self._system, self._parent, self.names.owner)
        except OSError as error:
            _log.warning("%s: the owner record could not be removed: %s", self.path, error)
        self._parent.close()
