"""Archives of arrays as ``numpy.savez`` writes them: a zip of npy members, read strictly.

The name of an array is that of its member without ``.npy``; it is a name, never a path. Members without that
ending are bytes, as numpy has it. Opening reads headers only; elements are verified when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

from ckptfmt.containers.npy.header import decode_header, encode_header
from ckptfmt.containers.npy.values import node_of
from ckptfmt.containers.zip.directory import MAX_ENTRIES
from ckptfmt.containers.zip.writer import ZipWriter
from ckptfmt.errors import ConversionError, FormatError, LimitError, TruncatedError
from ckptfmt.storage.reader import MemoryReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ckptfmt.containers.npy.header import NpyHeader
    from ckptfmt.containers.zip.archive import ZipArchive
    from ckptfmt.containers.zip.members import Member
    from ckptfmt.tree.nodes import Tree

__all__ = ["NpzMember", "NpzWriter", "read_members"]

_SUFFIX = ".npy"
_PEEKED = 4096
_MAX_BYTES = 64 << 20
_MAX_NAME = 65_535 - len(_SUFFIX)


@dataclass(frozen=True, slots=True)
class NpzMember:
    """One array of an archive.

    Attributes
    ----------
    name : str
        Without ``.npy``.
    descr : str
        Its type in numpy's notation; ``"structure"`` for members of a structure, ``"bytes"`` for no array.
    shape : tuple of int
    node : Tree
        Its elements; a tensor is read when asked.
    """

    name: str
    descr: str
    shape: tuple[int, ...]
    node: Tree


def read_members(archive: ZipArchive) -> Iterator[NpzMember]:
    """Yield the arrays of an archive in the order of its directory.

    Raises
    ------
    FormatError, TruncatedError, LimitError, UnsupportedVersionError
        As for `ckptfmt.containers.npy.values.node_of` and members of archives; also for two members that
        numpy would give one name.
    """
    names: set[str] = set()
    for stored in archive.entries:
        name = stored.removesuffix(_SUFFIX)
        if name in names:
            raise FormatError(f"two members are called {name!r}", file=archive.name)
        names.add(name)
        member = archive.open(stored)
        if stored.endswith(_SUFFIX):
            header = _header(member)
            descr = header.descr if isinstance(header.descr, str) else "structure"
            yield NpzMember(name, descr, header.shape, node_of(member, header))
        else:
            yield NpzMember(name, "bytes", (), _bytes(member))


def _header(member: Member) -> NpyHeader:
    """Return the header of a member; small members are verified as a whole, the others when they are read."""
    if member.size <= _PEEKED:
        return decode_header(MemoryReader(member.read(0, member.size), member.name))
    try:
        return decode_header(MemoryReader(member.peek(_PEEKED), member.name))
    except TruncatedError:
        return decode_header(member)


def _bytes(member: Member) -> bytes:
    if member.size > _MAX_BYTES:
        raise LimitError(f"a member of {member.size} bytes that is no array", file=member.name)
    return member.read(0, member.size)


class NpzWriter:
    """Writes an archive front to back; `close` ends it.

    Parameters
    ----------
    file : binary file
        Empty, seekable and writable. Not closed here.
    compressed : bool
        Whether members are deflated where that helps.
    """

    def __init__(self, file: BinaryIO, *, compressed: bool = False) -> None:
        self._zip = ZipWriter(file)
        self._compressed = compressed
        self._count = 0

    def add(
        self,
        name: str,
        descr: str,
        shape: tuple[int, ...],
        nbytes: int,
        pieces: Callable[[], Iterable[bytes | memoryview]],
        *,
        stored: bool = False,
    ) -> None:
        """Write an array.

        Parameters
        ----------
        name : str
            Without ``.npy``.
        descr : str
            A simple type in numpy's notation.
        shape : tuple of int
        nbytes : int
            What the elements take.
        pieces : callable
            Gives the elements' bytes, C order, in the byte order of `descr`; may be called twice.
        stored : bool
            Never deflate this one.

        Raises
        ------
        ConversionError
            Zip has no room for the name, or no reader of ours for so many members.
        """
        self._count += 1
        if self._count > MAX_ENTRIES:
            raise ConversionError(f"an NPZ file of more than {MAX_ENTRIES} arrays would not be read")
        if len(name.encode()) > _MAX_NAME:
            raise ConversionError(f"the name {name[:80]!r}... is too long for an NPZ file")
        header = encode_header(descr, shape)

        def everything() -> Iterable[bytes | memoryview]:
            return chain((header,), pieces())

        size = len(header) + nbytes
        if self._compressed and not stored:
            self._zip.add_deflated(name + _SUFFIX, size, everything)
        else:
            self._zip.add(name + _SUFFIX, size, everything())

    def close(self) -> None:
        """Write the directory of the archive."""
        self._zip.close()
