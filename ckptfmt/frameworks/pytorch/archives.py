"""What PyTorch's zip archives have in common: one folder, a version, a byte order.

Facts from ``caffe2/serialize/inline_container.cc``. Tensors and programs
are read elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, UnsupportedVersionError

if TYPE_CHECKING:
    from ckptfmt.containers.zip.archive import ZipArchive

__all__ = ["check_version", "is_big_endian", "root_of"]

_NEWEST_VERSION = 10  # kMaxSupportedFileFormatVersion of caffe2/serialize/versions.h
_RECORD_LIMIT = 64


def root_of(archive: ZipArchive) -> str:
    """Return the one folder that all members lie in.

    Raises
    ------
    FormatError
        They do not, or names differ in case only.
    """
    roots = {name.partition("/")[0] if "/" in name else "" for name in archive.entries}
    if len(roots) != 1 or "" in roots:
        shown = ", ".join(sorted(roots)[:3]) or "no members"
        message = f"not a file of torch.save: its members do not lie in one folder ({shown})"
        raise FormatError(message, file=archive.name)
    if len({name.lower() for name in archive.entries}) != len(archive.entries):
        message = "members whose names differ in case only: PyTorch takes them for one"
        raise FormatError(message, file=archive.name)
    return roots.pop()


def check_version(archive: ZipArchive, member: str) -> None:
    """Raise UnsupportedVersionError unless the member that has the version has one that is known."""
    version = _record(archive, member).strip()
    if not version.isdigit():
        raise FormatError(f"malformed version {version!r}", file=archive.name)
    if not 1 <= int(version) <= _NEWEST_VERSION:
        message = f"version {int(version)}; 1 to {_NEWEST_VERSION} are read"
        raise UnsupportedVersionError(message, file=archive.name)


def is_big_endian(archive: ZipArchive, root: str) -> bool:
    """Return the byte order of the storages; files without a record of it are little-endian."""
    name = f"{root}/byteorder"
    order = _record(archive, name) if name in archive.entries else b"little"
    if order not in (b"little", b"big"):
        raise FormatError(f"unknown byte order {order!r}", file=archive.name)
    return order == b"big"


def _record(archive: ZipArchive, name: str) -> bytes:
    member = archive.open(name)
    if member.size > _RECORD_LIMIT:
        raise FormatError(f"a record of {member.size} bytes where a word must be", file=member.name)
    return member.read(0, member.size)
