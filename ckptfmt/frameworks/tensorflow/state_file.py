"""The ``checkpoint`` file of a directory: which checkpoint is the newest, as TensorFlow writes it down.

A text form of CheckpointState, with absolute paths of the machine that wrote it, or relative ones. A path of
another machine is taken for the file of that name in this directory; one that leads out is refused. Source:
tensorflow/python/checkpoint/checkpoint_management.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError
from ckptfmt.storage.reader import FileReader

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["STATE_FILE", "newest"]

STATE_FILE = "checkpoint"

_LONGEST = 16 << 20
_NEWEST = re.compile(
    rb"""^[ \t]*model_checkpoint_path[ \t]*:[ \t]*(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)')""",
    re.MULTILINE,
)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
_SIMPLE = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def newest(directory: str | os.PathLike[str]) -> Path:
    """Return the prefix of the newest checkpoint of a directory, in that directory.

    A V1 checkpoint in several files is told as a pattern, which is returned as it is.

    Raises
    ------
    FormatError
        The file tells none, or one that is not in the directory.
    NotFoundError, StorageError
        The file cannot be read.
    """
    with FileReader(Path(directory) / STATE_FILE) as reader:
        told = _told(reader)
        return _inside(Path(directory), told, reader.name)


def _told(reader: ByteReader) -> str:
    if reader.size > _LONGEST:
        raise FormatError(f"{reader.size} bytes where a list of checkpoints must be", file=reader.name)
    found = _NEWEST.search(reader.read(0, reader.size))
    if found is None:
        raise FormatError("it tells no model_checkpoint_path", file=reader.name)
    try:
        path = _ESCAPE.sub(_unescaped, found[1] if found[1] is not None else found[2]).decode()
    except UnicodeDecodeError:
        raise FormatError("it tells a path that is not valid Unicode", file=reader.name) from None
    if not path or "\0" in path:
        raise FormatError(f"it tells the path {path!r}", file=reader.name)
    return path


def _unescaped(match: re.Match[bytes]) -> bytes:
    what = match[1]
    if what[:1].isdigit():
        return bytes([int(what, 8) & 0xFF])
    if len(what) > 1:
        return bytes([int(what[1:], 16)])
    return _SIMPLE.get(what, what)


def _inside(directory: Path, told: str, file: str) -> Path:
    """Return where a path that the file tells leads to in the directory."""
    home = os.path.realpath(directory)
    if re.match(r"[A-Za-z]:[\\/]|\\\\", told):  # of a Windows machine
        told = "/" + told.replace("\\", "/")
    if told.startswith("/"):
        below = os.path.relpath(told, home) if told.startswith(home + os.sep) else os.path.basename(told)  # noqa: PTH119 - of another machine's path
        told = below
    parent = os.path.realpath(Path(home, told).parent)
    name = Path(told).name
    if name in {"", os.pardir} or not (parent + os.sep).startswith(home.rstrip(os.sep) + os.sep):
        raise FormatError(f"it tells {told[:200]!r}, which leads out of its directory", file=file)
    return directory / os.path.relpath(Path(parent, name), home)
