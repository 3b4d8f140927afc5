"""What TensorFlow's files are: sorted tables told by their end and first entry, and what lies beside them.

A checkpoint may be several files whose names begin alike. Only its index tells what it is: data is bare
numbers, and the prefix that people name is no file at all. So what lies beside a path is looked at by name,
and counts only where it is a table itself.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.table.reader import Table
from ckptfmt.errors import CkptError, FormatError, TruncatedError
from ckptfmt.registry.table import Format, format_named
from ckptfmt.storage.reader import FileReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptfmt.storage.reader import ByteReader

__all__ = ["INDEX", "bundle_beside", "data_hint", "of_prefix", "single_bundle", "table_kind"]

INDEX = ".index"

_TABLE_END = bytes.fromhex("57fb808b247547db")
_BUNDLE_HEADER = (b"\x08", b"\x10", b"\x1a")
_DATA = re.compile(r"(?P<prefix>.+)\.data-[0-9]{5}-of-[0-9]{5}")
_SET = re.compile(r"-[0-9]{5}-of-[0-9]{5}")


def table_kind(reader: ByteReader, head: bytes, tail: bytes) -> Format | tuple[str, str] | None:
    """Return what a table is by the value of its first, empty key, or None for any other file.

    Raises
    ------
    TruncatedError
        It begins as the index of a checkpoint, is called so, and does not end as a table.
    """
    if not tail.endswith(_TABLE_END):
        _refuse_cut(reader, head)
        return None
    value = _first_value(head) or _first_unpacked(reader)
    if value.startswith(b"\n"):  # SavedTensorSlices.meta
        return format_named("tensorflow-v1")
    if value.startswith(_BUNDLE_HEADER):  # BundleHeaderProto
        return format_named("tensorflow")
    return (
        "a sorted table, as TensorFlow and LevelDB write",
        "It is no checkpoint that we know, or it is damaged.",
    )


def _refuse_cut(reader: ByteReader, head: bytes) -> None:
    if reader.name.endswith(INDEX) and _first_value(head).startswith(_BUNDLE_HEADER):
        message = f"the index of a TensorFlow checkpoint that is cut short after {reader.size} bytes"
        raise TruncatedError(f"{message}: copy it again", file=reader.name, offset=reader.size)


def _first_value(head: bytes) -> bytes:
    """Return the beginning of the value of a table's first key if that key is empty."""
    if head[:2] != b"\x00\x00":
        return b""
    at = 2
    while at < min(len(head), 12) and head[at] & 0x80:
        at += 1
    return head[at + 1 : at + 9]


def _first_unpacked(reader: ByteReader) -> bytes:
    """Return the same of a table whose blocks are compressed."""
    try:
        key, value = next(iter(Table(reader).items()), (b"x", memoryview(b"")))
    except FormatError:
        return b""
    return b"" if key else bytes(value[:8])


def of_prefix(path: str) -> str | None:
    """Return a file of the checkpoint whose prefix a path is, where no file is called so."""
    if Path(path + INDEX).is_file():
        return path + INDEX
    stem = Path(path)
    try:
        names = sorted(os.listdir(stem.parent))  # noqa: PTH208 - names are all that is wanted
    except (OSError, ValueError):
        return None
    for name in names:
        if name.startswith(stem.name) and _SET.fullmatch(name[len(stem.name) :]):
            return os.fspath(stem.with_name(name))
    return None


def bundle_beside(path: str) -> bool:
    """Whether a path is called as data of a checkpoint, and its index lies beside it."""
    found = _DATA.fullmatch(path)
    if found is None or not Path(found["prefix"] + INDEX).is_file():
        return False
    try:
        with FileReader(found["prefix"] + INDEX, mapped=False) as index:
            end = len(_TABLE_END)
            return index.size >= end and index.read(index.size - end, end) == _TABLE_END
    except CkptError:
        return False


def data_hint(path: str) -> str | None:
    """Return what to do with a file that is called like data of a checkpoint and is without its index."""
    stem, mark, _ = Path(path).name.rpartition(".data")
    if not mark or not stem:
        return None
    return (
        f"By its name it is the data of a TensorFlow checkpoint: copy {stem}{INDEX} beside it, which says"
        f" what is in it, and call it {stem}.data-00000-of-00001 if it is the only one."
    )


def single_bundle(names: Iterable[str]) -> bool:
    """Whether a directory holds one index, and data of its name."""
    names = list(names)
    found = [name.removesuffix(INDEX) for name in names if name.endswith(INDEX)]
    data = {match["prefix"] for match in map(_DATA.fullmatch, names) if match}
    return len(found) == 1 and found[0] in data
