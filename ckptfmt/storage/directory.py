"""A directory that stays the same one, whatever happens to its path.

It is held open by a descriptor where the system has them, and known by its path elsewhere (Windows, or when
forced). Names are single components: nothing here follows a symbolic link or leaves the directory. It only
looks; what changes a directory is in `system`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, final

from ckptfmt.errors import StorageError
from ckptfmt.storage.reader import FileReader, open_error

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Directory", "Identity", "check_name", "identity"]

Identity = tuple[int, int]

_HAS_DESCRIPTORS = os.open in os.supports_dir_fd and os.listdir in os.supports_fd
_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def identity(status: os.stat_result) -> Identity:
    """Return what tells one file or directory from every other that exists: device and inode."""
    return status.st_dev, status.st_ino


def check_name(name: str) -> None:
    """Raise ValueError unless `name` is one path component that names an entry."""
    separators = {"/", os.sep, os.altsep or "/"}
    if name in {"", ".", ".."} or "\0" in name or any(mark in name for mark in separators):
        message = f"{name!r} is not the name of a directory entry"
        raise ValueError(message)


@final
class Directory:
    """A directory, held open.

    Parameters
    ----------
    path : str or os.PathLike
    descriptors : bool
        False forces the portable way: every call by path.

    Raises
    ------
    NotFoundError
        There is no such directory.
    StorageError
        It is not a directory, or cannot be opened.

    Attributes
    ----------
    path : str
        The path it was opened by, absolute.
    fd : int or None
        Its descriptor, for `dir_fd` arguments.
    """

    __slots__ = ("fd", "path")

    fd: int | None

    def __init__(self, path: str | os.PathLike[str], *, descriptors: bool = True) -> None:
        self.fd = None
        self.path = str(Path(path).absolute())
        self._open(self.path, None, descriptors=descriptors)

    def _open(self, name: str, dir_fd: int | None, *, descriptors: bool) -> None:
        try:
            if descriptors and _HAS_DESCRIPTORS:
                self.fd = os.open(name, _FLAGS | (_NOFOLLOW if dir_fd is not None else 0), dir_fd=dir_fd)
            elif not stat.S_ISDIR(Path(self.path).stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.ELOOP} and os.path.lexists(self.path):
                message = "is not a directory"
                raise StorageError(message, file=self.path, errno=error.errno) from error
            raise open_error(error, self.path) from error

    def at(self, name: str) -> str:
        """Return what to give a system call for an entry, beside ``dir_fd=self.fd``."""
        return name if self.fd is not None else self.joined(name)

    def joined(self, name: str) -> str:
        """Return the path of an entry, for messages and for calls without descriptors."""
        return str(Path(self.path, name))

    def names(self) -> list[str]:
        """Return the names of all entries, sorted; StorageError if they cannot be listed."""
        try:
            return sorted(os.listdir(self.path if self.fd is None else self.fd))  # noqa: PTH208 (by descriptor)
        except OSError as error:
            message = f"could not be listed: {error.strerror}"
            raise StorageError(message, file=self.path, errno=error.errno) from error

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of an entry itself (links are not followed), or None if there is none."""
        try:
            return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def identity(self) -> Identity:
        """Return which directory this is."""
        return identity(Path(self.path).stat() if self.fd is None else os.fstat(self.fd))

    def is_file(self, name: str) -> bool:
        """Return whether there is a regular file of that name."""
        status = self.status(name)
        return status is not None and stat.S_ISREG(status.st_mode)

    def subdirectory(self, name: str) -> Directory:
        """Open an entry that is a directory, not a link to one; errors as for `Directory`."""
        check_name(name)
        status = self.status(name)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            message = "is not a directory"
            raise StorageError(message, file=self.joined(name))
        child = Directory.__new__(Directory)
        child.fd = None
        child.path = self.joined(name)
        child._open(name, self.fd, descriptors=self.fd is not None)  # noqa: SLF001
        return child

    def reader(self, name: str, *, mapped: bool = True) -> FileReader:
        """Open a file of the directory for reading; errors as for `FileReader`.

        Parameters
        ----------
        name : str
            One component.
        mapped : bool
            Whether its `view` may map the file.
        """
        check_name(name)
        return FileReader(self.at(name), name=self.joined(name), dir_fd=self.fd, mapped=mapped)

    def close(self) -> None:
        """Let go of the directory."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __enter__(self) -> Directory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "fd", None) is not None:
            self.close()
