"""Writing one file: at any offset, from several threads, past the page cache where that works.

Space is reserved first, short writes are continued, writes that may be repeated are repeated a bounded
number of times, and a failed sync is final. Direct I/O falls back to buffered per file, and says so. What the
bytes mean, and when the file becomes visible, is for callers.
"""

from __future__ import annotations

import errno
import logging
import mmap
import threading
from typing import TYPE_CHECKING, final

from ckptfmt.errors import StorageError
from ckptfmt.storage.failures import TRANSIENT, storage_error
from ckptfmt.storage.system import NOT_SUPPORTED

if TYPE_CHECKING:
    from types import TracebackType

    from ckptfmt.storage.directory import Directory
    from ckptfmt.storage.system import System

__all__ = ["PAGE", "DataFile", "aligned_buffer"]

PAGE = 4096  # bytes: what direct I/O wants offsets, lengths and memory to be multiples of

_RETRIES = 4
_FIRST_PAUSE_S = 0.02
_PAUSE_GROWTH = 4
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_log = logging.getLogger(__name__)


def aligned_buffer(nbytes: int) -> memoryview:
    """Return writable zeroed memory that starts at a page, for direct writes.

    Parameters
    ----------
    nbytes : int
        Its length in bytes; any, also 0.
    """
    if nbytes == 0:
        return memoryview(bytearray())
    if _PRIVATE:
        return memoryview(mmap.mmap(-1, nbytes, flags=_PRIVATE))
    return memoryview(mmap.mmap(-1, nbytes))


