"""Several files that make one bundle take their places together, as nearly as files can.

All are made beside their targets and synced before the first takes its place; the table, which is the record
that there is a bundle, is last. If something fails before, what was new is taken back. Only where a bundle is
overwritten and the system stops between these renames is the old one damaged; its checksums tell.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, BinaryIO, final

from ckptfmt.storage.claim import split_target
from ckptfmt.storage.directory import Directory, identity
from ckptfmt.storage.failures import doing
from ckptfmt.storage.removal import remove_entry
from ckptfmt.storage.replace import replacing
from ckptfmt.storage.system import System

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptfmt.storage.directory import Identity

__all__ = ["placing"]


@contextlib.contextmanager
def placing(record: str, *, overwrite: bool, system: System | None = None) -> Iterator[Placing]:
    """Give what makes files; at the end of the block they take their places, `record` last.

    Parameters
    ----------
    record : str
        The path of the file that makes the others a bundle.
    overwrite : bool
        Whether files that are there may be replaced.
    system : System, optional

    Raises
    ------
    ExistsError, NotFoundError, NoSpaceError, StorageError
        As for `replacing`, of any of the files.
    """
    made = Placing(record, overwrite=overwrite, system=System() if system is None else system)
    try:
        with made.stack:
            yield made
            made.sync()
    except BaseException:
        if not overwrite:
            made.take_back()
        raise
    made.remove_old()


@final
class Placing:
    """The files of a bundle in the making; see `placing`.

    Attributes
    ----------
    record : BinaryIO
        The table, to be written before the block ends.
    stack : ExitStack
        Left in reverse order: the record is entered first, so that it takes its place last.
    """

    def __init__(self, record: str, *, overwrite: bool, system: System) -> None:
        self.stack = contextlib.ExitStack()
        self._overwrite = overwrite
        self._system = system
        self._open: list[BinaryIO] = []
        self._made: dict[str, Identity] = {}
        self._old: tuple[str, ...] = ()
        self._path = record
        self.record = self.file(record)

    def file(self, path: str) -> BinaryIO:
        """Return a new file that will take its place at `path`."""
        file = self.stack.enter_context(replacing(path, overwrite=self._overwrite, system=self._system))
        self._open.append(file)
        self._made[path] = identity(os.fstat(file.fileno()))
        return file

    def remove_afterwards(self, paths: Iterable[str]) -> None:
        """Tell which files of an old bundle go once the new one is in place; what cannot be removed stays."""
        self._old = tuple(sorted(paths))

    def sync(self) -> None:
        """Bring all files to the disk, so that they take their places right after each other."""
        for file in self._open:
            with doing("could not bring the file to the disk", file=str(file.name)):
                file.flush()
                self._system.sync(file.fileno())

    def take_back(self) -> None:
        """Remove files that took their places, unless the record did."""
        if not self._is_in_place(self._path):
            for path, made in self._made.items():
                self._remove(path, only=made)

    def remove_old(self) -> None:
        """Remove what `remove_afterwards` told."""
        for path in self._old:
            self._remove(path, only=None)

    def _is_in_place(self, path: str) -> bool:
        try:
            return identity(os.lstat(path)) == self._made[path]
        except OSError:
            return False

    def _remove(self, path: str, *, only: Identity | None) -> None:
        parent, name = split_target(path)
        with contextlib.suppress(OSError), Directory(parent, descriptors=self._system.descriptors) as place:
            remove_entry(self._system, place, name, only=only)
