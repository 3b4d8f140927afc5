"""A directory of checkpoints as a list: what each entry is, its step and size, and whether it is complete.

Complete means that every file that the manifest lists is there with its size; whether the bytes are good is
for `verify`. Entries that are no checkpoints are not listed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.errors import CkptError, NotFoundError
from ckptfmt.parallel.opened import open_checkpoint
from ckptfmt.registry import detect
from ckptfmt.registry.table import NATIVE
from ckptfmt.storage.owner import parse_name

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Listed", "list_directory", "stored_size"]

_DATA = re.compile(r"(.+)\.data-[0-9]{5}-of-[0-9]{5}")


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint in a directory.

    Attributes
    ----------
    name : str
    format : str
    step, tensors : int or None
        None where the checkpoint does not say without being read.
    stored : int
        Bytes on the disk.
    complete : bool or None
        Whether all its files are there, with their sizes; None where only its kind is known.
    problem : str or None
        Why it is not complete.
    """

    name: str
    format: str
    step: int | None
    tensors: int | None
    stored: int
    complete: bool | None
    problem: str | None = None


def list_directory(path: str) -> list[Listed]:
    """Return the checkpoints in a directory: by step where they have one, then by name."""
    found = list(_entries(path))
    return sorted(found, key=lambda one: (one.step is not None, one.step or 0, one.name))


def _entries(path: str) -> Iterator[Listed]:
    for where in sorted(Path(path).iterdir()):
        name = where.name
        if parse_name(name) is not None or not (where.is_dir() or where.is_file()):
            continue
        data = _DATA.fullmatch(name)
        if data is not None and where.with_name(f"{data[1]}.index").is_file():
            continue  # of a checkpoint that is listed by its index
        try:
            kind = detect(where).name
        except CkptError:
            continue
        yield _native(where) if kind == NATIVE else Listed(name, kind, None, None, stored_size(where), None)


def _native(where: Path) -> Listed:
    try:
        opened = open_checkpoint(where)
    except CkptError as error:
        return Listed(where.name, NATIVE, None, None, stored_size(where), complete=False, problem=str(error))
    manifest = opened.manifest
    opened.close()
    return Listed(where.name, NATIVE, manifest.step, len(manifest.rows), stored_size(where), complete=True)


def stored_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of a file, or of the files in a flat directory.

    Raises
    ------
    NotFoundError
        There is nothing.
    """
    try:
        if not Path(path).is_dir():
            return Path(path).stat().st_size
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError as error:
        raise NotFoundError("no such file or directory", file=os.fspath(path), errno=error.errno) from error
