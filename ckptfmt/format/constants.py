"""The numbers and names of major version 1; every other module takes them from here."""

from __future__ import annotations

import re

__all__ = [
    "ALIGNMENT",
    "CHUNK",
    "CHUNKS",
    "CODECS",
    "CODED",
    "DEFAULT_TARGET",
    "DIGEST",
    "ENTRY_ROOM",
    "MANIFEST",
    "MAX_BYTES",
    "MAX_HEADER",
    "MAX_MANIFEST",
    "MAX_PATH",
    "MAX_ROWS",
    "PROVENANCE",
    "VERSION",
    "extra_name_allowed",
    "shard_name",
]

VERSION = (1, 0)
CODED = "coded"
"""The requirement of a checkpoint with coded shards."""

CHUNK = 4 << 20
"""Bytes of canonical bytes in a chunk."""
DIGEST = 32
"""Bytes of a digest."""
ALIGNMENT = 4096
"""The data section of a shard begins at a multiple of this."""
DEFAULT_TARGET = 4 << 30
"""Bytes of data that a shard aims at, unless there would be more than some 512 of them."""

MAX_MANIFEST = 1 << 30
MAX_HEADER = 16 << 20
"""Bytes of members at which a shard is closed."""
ENTRY_ROOM = 64 << 10
"""Bytes that a header may have beyond that: its first member, and the last that was let in."""
MAX_PATH = 4096
MAX_ROWS = 1 << 24
MAX_BYTES = 2**53

MANIFEST = "manifest.json"
PROVENANCE = "provenance.json"
CHUNKS = "chunks.bin"

CODECS = ("raw", "zstd", "planes+zstd")

_EXTRA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_RESERVED = re.compile(
    r"manifest\.json|provenance\.json|chunks\.bin|data-\d+-of-\d+\.(safetensors|ckz)", re.IGNORECASE
)


def extra_name_allowed(name: str) -> bool:
    """Whether an extra file may have this name: section 7, rule R-004."""
    return _EXTRA.fullmatch(name) is not None and _RESERVED.fullmatch(name) is None


def shard_name(index: int, count: int, *, coded: bool) -> str:
    """Return the file name of shard `index` (from 0) of `count`."""
    return f"data-{index + 1:05d}-of-{count:05d}.{'ckz' if coded else 'safetensors'}"
