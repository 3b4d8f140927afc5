"""Replacing one file: the new is made beside it and put in place whole, or not at all.

For exports to single files (.pt, .npz, ...). The old is never truncated or written to, so whoever has it open
or mapped keeps its bytes. Directories are `commit`'s.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from typing import TYPE_CHECKING, BinaryIO, cast

from ckptfmt.errors import ExistsError
from ckptfmt.storage.claim import Claim
from ckptfmt.storage.directory import identity
from ckptfmt.storage.failures import doing
from ckptfmt.storage.files import DataFile
from ckptfmt.storage.system import NOT_SUPPORTED, System

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.storage.directory import Directory, Identity

__all__ = ["replacing"]

_BUFFER = 1 << 20
_NOT_DURABLE = "the new file is in place, but whether a power cut would undo that is not known"
# Beyond what says "no such call", what file systems without hard links answer to link(2).
_NO_LINKS = NOT_SUPPORTED | {errno.EPERM, errno.EMLINK, errno.EXDEV}


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    system: System | None = None,
) -> Iterator[BinaryIO]:
    """Give a new file to write; at the end of the block it is synced and takes its place at `path`.

    Parameters
    ----------
    path : str or os.PathLike
        The target. Its parent must exist.
    overwrite : bool
        Whether a regular file that is there may be replaced.
    system : System, optional

    Yields
    ------
    BinaryIO
        Open for reading and writing, seekable; its `name` is its present path. It may be closed early.

    Raises
    ------
    ExistsError
        The target is there and may not be replaced; it is as it was.
    NotFoundError
        The parent directory does not exist.
    NoSpaceError, StorageError
        Something failed; the target is as it was and the new file removed.
    """
    system = System() if system is None else system
    claim = Claim(system, path)
    place = claim.open()
    try:
        _check_target(place, claim, overwrite=overwrite)
        claim.make()
        with DataFile(system, place, claim.names.staging) as data:
            with _buffered(data, place.joined(claim.names.staging)) as file:
                yield file
            data.sync()
            ours = identity(os.fstat(data.fileno()))
        _put_in_place(system, place, claim, ours, overwrite=overwrite)
    finally:
        _leave(claim)


def _check_target(place: Directory, claim: Claim, *, overwrite: bool) -> None:
    status = place.status(claim.names.target)
    if status is None:
        return
    if not overwrite:
        message = "is already there"
        raise ExistsError(message, file=claim.path, errno=errno.EEXIST)
    if not stat.S_ISREG(status.st_mode):
        message = "is not a regular file (a link, a directory or a device), so it is not replaced"
        raise ExistsError(message, file=claim.path, errno=errno.EEXIST)


def _leave(claim: Claim) -> None:
    with contextlib.suppress(OSError):  # what cannot be removed is listed as left over
        claim.remove_staging(None)
    claim.release()


def _put_in_place(system: System, place: Directory, claim: Claim, ours: Identity, *, overwrite: bool) -> None:
    _check_target(place, claim, overwrite=overwrite)
    with doing("could not put the new file in place", file=claim.path):
        try:
            (_replace if overwrite else _rename_new)(system, place, claim)
        except OSError:  # some network file systems do it and then answer with an error
            status = place.status(claim.names.target)
            if status is None or identity(status) != ours:
                raise
    with doing(_NOT_DURABLE, file=claim.path):
        system.sync_directory(place)


def _replace(system: System, place: Directory, claim: Claim) -> None:
    system.replace(place, claim.names.staging, claim.names.target)


def _rename_new(system: System, place: Directory, claim: Claim) -> None:
    """Put the file where none is: in one step where the system can, else by a link, else by a placeholder."""
    staging, target = claim.names.staging, claim.names.target
    try:
        system.rename_new(place, staging, target)
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
        _link_new(system, place, claim)


def _link_new(system: System, place: Directory, claim: Claim) -> None:
    staging, target = claim.names.staging, claim.names.target
    try:
        system.link(place, staging, target)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LINKS:
            raise
        system.close(system.create(place, target))  # ours from here on: nobody else can create it
        system.replace(place, staging, target)
        return
    system.unlink(place, staging)


@contextlib.contextmanager
def _buffered(data: DataFile, path: str) -> Iterator[BinaryIO]:
    """Give a growing `DataFile` as a buffered stream; after an error what is buffered is dropped."""
    raw = _RawFile(data, path)
    file = io.BufferedRandom(raw, _BUFFER)
    try:
        yield cast("BinaryIO", file)
        file.close()
    finally:
        raw.dropping = True
        file.close()


class _RawFile(io.RawIOBase):
    """A growing `DataFile` as a raw stream: every write goes through `System`, with its retries.

    Closing the stream leaves the `DataFile` open.
    """

    def __init__(self, file: DataFile, path: str) -> None:
        super().__init__()
        self.name = path
        self.mode = "rb+"
        self.dropping = False
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        os.lseek(self.fileno(), self._position, os.SEEK_SET)
        data = os.read(self.fileno(), len(out))
        out[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        if not self.dropping:
            self._file.write_at(self._position, data)
        self._position += data.nbytes
        return data.nbytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size = os.fstat(self.fileno()).st_size
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: size}[whence]
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = position
        return position

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(self._position if size is None else size)
