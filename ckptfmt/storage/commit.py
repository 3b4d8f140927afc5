"""The one commit protocol: a checkpoint directory is made beside its target, synced, and put there whole.

At a kill at any moment the target is the old or the new one; what is left over has a name and an owner (see
`owner`) by which `recovery` finds it. Nothing that is not a checkpoint is ever replaced, and nothing that is
not ours is ever removed. An error from `commit` means that the target is untouched, unless it says that the
new one is in place. What the files hold is for callers.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Literal, final

from ckptfmt.errors import ExistsError, StorageError, UnsupportedError
from ckptfmt.storage.claim import Claim
from ckptfmt.storage.directory import check_name, identity
from ckptfmt.storage.failures import EXISTS, doing, storage_error
from ckptfmt.storage.files import DataFile
from ckptfmt.storage.removal import COMMIT_RECORD, look_at, remove_entry
from ckptfmt.storage.system import NOT_SUPPORTED, System

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType

    from ckptfmt.storage.directory import Directory, Identity
    from ckptfmt.storage.removal import Found

__all__ = ["Overwrite", "Staging"]

Overwrite = Literal["no", "exchange", "two-step"]

_ROUNDS = 100  # how often other writers may get in between before we give up
_PROBES = (".probe-1", ".probe-2")
_log = logging.getLogger(__name__)


@final
class Staging:
    """A checkpoint directory in the making. Use it in a ``with`` block: without `commit` it is thrown away.

    Parameters
    ----------
    path : str or os.PathLike
        The target. Its parent must exist.
    overwrite : {"no", "exchange", "two-step"}
        What to do where a checkpoint is already there: refuse; exchange the two in one step; or move the old
        aside first, for file systems that cannot exchange.
    job : str, optional
        What to call the job in the owner record.
    record : str
        The file that makes such a directory one; another for directories of a foreign format.
    system : System, optional

    Attributes
    ----------
    path : str
        The target, absolute.
    directory : Directory
        The staging directory, inside the block.
    files : list of DataFile
        The files made by `create`.
    committed : bool
        Whether the new checkpoint is in place.
    left_over : str or None
        The path at which an old checkpoint stayed because it could not be removed.
    """

    __slots__ = (
        "_claim",
        "_identity",
        "_overwrite",
        "_parent",
        "_record",
        "_system",
        "committed",
        "directory",
        "files",
        "left_over",
        "path",
    )

    directory: Directory

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: Overwrite = "no",
        job: str | None = None,
        record: str = COMMIT_RECORD,
        system: System | None = None,
    ) -> None:
        self._system = System() if system is None else system
        self._claim = Claim(self._system, path, job=job, record=record)
        self.path = self._claim.path
        self._overwrite = overwrite
        self._record = record
        self._identity: Identity | None = None
        self.files: list[DataFile] = []
        self.committed = False
        self.left_over: str | None = None

    # ------------------------------------------------------------------ making it

    def __enter__(self) -> Staging:
        """Claim the target and make the staging directory.

        Raises
        ------
        ExistsError
            Something is at the target that may not be overwritten.
        NotFoundError
            The parent directory does not exist.
        UnsupportedError
            `overwrite` is "exchange", something is to be overwritten, and the file system cannot exchange.
        NoSpaceError, StorageError
            The directory could not be made.
        """
        self._parent = self._claim.open()
        try:
            replaces = self._check_target()
            self._claim.make()
            self._make_directory()
            if replaces and self._overwrite == "exchange":
                self._probe_exchange()
        except BaseException:
            self.abort()
            raise
        return self

    @property
    def _target(self) -> str:
        return self._claim.names.target

    @property
    def _staging(self) -> str:
        return self._claim.names.staging

    def _make_directory(self) -> None:
        with doing("could not make the staging directory", file=self._parent.joined(self._staging)):
            self._system.make_directory(self._parent, self._staging)
            self.directory = self._parent.subdirectory(self._staging)
            self._identity = self.directory.identity()

    def _probe_exchange(self) -> None:
        """Find out before anything large is written whether two entries can be exchanged here."""
        for name in _PROBES:
            self._write_empty(name)
        try:
            self._system.exchange(self.directory, *_PROBES)
        except OSError as error:
            raise self._exchange_error(error) from error
        for name in _PROBES:
            with doing("could not remove", file=self.directory.joined(name)):
                self._system.unlink(self.directory, name)

    def _write_empty(self, name: str) -> None:
        with DataFile(self._system, self.directory, name):
            pass

    def _exchange_error(self, error: OSError) -> StorageError:
        if error.errno not in NOT_SUPPORTED | {errno.EXDEV}:  # EXDEV: a lower layer of an overlay
            return storage_error(error, "could not exchange the new with the old", file=self.path)
        message = (
            "this file system cannot exchange two directories, so the old checkpoint cannot be overwritten "
            'in one step: save to a new name, or allow the two-step way (overwrite="two-step")'
        )
        return UnsupportedError(message, file=self.path, errno=error.errno)

    def create(self, name: str, *, size: int | None = None, direct: bool = False) -> DataFile:
        """Create a file of the checkpoint; `commit` syncs and closes it if the caller did not.

        Parameters
        ----------
        name : str
            One component.
        size, direct
            As for `DataFile`, errors too.
        """
        check_name(name)
        file = DataFile(self._system, self.directory, name, size=size, direct=direct)
        self.files.append(file)
        return file

    def write_bytes(self, name: str, data: bytes | memoryview) -> None:
        """Create a small file, synced and closed; errors as for `DataFile`."""
        check_name(name)
        with self.create(name) as file:
            file.write_at(0, data)
            file.sync()

    # ------------------------------------------------------------------ putting it in place

    def commit(self) -> None:
        """Make everything durable and put it at the target.

        Raises
        ------
        ValueError
            There is no commit record among the files.
        ExistsError
            Something is at the target that may not be overwritten.
        UnsupportedError
            The file system cannot exchange, and something is to be overwritten.
        NoSpaceError, StorageError
            Something failed. The message says so if the new checkpoint is in place nevertheless.
        """
        self._make_durable()
        old = self._publish()
        self.committed = True
        self._sync_parent()
        if old is not None:
            self._remove_old(old)
        self._finish()

    def _make_durable(self) -> None:
        if not self.directory.is_file(self._record):
            message = f"no {self._record} was written to {self.directory.path}"
            raise ValueError(message)
        for file in self.files:
            file.sync()
            file.close()
        with doing("could not bring the directory to the disk", file=self.directory.path):
            self._system.sync_directory(self.directory)

    def _publish(self) -> str | None:
        """Put the new at the target; return the name at which the old now is, if there was one."""
        for _ in range(_ROUNDS):
            old, done = self._place_new(replaces=self._check_target())
            if done:
                return old
        message = "other writers keep replacing it: nothing was written"
        raise StorageError(message, file=self.path)

    def _check_target(self) -> bool:
        """Return whether there is a checkpoint to replace; raise if there is what may not be replaced."""
        found = self._look_at(self._target)
        if found == "free":
            return False
        if self._overwrite == "no":
            message = "is already there"
            raise ExistsError(message, file=self.path, errno=errno.EEXIST)
        if found != "checkpoint":
            raise self._not_ours()
        return True

    def _not_ours(self) -> ExistsError:
        message = (
            f"is not a checkpoint directory (a link, a file, or without {self._record}, or with directories "
            "inside), so it is not overwritten: choose another name or remove it yourself"
        )
        return ExistsError(message, file=self.path, errno=errno.EEXIST)

    def _place_new(self, *, replaces: bool) -> tuple[str | None, bool]:
        """Try once; return where the old is, and whether the new is in place."""
        if not replaces:
            return None, self._rename_in()
        if self._overwrite == "exchange":
            return self._staging, self._exchange_in()
        return self._claim.names.aside, self._two_steps()

    def _look_at(self, name: str) -> Found:
        with doing("could not look at what is there", file=self._parent.joined(name)):
            return look_at(self._parent, name, record=self._record)

    def _rename_in(self) -> bool:
        """Rename the new to a target that is free; return False where it is not free any more."""
        try:
            self._system.rename(self._parent, self._staging, self._target)
        except OSError as error:
            if self._is_in_place():  # some network file systems do it and then answer with an error
                return True
            if error.errno in EXISTS:
                return False
            raise storage_error(error, "could not put the checkpoint in place", file=self.path) from error
        return True

    def _exchange_in(self) -> bool:
        """Exchange the new with the old; return False where the old is not there any more."""
        try:
            self._system.exchange(self._parent, self._staging, self._target)
        except FileNotFoundError:
            return self._is_in_place()
        except OSError as error:
            if not self._is_in_place():
                raise self._exchange_error(error) from error
        self._look_at_old()
        return True

    def _look_at_old(self) -> None:
        """Exchange back if what came out is no checkpoint: it was put there since we looked."""
        try:
            foreign = self._look_at(self._staging) != "checkpoint"
        except StorageError as error:  # the new is in place all the same; what is not known is not removed
            self._keep_old(self._staging, error)
            return
        if foreign:
            self._undo(lambda: self._system.exchange(self._parent, self._staging, self._target))
            raise self._not_ours()

    def _two_steps(self) -> bool:
        """Move the old aside and the new in; return False where another writer was in between."""
        aside = self._claim.names.aside
        try:
            self._system.rename(self._parent, self._target, aside)
        except FileNotFoundError:
            return False
        except OSError as error:
            if self._parent.status(self._target) is not None:
                raise storage_error(
                    error, "could not move the old checkpoint aside", file=self.path
                ) from error
        try:
            if self._look_at(aside) != "checkpoint":
                raise self._not_ours()
            placed = self._rename_in()
        except BaseException:
            self._undo(lambda: self._system.rename(self._parent, aside, self._target))
            raise
        if not placed:  # the target is another writer's, whole: the one we moved is overwritten by that
            self._remove_old(aside)
        return placed

    def _undo(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            _log.warning("%s: could not undo: %s; see `ckptfmt recover`", self.path, error)

    def _is_in_place(self) -> bool:
        """Return whether the directory that we made is now at the target."""
        status = self._parent.status(self._target)
        return status is not None and self._identity is not None and identity(status) == self._identity

    def _sync_parent(self) -> None:
        what = "the new checkpoint is in place, but whether a power cut would undo that is not known"
        with doing(what, file=self.path):
            self._system.sync_directory(self._parent)

    def _remove_old(self, name: str) -> None:
        if self.left_over is not None:
            return
        try:
            remove_entry(self._system, self._parent, name, first=self._record)
        except OSError as error:
            self._keep_old(name, error)

    def _keep_old(self, name: str, error: OSError) -> None:
        self.left_over = self._parent.joined(name)
        _log.warning("%s: the old checkpoint could not be removed: %s", self.left_over, error)

    # ------------------------------------------------------------------ leaving

    def abort(self) -> None:
        """Throw away what was made unless it is in place, as far as the system allows; raises no OSError."""
        for file in self.files:
            file.discard()
        try:
            if not self.committed and not self._is_in_place():
                self._claim.remove_staging(self._identity)
        except OSError as error:
            _log.warning("%s: staging could not be removed: %s", self.path, error)
        self._finish()

    def _finish(self) -> None:
        if hasattr(self, "directory"):
            self.directory.close()
        self._claim.release()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.committed or self._claim.held:
            self.abort()
