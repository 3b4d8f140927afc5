"""Tables, bundles and V1 checkpoints of TensorFlow: changed as what they are, so that checksums fit again.

An input of a bundle is its table's length, the table, and one file of data. What is read is read twice, and
written and read again, alike.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers import crc32c
from ckptfmt.containers.bundle.messages import decode_entry, encode_entry
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.containers.checkpoint_v1.reader import read_checkpoint_v1
from ckptfmt.containers.protobuf import varint
from ckptfmt.containers.table.reader import Table
from ckptfmt.containers.table.snappy import decompress
from ckptfmt.containers.table.writer import encode_table
from ckptfmt.errors import CkptError
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.tensor import Tensor
from tools.fuzz.mutation import mutate
from tools.fuzz.target import ROOT, Target

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ckptfmt.containers.bundle.entries import BundleEntry

__all__ = ["BUNDLES"]

_GOLDEN = ROOT / "tests" / "golden" / "tensorflow" / "2.21" / "bundles"
_NUMBERS = (0, 1, 2, 3, 7, 21, 29, 33, 64, 101, 255, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64 - 1)
_LENGTH = struct.Struct("<I")


# ---------------------------------------------------------------------- tables


def _items(data: bytes) -> list[tuple[bytes, bytes]]:
    try:
        return [(key, bytes(value)) for key, value in Table(MemoryReader(data)).items()]
    except CkptError:
        return []


def _table_of(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(encode_table(sorted(dict(items).items())))


def _changed_message(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a message with a number put in or over another, or changed as plain bytes."""
    if rng.random() < 0.5 or not data:
        return mutate(data, rng, others)
    start = rng.randrange(len(data))
    return data[:start] + varint(rng.choice(_NUMBERS)) + data[start + rng.choice((0, 1, 1, 2)) :]


