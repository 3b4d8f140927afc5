"""The header of a shard: section 9.1 of ``spec/ckptfmt-1.0.md``.

A raw shard's header is that of a safetensors file. Its length is known from the plan, its root only when
all digests are, so data is written first and headers last; a reader builds it again and compares.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptfmt.containers import safetensors
from ckptfmt.containers.safetensors import Entry, encode_entry, encode_metadata
from ckptfmt.errors import ReplacedError
from ckptfmt.format.constants import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptfmt.tree.dtypes import DType

__all__ = ["check_owner", "encode_header", "header_entry", "header_size"]

_TYPES = {
    name: name.upper()
    for name in ("bool", "u8", "i8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64")
} | {"f8_e4m3fn": "F8_E4M3", "f8_e5m2": "F8_E5M2"}
_OWNER = re.compile(
    rb'\{"__metadata__":\{"ckptfmt\.root":"([0-9a-f]{64})","ckptfmt\.shard":"(\d{1,9}/\d{1,9})","format":"pt"\}'
)


def header_entry(name: str, dtype: DType, shape: tuple[int, ...], begin: int, nbytes: int) -> bytes:
    """Return the text of the member of a raw shard's header for one tensor."""
    kind = _TYPES.get(dtype.name)
    if kind is None:
        kind, shape = "U8", (nbytes,)
    return encode_entry(Entry(name, kind, shape, begin, begin + nbytes))


def _owner(root: str, index: int, count: int) -> dict[str, str]:
    return {"ckptfmt.root": root, "ckptfmt.shard": f"{index + 1}/{count}", "format": "pt"}


def header_size(entries_size: int, index: int, count: int) -> int:
    """Return the length of a header whose entries take `entries_size` bytes, a comma before each included."""
    owner = len(encode_metadata(_owner("0" * 64, index, count)))
    return safetensors.header_size([owner + entries_size], align=ALIGNMENT)


def encode_header(root: bytes, index: int, count: int, entries: Iterable[bytes]) -> bytes:
    """Return the header of shard `index` (from 0) of `count`."""
    owner = encode_metadata(_owner(root.hex(), index, count))
    return safetensors.assemble_header([owner, *entries], align=ALIGNMENT)


def check_owner(header: bytes, root: bytes, index: int, count: int, *, file: str) -> None:
    """Raise ReplacedError if a header names another checkpoint or another shard; a garbled one passes."""
    match = _OWNER.match(header, 8)
    if match is None:
        return
    if match[1].decode() != root.hex():
        raise ReplacedError(
            f"the file belongs to checkpoint {match[1].decode()}, not to {root.hex()}",
            rule="R-043",
            file=file,
        )
    if match[2].decode() != f"{index + 1}/{count}":
        raise ReplacedError(
            f"the file is shard {match[2].decode()} of its checkpoint, not {index + 1}/{count}",
            rule="R-043",
            file=file,
        )
