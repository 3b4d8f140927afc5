"""The format of a path, told by its content alone: never by its name, never by trying readers in turn.

Read are the head, the tail and, of a zip archive, the central directory; of a directory the names of its
entries. What is recognised but not read by this release is named as what it is, with what to do. FIFOs and
devices are refused before they are read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.hdf5.superblock import find_signature
from ckptfmt.errors import NotFoundError, StorageError, TruncatedError, UnknownFormatError
from ckptfmt.registry.archives import is_tar, tar_kind, zip_kind
from ckptfmt.registry.directories import describe_directory
from ckptfmt.registry.hdf5_kinds import hdf5_kind
from ckptfmt.registry.pickles import pickle_kind
from ckptfmt.registry.signatures import signature_of
from ckptfmt.registry.table import Format, format_named
from ckptfmt.registry.tables import bundle_beside, data_hint, of_prefix, table_kind
from ckptfmt.registry.texts import describe_text, read_json
from ckptfmt.storage.reader import FileReader, open_error
from ckptfmt.storage.recovery import locate

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["detect"]

_HEAD = 4096
_MAX_HEADER = 100_000_000  # of safetensors, since 0.3
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def detect(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file or directory.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    NotFoundError
        There is nothing at `path`.
    StorageError
        It cannot be opened, or is neither a regular file nor a directory.
    TruncatedError
        It is empty, or is the beginning of something that we would read.
    FormatError
        It is an archive that is broken.
    UnknownFormatError
        It is of no format of this release; the message says what it is, as far as can be told.
    """
    shown = os.fspath(path)
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        beside = of_prefix(shown) if isinstance(error, FileNotFoundError) else None
        if beside is None:
            _not_there(shown, error)
        return detect(beside)
    if stat.S_ISDIR(mode):
        with locate(path) as place:
            found = describe_directory(place)
    elif stat.S_ISREG(mode):
        with FileReader(path, mapped=False) as reader:
            found = _describe_file(reader)
    else:
        raise StorageError("is neither a regular file nor a directory", file=shown)
    if isinstance(found, Format):
        return found
    raise UnknownFormatError(f"{shown} is {found[0]}. {found[1]}")


def _not_there(path: str, error: OSError | ValueError) -> NoReturn:
    if isinstance(error, ValueError):  # a NUL in the path
        raise NotFoundError(f"no such file or directory: {error}", file=path) from error
    if not isinstance(error, FileNotFoundError):
        raise open_error(error, path) from error
    locate(path).close()  # tells of an overwrite that was cut short
    raise open_error(error, path) from error


def _describe_file(reader: ByteReader) -> Format | tuple[str, str]:
    size = min(_HEAD, reader.size)
    if not size:
        raise TruncatedError("the file is empty (0 bytes)", file=reader.name, offset=0)
    head, tail = reader.read(0, size), reader.read(reader.size - size, size)
    if bundle_beside(reader.name):
        return format_named("tensorflow")
    if head.startswith(_ZIP):
        return zip_kind(reader, head)
    if _is_safetensors(reader, head):
        return format_named("safetensors")
    kind = pickle_kind(head)
    if kind is not None:
        return kind
    table = table_kind(reader, head, tail)
    if table is not None:
        return table
    sign = signature_of(head, tail)
    if sign is not None:
        return sign.what, sign.advice
    if is_tar(head):
        return tar_kind(reader)
    if find_signature(reader) is not None:
        return hdf5_kind(reader)
    return read_json(reader, head) or describe_text(head) or _unknown(reader, head)


def _is_safetensors(reader: ByteReader, head: bytes) -> bool:
    """Whether the file begins as safetensors do: the length of a header, and its opening brace.

    Raises
    ------
    TruncatedError
        It does, and ends before its header does.
    """
    length = int.from_bytes(head[:8], "little")
    text = head[8:].lstrip(b" ")
    if len(head) < 9 or not 2 <= length <= _MAX_HEADER or not text.startswith(b"{"):
        return False
    if not text[1:].lstrip(b" \t\r\n").startswith((b'"', b"}")) and len(text) > 1:
        return False
    if 8 + length > reader.size:
        message = (
            f"a safetensors file that is cut short after {reader.size} bytes, within its header of {length}:"
            " download or copy it again"
        )
        raise TruncatedError(message, file=reader.name, offset=reader.size)
    return True


def _unknown(reader: ByteReader, head: bytes) -> tuple[str, str]:
    if not any(head):
        what = f"a file whose first {len(head)} bytes are all zero"
        return what, "It looks like space that was reserved and never written: download or copy it again."
    what = f"a file of no format that we know; it begins with the bytes {head[:16].hex(' ')}"
    return what, data_hint(reader.name) or "It may be encrypted, damaged, or of another kind."