@final
class DataFile:
    """A new file that is being written.

    Parameters
    ----------
    system : System
    place : Directory
    name : str
        One component; nothing of that name may exist.
    size : int, optional
        The exact size in bytes that it will have; reserved at once where that is possible. None: it grows.
    direct : bool
        Whether to try direct I/O. Then every write must start at a multiple of `PAGE`, in memory too, and
        all but the one that ends the file must be a multiple long. `size` must be given.

    Raises
    ------
    ExistsError, NoSpaceError, StorageError
        It could not be created, or its space not be reserved.

    Attributes
    ----------
    direct : bool
        Whether writes go past the page cache; False after a fallback.
    retries : int
        How many writes were repeated after a transient error.
    written : int
        How many bytes were given to `write_at`.
    """

    __slots__ = (
        "_fd",
        "_lock",
        "_padded",
        "_paged",
        "_path",
        "_sync_failure",
        "_synced",
        "_system",
        "direct",
        "name",
        "retries",
        "size",
        "written",
    )

    def __init__(
        self,
        system: System,
        place: Directory,
        name: str,
        *,
        size: int | None = None,
        direct: bool = False,
    ) -> None:
        if direct and size is None:
            message = "direct writing needs the size"
            raise ValueError(message)
        self.name = name
        self.size = size
        self.retries = 0
        self.written = 0
        self._system = system
        self._path = place.joined(name)
        self._lock = threading.Lock()
        self._paged = direct
        self._padded = False
        self._synced = False
        self._sync_failure: StorageError | None = None
        self._fd = self._create(place, direct=direct and system.direct)
        try:
            self._reserve()
        except BaseException:
            self.discard()
            raise

    def _create(self, place: Directory, *, direct: bool) -> int:
        self.direct = direct
        try:
            try:
                return self._system.create(place, self.name, direct=direct)
            except OSError as error:
                if not direct or error.errno not in NOT_SUPPORTED:
                    raise
                self.direct = False
                _remove_half_created(self._system, place, self.name)
                return self._system.create(place, self.name)
        except OSError as error:
            raise storage_error(error, "could not create", file=self._path, needed=self.size) from error

    def _reserve(self) -> None:
        if not self.size:
            return
        try:
            self._system.allocate(self._fd, self.size)
        except OSError as error:
            raise storage_error(
                error, "could not reserve space", file=self._path, needed=self.size
            ) from error

    def write_at(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`. Safe to call from several threads for ranges that do not touch.

        Parameters
        ----------
        offset : int
            In bytes from the start of the file.
        data : memoryview or bytes
            Contiguous; see `direct` above for what else.

        Raises
        ------
        ValueError
            The range does not lie in the file, or is not aligned as a direct file needs.
        NoSpaceError, StorageError
            It could not be written, after retries where those make sense.
        """
        view = memoryview(data).cast("B")
        self._check(offset, view)
        whole = len(view) - len(view) % PAGE if self._paged else len(view)
        self._write(offset, view[:whole])
        if whole < len(view):
            self._write(offset + whole, _padded_page(view[whole:]))
            self._padded = True
        with self._lock:
            self.written += len(view)
            self._synced = False

    def _check(self, offset: int, view: memoryview) -> None:
        end = offset + len(view)
        if offset < 0 or (self.size is not None and end > self.size):
            message = f"{self.name}: bytes {offset} to {end} do not lie in a file of {self.size} bytes"
            raise ValueError(message)
        if self._paged and (offset % PAGE or (len(view) % PAGE and end != self.size)):
            message = f"{self.name}: bytes {offset} to {end} are not whole pages of {PAGE} bytes"
            raise ValueError(message)

    def _write(self, offset: int, view: memoryview) -> None:
        done = failures = 0
        while done < len(view):
            direct = self.direct
            try:
                count = self._system.write(self._fd, view[done:], offset + done)
            except OSError as error:
                if not (direct and self._fall_back(error)):
                    failures += 1
                    self._retry(error, offset + done, failures)
                continue
            # A short direct write may end inside a page: that page is written again, as a whole.
            progress = count - count % PAGE if direct and done + count < len(view) else count
            done += progress
            if progress == 0:
                failures += 1
                self._retry(OSError(errno.EIO, "less than a page was written"), offset + done, failures)

    def _fall_back(self, error: OSError) -> bool:
        """After a direct write failed, return whether it may be tried again as a buffered one."""
        if error.errno not in NOT_SUPPORTED:
            return False
        with self._lock:
            if self.direct:  # else another thread was first
                self._system.make_buffered(self._fd)
                self.direct = False
        _log.info("%s: no direct I/O here (%s): buffered writes instead", self._path, error.strerror)
        return True

    def _retry(self, error: OSError, offset: int, failures: int) -> None:
        """Wait before the next try, or raise."""
        if error.errno not in TRANSIENT or failures > _RETRIES:
            what = f"could not write at {offset}"
            raise storage_error(error, what, file=self._path, needed=self.size) from error
        with self._lock:
            self.retries += 1
        _log.warning("%s: writing at %d again after: %s", self._path, offset, error.strerror)
        if error.errno != errno.EINTR:
            self._system.pause(_FIRST_PAUSE_S * _PAUSE_GROWTH ** (failures - 1))

    def truncate(self, size: int) -> int:
        """Cut a growing file, or lengthen it with zeros; return its size. StorageError if that fails."""
        try:
            self._system.truncate(self._fd, size)
        except OSError as error:
            raise storage_error(error, "could not resize", file=self._path, needed=size) from error
        self._synced = False
        return size

    def sync(self) -> None:
        """Give the file its exact size and bring it to the disk; call when no write is in flight.

        Raises
        ------
        StorageError
            It may not be on the disk. The system reports such a loss once, so every later call raises too.
        """
        if self._sync_failure is not None:
            raise self._sync_failure
        if self._synced:
            return
        if self._fd < 0:
            message = "was closed before it was brought to the disk"
            raise StorageError(message, file=self._path)
        try:
            if self._padded and self.size is not None:
                self._system.truncate(self._fd, self.size)
            self._system.sync(self._fd)
        except OSError as error:
            what = "could not bring it to the disk"
            self._sync_failure = storage_error(error, what, file=self._path, needed=self.size)
            raise self._sync_failure from error
        self._synced = True

    def close(self) -> None:
        """Close the file; again is nothing.

        Raises
        ------
        StorageError
            The system reported a lost write only now.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            self._system.close(fd)
        except OSError as error:
            raise storage_error(error, "could not close", file=self._path, needed=self.size) from error

    def discard(self) -> None:
        """Close the file, whatever the system says: its bytes are not wanted any more."""
        try:
            self.close()
        except StorageError as error:
            _log.info("%s", error)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._fd < 0

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def __enter__(self) -> DataFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close() if kind is None else self.discard()


def _padded_page(tail: memoryview) -> memoryview:
    page = aligned_buffer(PAGE)
    page[: len(tail)] = tail
    return page


def _remove_half_created(system: System, place: Directory, name: str) -> None:
    """Remove what an open with O_DIRECT left: some systems create the file, then refuse the flag."""
    status = place.status(name)
    if status is not None and status.st_size == 0:
        system.unlink(place, name)
