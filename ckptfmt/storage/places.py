"""What kind of file system holds a path, as far as reading it needs to know.

On a network file system a memory mapping is only as good as the server's file stays, so readers copy there.
What else a place can do (direct I/O, exchange) is found out by doing it: see `files` and `commit`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ckptfmt.storage import libc

__all__ = ["Place", "place_of"]

# f_type of statfs(2), from <linux/magic.h> and the file systems' own headers.
_NETWORK = {
    0x0000517B: "smb",
    0x00006969: "nfs",
    0x00C36400: "ceph",
    0x01021997: "9p",
    0x01161970: "gfs2",
    0x0BD00BD0: "lustre",
    0x18031977: "wekafs",
    0x19830326: "beegfs",
    0x20030528: "orangefs",
    0x47504653: "gpfs",
    0x5346414F: "afs",
    0x65735546: "fuse",
    0x73757245: "coda",
    0x7461636F: "ocfs2",
    0xAAD7AAEA: "panfs",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
}
_LOCAL = {
    0x01021994: "tmpfs",
    0x0000EF53: "ext4",
    0x2FC12FC1: "zfs",
    0x58465342: "xfs",
    0x794C7630: "overlay",
    0x858458F6: "ramfs",
    0x9123683E: "btrfs",
    0xF2F52010: "f2fs",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A file system.

    Parameters
    ----------
    file_system : str
        Its name, or its number in hexadecimal, or "unknown" where the system does not tell.
    network : bool
        Whether other machines may change its files: True for those known to be shared, FUSE included.
    """

    file_system: str
    network: bool


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return the place of an existing path; "unknown" and local where the system does not tell."""
    text = os.fspath(path)
    if os.name == "nt" and str(Path(text).absolute()).startswith("\\\\"):
        return Place("unc", network=True)
    try:
        number = libc.file_system_type(text)
    except OSError:
        return Place("unknown", network=False)
    return place_of_type(number)


def place_of_type(number: int) -> Place:
    """Return the place that statfs' ``f_type`` stands for."""
    network = _NETWORK.get(number)
    return Place(network or _LOCAL.get(number, hex(number)), network=network is not None)
