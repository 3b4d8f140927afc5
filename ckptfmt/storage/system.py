"""The one place through which every write-type system call goes.

`System` has a small method per call, so that a test double can fail, shorten or kill at the k-th of them.
It knows which calls this machine has; each flag of its constructor takes one away, which forces the portable
way. Every method raises plain OSError: turning it into a typed error is for callers, who know what they did.
Retries, protocols and names are not here.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.storage import libc

if TYPE_CHECKING:
    from ckptfmt.storage.directory import Directory

if sys.platform != "win32":
    import fcntl

__all__ = ["NOT_SUPPORTED", "System"]

# What file systems answer to a call or flag that they do not have.
NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOTSUP})

_CREATE = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_CREATE |= getattr(os, "O_NOFOLLOW", 0)
_DIRECT = getattr(os, "O_DIRECT", 0)


class System:
    """The machine's calls that write.

    Parameters
    ----------
    direct : bool
        Whether files may be opened past the page cache (Linux).
    preallocation : bool
        Whether space may be reserved before it is written (Linux).
    exchange : bool
        Whether two entries may be exchanged in one step (Linux, macOS).
    positioned : bool
        Whether writes at an offset are one call (not on Windows).
    descriptors : bool
        Whether directories are held by descriptors (not on Windows).

    Attributes
    ----------
    direct, exchange, descriptors : bool
        What is allowed and there.
    """

    def __init__(
        self,
        *,
        direct: bool = True,
        preallocation: bool = True,
        exchange: bool = True,
        positioned: bool = True,
        descriptors: bool = True,
    ) -> None:
        self.direct = direct and _DIRECT != 0
        self._preallocation = preallocation
        self._exchange = exchange
        self._positioned = positioned and hasattr(os, "pwrite")
        self._seeking = threading.Lock()
        self.descriptors = descriptors

    def create(self, place: Directory, name: str, *, direct: bool = False) -> int:
        """Create a file that does not exist and return its descriptor, open for reading and writing.

        Its mode is what umask leaves of 0666. `direct` asks for O_DIRECT.
        """
        flags = _CREATE | (_DIRECT if direct else 0)
        return os.open(place.at(name), flags, 0o666, dir_fd=place.fd)

    def make_buffered(self, fd: int) -> None:
        """Take O_DIRECT from an open file."""
        if sys.platform != "win32":
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """Write some of `data` at `offset` and return how many bytes that was."""
        if self._positioned:
            return os.pwrite(fd, data, offset)
        with self._seeking:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)

    def allocate(self, fd: int, size: int) -> bool:
        """Reserve the first `size` bytes; return False where that cannot be done."""
        if not self._preallocation:
            return False
        try:
            libc.allocate(fd, size)
        except OSError as error:
            if error.errno in NOT_SUPPORTED:
                return False
            raise
        return True

    def truncate(self, fd: int, size: int) -> None:
        """Set a file's size."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Bring a file to the disk; on macOS past the drive's own cache."""
        if sys.platform == "darwin":
            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            except OSError as error:
                if error.errno not in NOT_SUPPORTED:
                    raise
            else:
                return
        os.fsync(fd)

    def sync_directory(self, place: Directory) -> None:
        """Bring a directory's entries to the disk, where directories can be synced."""
        if place.fd is None and os.name == "nt":
            return
        fd = os.open(place.path, os.O_RDONLY) if place.fd is None else place.fd
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
        finally:
            if fd != place.fd:
                os.close(fd)

    def close(self, fd: int) -> None:
        """Close a file. It is closed even when this raises."""
        os.close(fd)

    def make_directory(self, place: Directory, name: str) -> None:
        """Make a directory; its mode is what umask leaves of 0777."""
        os.mkdir(place.at(name), dir_fd=place.fd)

    def rename(self, place: Directory, source: str, target: str) -> None:
        """Rename a directory. An empty directory at the target is replaced, anything else is an error."""
        if os.name == "nt":
            _remove_empty(place, target)
        os.rename(place.at(source), place.at(target), src_dir_fd=place.fd, dst_dir_fd=place.fd)

    def replace(self, place: Directory, source: str, target: str) -> None:
        """Rename a file over whatever file is at the target, in one atomic step."""
        os.replace(place.at(source), place.at(target), src_dir_fd=place.fd, dst_dir_fd=place.fd)

    def rename_new(self, place: Directory, source: str, target: str) -> None:
        """Rename a file; EEXIST where the target exists, one of NOT_SUPPORTED where there is no such call."""
        if os.name == "nt":
            Path(place.joined(source)).rename(place.joined(target))
            return
        self._require_exchange()
        libc.rename_new(place.fd, place.at(source), place.at(target))

    def exchange(self, place: Directory, first: str, second: str) -> None:
        """Exchange two entries in one atomic step; fails with one of NOT_SUPPORTED if it cannot."""
        self._require_exchange()
        libc.exchange(place.fd, place.at(first), place.at(second))

    def _require_exchange(self) -> None:
        if not self._exchange:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def link(self, place: Directory, source: str, target: str) -> None:
        """Give a file a second name, which must not exist."""
        os.link(place.at(source), place.at(target), src_dir_fd=place.fd, dst_dir_fd=place.fd)

    def unlink(self, place: Directory, name: str) -> None:
        """Remove a file's name."""
        os.unlink(place.at(name), dir_fd=place.fd)

    def remove_directory(self, place: Directory, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(place.at(name), dir_fd=place.fd)

    def pause(self, seconds: float) -> None:
        """Wait before a retry."""
        time.sleep(seconds)


def _remove_empty(place: Directory, name: str) -> None:
    try:
        Path(place.joined(name)).rmdir()
    except OSError:  # not there, not empty or not a directory: the rename that follows tells
        return
