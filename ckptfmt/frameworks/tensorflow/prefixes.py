"""Which bundle a path means: a prefix, one of its files, a directory of checkpoints, or a SavedModel.

A bundle is several files whose names begin alike, and its prefix is the name of none. Files are never looked
for outside the directory that was given. What is missing or was renamed is told with what to do.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, MissingFileError, NotFoundError
from ckptfmt.frameworks.tensorflow.state_file import STATE_FILE, newest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["INDEX", "prefix_of"]

INDEX = ".index"

_DATA = re.compile(r"(?P<prefix>.+)\.data-[0-9]{5}-of-[0-9]{5}")
_SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")
_SHOWN = 5


def prefix_of(path: str | os.PathLike[str]) -> str:
    """Return the prefix of the bundle that a path means.

    Parameters
    ----------
    path : str or os.PathLike
        ``d/ckpt-1``, ``d/ckpt-1.index``, ``d/ckpt-1.data-00000-of-00001``, a directory with a ``checkpoint``
        file, with one bundle, or of a SavedModel.

    Raises
    ------
    MissingFileError
        There is data without its index, or the newest checkpoint of a directory is not there.
    FormatError
        It cannot be told which bundle is meant, or the index has another name than its data.
    NotFoundError, StorageError
        There is nothing.
    """
    given = Path(path)
    if given.is_dir():
        return _in_directory(given)
    if given.name.endswith(INDEX):
        return os.fspath(given)[: -len(INDEX)]
    data = _DATA.fullmatch(given.name)
    if data is not None:
        return _of_data(given, data["prefix"])
    if Path(f"{given}{INDEX}").is_file():
        return os.fspath(given)
    if given.is_file():
        raise FormatError(
            "an index must be called <prefix>.index, for its data is found by that name: rename it",
            file=os.fspath(given),
        )
    raise NotFoundError(f"there is no such checkpoint: no {given.name}{INDEX}", file=os.fspath(given))


def _of_data(given: Path, prefix: str) -> str:
    found = given.with_name(prefix)
    if not Path(f"{found}{INDEX}").is_file():
        message = f"the data of a checkpoint; {prefix}{INDEX}, which says what is in it, is not there"
        raise MissingFileError(message, file=os.fspath(given))
    return os.fspath(found)


def _in_directory(directory: Path) -> str:
    if any((directory / name).is_file() for name in _SAVED_MODEL):
        return _of_saved_model(directory)
    if (directory / STATE_FILE).is_file():
        prefix = newest(directory)
        if not Path(f"{prefix}{INDEX}").is_file():
            message = f"its newest checkpoint is {prefix.name}, of which there is no {prefix.name}{INDEX}"
            raise MissingFileError(message, file=os.fspath(directory / STATE_FILE))
        return os.fspath(prefix)
    names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(INDEX))
    return os.fspath(directory / _only(directory, names).removesuffix(INDEX))


def _of_saved_model(directory: Path) -> str:
    prefix = directory / "variables" / "variables"
    if not Path(f"{prefix}{INDEX}").is_file():
        message = "a SavedModel without variables/variables.index: it has none, or they were not copied"
        raise MissingFileError(message, file=os.fspath(directory))
    return os.fspath(prefix)


def _only(directory: Path, names: Sequence[str]) -> str:
    if not names:
        raise NotFoundError(f"there is no index (*{INDEX}) in it", file=os.fspath(directory))
    if len(names) > 1:
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        message = f"several checkpoints and no {STATE_FILE!r} file that tells the newest: give one of {shown}"
        raise FormatError(message, file=os.fspath(directory))
    return names[0]
