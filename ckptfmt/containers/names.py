"""Names of files that a file tells: one plain component each, that leads to nowhere else.

What names other files may be hostile, and may have been written on another system: a name that any system
would take for more than the name of a file beside it is refused, and so is a link that leaves the directory.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ckptfmt.errors import FormatError

__all__ = ["check_component", "contained_path"]

_MAX_NAME = 255
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(\..*)?", re.IGNORECASE)


def check_component(name: str, *, file: str) -> None:
    """Raise FormatError unless a name that `file` tells is one plain component on every system.

    No separators of any system, no drive, no ``..``, no control characters, no device of Windows, no more
    than 255 bytes of UTF-8, no space or dot at the end (Windows drops them).
    """
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = _MAX_NAME + 1
    bad = (
        not 0 < length <= _MAX_NAME or _FORBIDDEN.search(name) or name[-1] in ". " or _DEVICES.fullmatch(name)
    )
    if bad:
        raise FormatError(f"{name[:80]!r} cannot be the name of a shard", file=file)


def contained_path(directory: Path, name: str, *, file: str) -> Path:
    """Return where a checked name leads, links followed.

    Raises
    ------
    FormatError
        It is a link that leaves the directory. The cache of huggingface_hub is understood: there a link in
        ``snapshots/<revision>`` may lead to ``blobs`` of the same repository.
    """
    home = Path(os.path.realpath(directory))
    path = Path(os.path.realpath(home / name))
    allowed = {home}
    if home.parent.name == "snapshots":
        allowed.add(home.parent.parent / "blobs")
    if path.parent not in allowed:
        raise FormatError(f"{name!r} is a link that leaves its directory", file=file)
    return path