def _mutate_table(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed table: an entry changed, renamed, left out or taken from another, checksums right."""
    items = _items(data)
    if not items or rng.random() < 0.15:
        return mutate(data, rng, others)
    at = rng.randrange(len(items))
    key, value = items[at]
    action = rng.random()
    if action < 0.7:
        items[at] = (key, _changed_message(value, rng, [other for _, other in items]))
    elif action < 0.85:
        items[at] = (mutate(key, rng, [b"x"])[:300], value)
    elif action < 0.95:
        del items[at]
    else:
        items += _items(rng.choice(others))
    return _table_of(items)


def _table(data: bytes, _: Path) -> None:
    table = Table(MemoryReader(data))
    items = [(key, bytes(value)) for key, value in table.items()]
    if any(bytes(table.get(key) or b"") != value for key, value in items[:50]):
        raise AssertionError("an entry is not found by its key")
    if _items(_table_of(items)) != items:
        raise AssertionError("a table that was read is not the same when written")


def _table_seeds(_: Path) -> list[bytes]:
    paths = sorted([*_GOLDEN.glob("*.index"), *_GOLDEN.glob("v1-*")])
    return [*(path.read_bytes() for path in paths), _table_of([])]


# ---------------------------------------------------------------------- bundles


def _packed(index: bytes, data: bytes) -> bytes:
    return _LENGTH.pack(len(index)) + index + data


def _unpacked(data: bytes) -> tuple[bytes, bytes]:
    length = _LENGTH.unpack_from(data.ljust(4, b"\0"))[0]
    return data[4 : 4 + length], data[4 + length :]


def _bundle_seeds(place: Path) -> list[bytes]:
    values: dict[str, Tensor | Strings | Opaque] = {
        "w": Tensor.of(np.arange(6, dtype="f4").reshape(2, 3)),
        "s": Strings((2,), (b"a", b"\xff" * 9)),
        "v": Opaque("tensorflow.Variant", {"state": Strings((), (b"abc",))}),
        "e": Tensor.of(np.zeros((2, 0))),
    }
    write_bundle(place / "seed", [Item(name, node) for name, node in values.items()], overwrite=True)
    prefixes = [_GOLDEN / "kinds", _GOLDEN / "sliced", place / "seed"]
    return [
        _packed(
            prefix.with_name(f"{prefix.name}.index").read_bytes(),
            prefix.with_name(f"{prefix.name}.data-00000-of-00001").read_bytes(),
        )
        for prefix in prefixes
    ]


def _mutate_bundle(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed bundle; mostly its table is changed, and checksums of tensors are made right."""
    index, body = _unpacked(data)
    if rng.random() < 0.1:
        return mutate(data, rng, others)
    if rng.random() < 0.15:
        body = mutate(body, rng, [_unpacked(rng.choice(others))[1]])
    else:
        index = _mutate_table(index, rng, [_unpacked(other)[0] for other in others])
    if rng.random() < 0.7:
        index = _with_checksums(index, body)
    return _packed(index, body)


def _with_checksums(index: bytes, body: bytes) -> bytes:
    items = _items(index)
    return _table_of([(key, _with_checksum(key, value, body)) for key, value in items]) if items else index


def _with_checksum(key: bytes, value: bytes, body: bytes) -> bytes:
    try:
        entry = decode_entry(memoryview(value))
    except CkptError:
        return value
    if not key or entry.slices or entry.dtype in (7, 21) or entry.offset + entry.size > len(body):
        return value
    crc = crc32c.masked(body[entry.offset : entry.offset + entry.size])
    return value if crc == entry.crc else encode_entry(replace(entry, crc=crc))


def _content(entries: Mapping[str, BundleEntry]) -> dict[str, object]:
    """Return everything that entries hold."""
    found: dict[str, object] = {}
    for name, entry in entries.items():
        node = entry.node
        if isinstance(node, Tensor):
            found[name] = (node.dtype.name, node.shape, bytes(node.bytes()))
        elif isinstance(node, Strings):
            found[name] = (node.shape, node.values)
        elif isinstance(node, Opaque) and isinstance(state := node.parts["state"], Strings):
            found[name] = (node.name, state.shape, state.values)
    return found


def _bundle(data: bytes, place: Path) -> None:
    index, body = _unpacked(data)
    (place / "input.index").write_bytes(index)
    (place / "input.data-00000-of-00001").write_bytes(body)
    with read_bundle(place / "input") as bundle:
        first = _content(bundle.entries)
        if _content(bundle.entries) != first:
            raise AssertionError("a bundle that was read is not the same when read again")
        if zlib.crc32(data) % 16 == 0:  # files are synced, which takes its time
            nodes = {name: entry.node for name, entry in bundle.entries.items()}
            held = [Item(n, node) for n, node in nodes.items() if isinstance(node, Tensor | Strings | Opaque)]
            write_bundle(place / "again", held, overwrite=True)
            with read_bundle(place / "again") as again:
                if _content(again.entries) != first:
                    raise AssertionError("a bundle that was read is not the same when written")


# ---------------------------------------------------------------------- V1, snappy, checksums


def _v1_seeds(_: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(_GOLDEN.glob("v1-*"))]


def _v1(data: bytes, place: Path) -> None:
    path = place / "input"
    path.write_bytes(data)
    with read_checkpoint_v1(path) as checkpoint:
        first = _content(checkpoint.entries)
        if _content(checkpoint.entries) != first:
            raise AssertionError("a checkpoint that was read is not the same when read again")


def _snappy_seeds(_: Path) -> list[bytes]:
    long = bytes(range(100))
    return [
        varint(13) + b"\x08abc\x15\x03",
        varint(160) + bytes([60 << 2, 99]) + long + bytes([59 << 2 | 2, 70, 0]),
        varint(164) + bytes([61 << 2, 99, 0]) + long + bytes([63 << 2 | 3, 100, 0, 0, 0]),
        b"\x00",
    ]


def _snappy(data: bytes, _: Path) -> None:
    if len(decompress(memoryview(data), most=1 << 20)) > 32 * len(data):
        raise AssertionError("more than so few bytes can stand for")


def _crc_seeds(_: Path) -> list[bytes]:
    return [b"", b"123456789", bytes(range(256)) * 5]


def _crc(data: bytes, _: Path) -> None:
    array = np.frombuffer(data, np.uint8)
    cut = len(data) // 3
    whole = crc32c.update(0, data)
    joined = crc32c.combine(crc32c.update(0, data[:cut]), crc32c.update(0, data[cut:]), len(data) - cut)
    if {joined, crc32c._extend_numpy(0, array)} != {whole}:  # noqa: SLF001 - what is tested
        raise AssertionError("checksums differ")


BUNDLES = (
    Target("table", _table_seeds, _table, _mutate_table),
    Target("bundle", _bundle_seeds, _bundle, _mutate_bundle),
    Target("checkpoint-v1", _v1_seeds, _v1, _mutate_table),
    Target("snappy", _snappy_seeds, _snappy),
    Target("crc32c", _crc_seeds, _crc),
)
