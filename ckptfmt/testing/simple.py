"""A small checkpoint directory with known contents, written through `storage` as a save would.

A version number decides every byte, so a reader can tell which version it sees, and that it is whole. It is
no real checkpoint: its commit record holds digests only.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from ckptfmt.storage.commit import Overwrite, Staging
from ckptfmt.storage.files import PAGE, aligned_buffer
from ckptfmt.storage.recovery import locate
from ckptfmt.storage.removal import COMMIT_RECORD

if TYPE_CHECKING:
    import os

    from ckptfmt.storage.system import System

__all__ = ["MixedError", "load_simple", "save_simple"]

_SIZES = {"data-1.bin": 2 * PAGE + 100, "data-2.bin": 3000}


class MixedError(AssertionError):
    """A directory that is not one whole version."""


def _content(name: str, version: int) -> bytes:
    seed = hashlib.blake2b(f"{name} {version}".encode()).digest()
    return (seed * (_SIZES[name] // len(seed) + 1))[: _SIZES[name]]


def save_simple(
    path: str | os.PathLike[str],
    version: int,
    *,
    overwrite: Overwrite = "no",
    system: System | None = None,
) -> None:
    """Write a version: a file by direct I/O, one without, a small one, the commit record last."""
    with Staging(path, overwrite=overwrite, system=system) as staging:
        digests = {}
        for name, size in _SIZES.items():
            data = _content(name, version)
            digests[name] = hashlib.blake2b(data).hexdigest()
            direct = name == "data-1.bin"
            file = staging.create(name, size=size, direct=direct)
            buffer = aligned_buffer(size)
            buffer[:] = data
            file.write_at(PAGE if direct else 0, buffer[PAGE if direct else 0 :])
            if direct:
                file.write_at(0, buffer[:PAGE])
        staging.write_bytes("note.json", f"version {version}".encode())
        record = {"version": version, "digests": digests}
        staging.write_bytes(COMMIT_RECORD, json.dumps(record).encode())
        staging.commit()


def load_simple(path: str | os.PathLike[str]) -> int:
    """Return the version that is there.

    Raises
    ------
    MixedError
        It is not one whole version.
    NotFoundError
        There is none, or it was replaced while being opened.
    """
    with locate(path) as place:
        with place.reader(COMMIT_RECORD) as reader:
            record = json.loads(reader.read(0, reader.size))
        readers = {name: place.reader(name) for name in [*_SIZES, "note.json"]}
        version = int(record["version"])
        for name, reader in readers.items():
            with reader:
                data = reader.read(0, reader.size)
            expected = f"version {version}".encode() if name == "note.json" else _content(name, version)
            if data != expected:
                message = f"{name} is not of version {version}"
                raise MixedError(message)
    return version
