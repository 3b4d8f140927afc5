"""From a system error to ours: what was being done, where, and for a full disk how much was needed and free.

Every module of `storage` raises through `storage_error`. Nothing is handled here.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.errors import ExistsError, NoSpaceError, NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXISTS", "FULL", "TRANSIENT", "doing", "storage_error"]

FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
# What may go away by itself on network file systems; only calls that can be repeated are retried.
TRANSIENT = frozenset({errno.EINTR, errno.EIO, errno.EAGAIN, getattr(errno, "ESTALE", errno.EIO)})
# What a rename answers where something is in the way.
EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})


def storage_error(error: OSError, what: str, *, file: str, needed: int | None = None) -> StorageError:
    """Return our error for a system error.

    Parameters
    ----------
    error : OSError
        One of ours is returned as it is.
    what : str
        What could not be done, as in "could not write".
    file : str
        The path that it was done to.
    needed : int, optional
        How many bytes were to be stored; said where there is no space.
    """
    if isinstance(error, StorageError):
        return error
    reason = error.strerror or str(error)
    if error.errno in FULL:
        sizes = f"{needed} bytes are needed, " if needed is not None else ""
        message = f"{what}: {reason}; {sizes}{_free(file)}"
        return NoSpaceError(message, file=file, errno=error.errno)
    return _kind(error)(f"{what}: {reason}", file=file, errno=error.errno)


def _kind(error: OSError) -> type[StorageError]:
    if isinstance(error, FileNotFoundError):
        return NotFoundError
    return ExistsError if isinstance(error, FileExistsError) else StorageError


def _free(file: str) -> str:
    try:
        return f"{shutil.disk_usage(Path(file).parent).free} bytes are free"
    except OSError:
        return "how many are free is not known"


@contextmanager
def doing(what: str, *, file: str, needed: int | None = None) -> Iterator[None]:
    """Raise system errors of the block as ours; arguments as for `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, what, file=file, needed=needed) from error
