"""Tables: what is written is read, damage is found wherever it is, lies of the index are refused."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfmt.containers.crc32c import masked
from ckptfmt.containers.protobuf import varint
from ckptfmt.containers.table.reader import MAGIC, Table
from ckptfmt.containers.table.writer import encode_table
from ckptfmt.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedVersionError,
)
from ckptfmt.storage.reader import FileReader, MemoryReader

if TYPE_CHECKING:
    from pathlib import Path

SMALL = [(b"", b"head"), (b"a", b"1"), (b"ab", b""), (b"abc/d", b"x" * 300), (b"b\xff\x00", b"2")]


def table_of(items: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(encode_table(items))


def items_of(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, bytes(value)) for key, value in Table(MemoryReader(data, "t")).items()]


def block_of(entries: bytes, restarts: list[int], kind: int = 0, count: int | None = None) -> bytes:
    """A block with its trailer, from entries as they stand."""
    places = struct.pack(f"<{len(restarts)}I", *restarts)
    places += struct.pack("<I", len(restarts) if count is None else count)
    data = entries + places + bytes([kind])
    return data + struct.pack("<I", masked(data))


def entry(key: bytes, value: bytes, shared: int = 0) -> bytes:
    return varint(shared) + varint(len(key)) + varint(len(value)) + key + value


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def with_index(blocks: list[bytes], index: list[tuple[bytes, bytes]] | None = None) -> bytes:
    """A table of blocks with their trailers; by default each is listed under ever larger keys."""
    body, listed = b"", []
    for number, block in enumerate(blocks):
        listed.append((bytes([0xF0 + number]), handle(len(body), len(block) - 5)))
        body += block
    rows = listed if index is None else index
    made = b"".join(entry(key, value) for key, value in rows)
    places = [sum(len(entry(*row)) for row in rows[:number]) for number in range(len(rows))]
    index_block = block_of(made, places or [0])
    footer = handle(0, 0) + handle(len(body), len(index_block) - 5)
    return body + index_block + footer.ljust(40, b"\0") + MAGIC


@given(st.dictionaries(st.binary(max_size=9), st.binary(max_size=40), max_size=60))
def test_what_is_written_is_read(items: dict[bytes, bytes]) -> None:
    ordered = sorted(items.items())
    data = table_of(ordered)
    assert items_of(data) == ordered
    table = Table(MemoryReader(data))
    for key, value in ordered:
        assert bytes(table.get(key) or b"") == value
    assert table.get(b"no such key, longer than any") is None


def test_blocks_are_as_large_as_tensorflow_makes_them() -> None:
    items = [(b"key/%06d" % number, bytes(90)) for number in range(9000)]
    table = Table(MemoryReader(table_of(items)))
    sizes = [place.size for _, place in table.blocks]
    assert len(sizes) == 4
    assert all(262144 <= size < 262144 + 200 for size in sizes[:-1])
    assert [(key, bytes(value)) for key, value in table.items()] == items
    assert bytes(table.get(b"key/008999") or b"") == bytes(90)


def test_a_table_cut_anywhere_is_refused() -> None:
    data = table_of(SMALL)
    for length in range(len(data)):
        with pytest.raises(FormatError) as caught:
            items_of(data[:length])
        assert caught.value.file == "t"


def test_a_file_shorter_than_a_footer_is_told_so() -> None:
    with pytest.raises(TruncatedError, match="20 bytes are too short for a table"):
        items_of(table_of(SMALL)[:20])


def test_a_bit_that_flipped_is_found_or_changes_nothing() -> None:
    data = table_of(SMALL)
    found = 0
    for place in range(len(data) * 8):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            assert items_of(bytes(changed)) == SMALL  # the empty block and the padding are read by nobody
        except FormatError:
            found += 1
    assert found >= (len(data) - 13 - 40) * 8


def test_a_flipped_bit_of_data_is_a_checksum_error_that_says_where() -> None:
    changed = bytearray(table_of(SMALL))
    changed[8] ^= 1
    with pytest.raises(ChecksumError, match="of a block") as caught:
        items_of(bytes(changed))
    assert (caught.value.file, caught.value.offset) == ("t", 0)


HOSTILE = {
    "block beyond the file": (with_index([], [(b"z", handle(0, 1 << 40))]), TruncatedError, "a block of"),
    "block that wraps around": (with_index([], [(b"z", handle(2**64 - 1, 9))]), TruncatedError, "a block of"),
    "handle with more behind it": (with_index([], [(b"z", handle(0, 0) + b"x")]), FormatError, "index"),
    "handle that is cut": (with_index([], [(b"z", b"\x80")]), TruncatedError, "index"),
    "one block listed twice": (
        with_index(
            [block_of(entry(b"a", b""), [0])],
            [(key, handle(0, len(block_of(entry(b"a", b""), [0])) - 5)) for key in (b"b", b"c")],
        ),
        FormatError,
        "not in order",
    ),
    "a key beyond what the index says": (
        with_index([block_of(entry(b"z", b""), [0])], [(b"a", handle(0, 12))]),
        FormatError,
        "not in order",
    ),
    "keys that descend": (
        with_index([block_of(entry(b"b", b"") + entry(b"a", b""), [0])]),
        FormatError,
        "do not ascend",
    ),
    "the same key twice": (
        with_index([block_of(entry(b"a", b"") * 2, [0])]),
        FormatError,
        "do not ascend",
    ),
    "sharing more than there is": (
        with_index([block_of(entry(b"a", b"") + entry(b"b", b"", shared=2), [0])]),
        FormatError,
        "shares 2",
    ),
    "sharing where keys start anew": (
        with_index([block_of(entry(b"a", b"") + entry(b"b", b"", shared=1), [0, 4])]),
        FormatError,
        "start anew",
    ),
    "a start in the middle of an entry": (
        with_index([block_of(entry(b"a", b"") + entry(b"b", b""), [0, 3])]),
        FormatError,
        "start anew",
    ),
    "starts that descend": (
        with_index([block_of(entry(b"a", b"") + entry(b"b", b""), [0, 4, 4])]),
        FormatError,
        "ascend from 0",
    ),
    "a value that is cut": (
        with_index([block_of(varint(0) + varint(1) + varint(99) + b"a", [0])]),
        TruncatedError,
        "is cut",
    ),
    "more starts than bytes": (
        with_index([block_of(b"", [0], count=1 << 31)]),
        TruncatedError,
        "start anew",
    ),
    "no start": (with_index([block_of(entry(b"a", b""), [], count=0)]), TruncatedError, "start anew"),
    "an unknown compression": (
        with_index([block_of(entry(b"a", b""), [0], kind=2)]),
        UnsupportedVersionError,
        "kind 2",
    ),
    "snappy that lies": (with_index([block_of(b"\xff" * 9, [0], kind=1)]), FormatError, "decompressed"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_no_table_says_is_refused(case: str) -> None:
    data, kind, message = HOSTILE[case]
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=message) as caught:
            items_of(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.file == "t"


def test_a_compressed_block_is_read() -> None:
    plain = entry(b"a", b"x" * 64) + struct.pack("<II", 0, 1)
    body = plain[:4] + b"x"  # a literal of five bytes, then a copy of 63 from one back, then the rest
    packed = varint(len(plain)) + bytes([4 << 2]) + body + bytes([62 << 2 | 2]) + b"\x01\x00"
    packed += bytes([7 << 2]) + plain[-8:]
    data = packed + b"\x01"
    block = data + struct.pack("<I", masked(data))
    assert items_of(with_index([block])) == [(b"a", b"x" * 64)]


def test_a_block_of_a_sparse_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "t"
    size = 1 << 32
    with path.open("wb") as file:
        file.seek(size + 5)
        file.write((handle(0, 0) + handle(0, size)).ljust(40, b"\0") + MAGIC)
    with FileReader(path) as reader, pytest.raises(LimitError, match="at most"):
        Table(reader)
