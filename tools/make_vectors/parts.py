"""What the cases are put together from: tensors, forms, hand-made Zstandard frames, base checkpoints."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from blake3 import blake3

from .writer import CHUNK, Draft, Tensor, as_form, draft, sealed
from .writer import canonical as canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .trees import JSON
    from .writer import Files

__all__ = [
    "change_header",
    "changed",
    "coded_draft",
    "double",
    "f32",
    "i64",
    "long_draft",
    "mapping",
    "members",
    "other_tree",
    "packed",
    "planes",
    "put",
    "repeat_coder",
    "reseal",
    "rle_frame",
    "text_of",
    "tree_files",
    "two",
    "wide_draft",
]

PLANE_WIDTHS = {"i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "c64": 4}
PLANE_WIDTHS |= {"i64": 8, "u64": 8, "f64": 8, "c128": 8}


def f32(*values: float, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a tensor of single floats, by default of one dimension."""
    return Tensor("f32", (len(values),) if shape is None else shape, struct.pack(f"<{len(values)}f", *values))


def i64(*values: int, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a tensor of 64-bit integers, by default of one dimension."""
    return Tensor("i64", (len(values),) if shape is None else shape, struct.pack(f"<{len(values)}q", *values))


def packed(kind: str, bits: int, *values: int) -> Tensor:
    """Return a tensor of packed integers: section 4.2."""
    number = sum(value << (bits * index) for index, value in enumerate(values))
    return Tensor(kind, (len(values),), number.to_bytes(-(-len(values) * bits // 8), "little"))


def mapping(**entries: object) -> list[object]:
    """Return the form of a map with names as keys."""
    return ["map", [[key, node] for key, node in entries.items()]]


def double(value: float) -> list[object]:
    """Return the form of a float."""
    return ["float", struct.pack("<d", value).hex()]


def two() -> Draft:
    """Return a checkpoint of a map, a number and two tensors in one shard."""
    return draft(mapping(w=f32(1, 2, 3, 4, shape=(2, 2)), n=i64(5, 6, 7), lr=double(0.1)))


def wide_draft() -> Draft:
    """Return a checkpoint of two shards of the same size."""
    return draft(mapping(a=f32(1, 2), b=f32(3, 4)), target=8)


def rle_frame(byte: int, size: int, *, claim: int | None = None, descriptor: int = 0xA0) -> bytes:
    """Return a Zstandard frame of one byte repeated, made by hand: RFC 8878, sections 3.1.1.1 and 3.1.1.2.

    Parameters
    ----------
    byte, size : int
        What it decodes to.
    claim : int, optional
        The content size that it claims to have, if not `size`.
    descriptor : int
        The frame header descriptor: a single segment with 4 bytes of content size.
    """
    lengths = [min(128 << 10, size - begin) for begin in range(0, size, 128 << 10)]
    blocks = [
        (length << 3 | 1 << 1 | (index == len(lengths) - 1)).to_bytes(3, "little") + bytes([byte])
        for index, length in enumerate(lengths)
    ]
    content_size = (size if claim is None else claim).to_bytes(4, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + content_size + b"".join(blocks)


def repeat_coder(chunk: bytes, _: str) -> bytes:
    """Store a chunk of one repeated byte as a frame made by hand, and any other as it is."""
    return rle_frame(chunk[0], len(chunk)) if len(chunk) > 16 and len(set(chunk)) == 1 else chunk


def planes(chunk: bytes, kind: str) -> bytes:
    """Section 9.3: group the bytes of equal position."""
    width = PLANE_WIDTHS.get(kind, 1)
    return b"".join(chunk[index::width] for index in range(width))


def coded_draft(**entries: Tensor) -> Draft:
    """Return a checkpoint of one coded shard whose frames do not depend on a library."""
    return draft(mapping(**entries), codec="zstd", coder=repeat_coder)


def long_draft() -> Draft:
    """Return a coded checkpoint of a tensor of three chunks and one of a single chunk."""
    return coded_draft(
        long=Tensor("u8", (2 * CHUNK + 4096,), bytes([7]) * (2 * CHUNK + 4096)),
        short=Tensor("u8", (256,), bytes([9]) * 256),
    )


def tree_files(tree: object) -> Files:
    """Return the files of a checkpoint of any tree."""
    return draft(tree).seal()


def members(files: Mapping[str, bytes]) -> dict[str, JSON]:
    """Return the members of a manifest, without `self`."""
    value: dict[str, JSON] = json.loads(files["manifest.json"])
    del value["self"]
    return value


def reseal(files: Files, change: Callable[[dict[str, JSON]], object]) -> Files:
    """Return the files with a changed manifest."""
    value = members(files)
    change(value)
    return files | {"manifest.json": sealed(canonical_json(value))}


def put(where: JSON, *steps: JSON) -> None:
    """Set what lies at a path of member names and indices; the last argument is the new value."""
    *path, last, value = steps
    for step in path:
        if isinstance(where, dict):
            where = where[str(step)]
        elif isinstance(where, list) and isinstance(step, int):
            where = where[step]
    if isinstance(where, dict):
        where[str(last)] = value
    elif isinstance(where, list) and isinstance(last, int):
        where[last] = value


def changed(files: Files, *steps: JSON) -> Files:
    """Return the files with one value of the manifest changed, as `put` says."""
    return reseal(files, lambda value: put(value, *steps))


def other_tree(tree: object) -> Files:
    """Return a checkpoint without tensors whose tree is replaced by any form; its root is of another."""
    return changed(draft(None).seal(), "tree", as_form(tree, []))


def text_of(files: Files, change: Callable[[bytes], bytes]) -> Files:
    """Return the files with a changed text of the manifest, sealed again."""
    body = files["manifest.json"]
    return files | {"manifest.json": sealed(change(body[: body.rindex(b',"self"')] + b"}"))}


def change_header(files: Files, name: str, change: Callable[[bytes], bytes]) -> Files:
    """Return the files with another header text in a shard, and its digest and size in the manifest."""
    data = files[name]
    length = int.from_bytes(data[:8], "little")
    text = change(data[8 : 8 + length].rstrip(b" "))
    text += b" " * (-(8 + len(text)) % 4096)
    header = len(text).to_bytes(8, "little") + text
    found = files | {name: header + data[8 + length :]}

    def update(value: dict[str, JSON]) -> None:
        rows = value["shards"]
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, list) and row[0] == name:
                row[1:] = [len(found[name]), blake3(header).hexdigest()]

    return reseal(found, update)
