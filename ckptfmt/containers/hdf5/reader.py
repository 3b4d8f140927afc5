"""An HDF5 file that is open for reading: its groups, its datasets by name, and what is odd about it.

Everything but elements is read once, when the file is opened; the library has let go of it by then. Names are
those of the file, joined by ``/``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, final

from ckptfmt.containers.hdf5.budget import Budget
from ckptfmt.containers.hdf5.library import opened
from ckptfmt.containers.hdf5.superblock import read_superblock
from ckptfmt.containers.hdf5.walk import Dataset, Group, walk
from ckptfmt.errors import LimitError
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from ckptfmt.storage.reader import ByteReader

__all__ = ["Hdf5File"]

_MAX_DEPTH = 512


@final
class Hdf5File:
    """An HDF5 file; a context manager that closes it.

    Parameters
    ----------
    source : str, os.PathLike or ByteReader
        A path, or a reader of a file or of a member of an archive. A reader stays open.

    Attributes
    ----------
    name : str
        What it is called in errors.
    root : Group
    datasets : dict of str to Dataset
        All datasets by all their names (``"group/dataset"``), in the order of the names' bytes within each
        group. A dataset with several names is one object: a tie.
    groups : dict of str to Group
        All groups likewise; the root is ``""``.
    findings : tuple of Finding
        ``link-cycle``, ``attribute-unread``, ``enumeration``.

    Raises
    ------
    UnsupportedVersionError
        Links that leave the file, virtual datasets, elements in other files, filters, references and types
        that are not read; the error names the object.
    FormatError, TruncatedError, LimitError
        The file is damaged, or lies about sizes.
    NotFoundError, StorageError
        It cannot be opened.
    """

    def __init__(self, source: str | os.PathLike[str] | ByteReader) -> None:
        self._owned: FileReader | None = None
        reader: ByteReader
        if isinstance(source, str | os.PathLike):
            reader = self._owned = FileReader(source)
        else:
            reader = source
        self.name = reader.name
        self.size = reader.size
        try:
            base = read_superblock(reader).offset
            with opened(reader, base) as file:
                self.root, findings = walk(file, reader, base)
            self.datasets: dict[str, Dataset] = {}
            self.groups: dict[str, Group] = {}
            self.findings = (*findings, *self._list(Budget(reader)))
        except BaseException:
            self.close()
            raise

    def _list(self, budget: Budget) -> Iterator[Finding]:
        """List everything by all its names; yield a finding for each group that lies within itself."""
        stack: list[tuple[str, Group, frozenset[int]]] = [("", self.root, frozenset())]
        while stack:
            path, group, above = stack.pop()
            self.groups[path] = group
            if len(above) > _MAX_DEPTH:
                raise LimitError(f"groups deeper than {_MAX_DEPTH}", file=self.name, tensor=path[:400])
            around = above | {id(group)}
            for name, member in reversed(group.members.items()):
                below = f"{path}/{name}" if path else name
                budget.name(below)
                if isinstance(member, Dataset):
                    self.datasets[below] = member
                elif id(member) in around:
                    message = f"a link back to the group {member.path or '/'!r} around it: not followed"
                    yield Finding("link-cycle", below, Severity.INFO, message, file=self.name)
                else:
                    stack.append((below, member, around))
        self.datasets = dict(sorted(self.datasets.items(), key=lambda item: item[0].encode().split(b"/")))

    def close(self) -> None:
        """Close the file, if it was opened here. Arrays handed out before keep their bytes."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Hdf5File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
