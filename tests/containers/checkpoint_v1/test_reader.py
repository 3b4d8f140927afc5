"""What a V1 checkpoint may and may not say, and how little is read: on tables made by hand."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.containers.bundle.keys import Slice, slice_key
from ckptfmt.containers.bundle.messages import encode_shape, encode_slice
from ckptfmt.containers.checkpoint_v1.reader import files_of, read_checkpoint_v1
from ckptfmt.containers.crc32c import masked
from ckptfmt.containers.protobuf import bytes_field, int_field, varint, varints
from ckptfmt.containers.table.block import TRAILER
from ckptfmt.containers.table.reader import MAGIC
from ckptfmt.containers.table.writer import encode_table
from ckptfmt.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    NotFoundError,
    UnsupportedVersionError,
)
from ckptfmt.tree.box import Box
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ALL: Slice = ((0, -1),)
F4 = np.arange(4, dtype="f4")
FLOATS = bytes_field(5, F4.tobytes())


def listed(name: bytes, dtype: int, shape: tuple[int, ...], slices: Sequence[Slice]) -> bytes:
    """The line of a tensor in the list of a file."""
    pieces = b"".join(bytes_field(4, encode_slice(piece)) for piece in slices)
    return bytes_field(
        1, bytes_field(1, name) + bytes_field(2, encode_shape(shape)) + int_field(3, dtype) + pieces
    )


def meta(*lines: bytes, versions: bytes = b"\x08\x01") -> tuple[bytes, bytes]:
    return b"", bytes_field(1, b"".join(lines) + bytes_field(2, versions))


def data(name: bytes, piece: Slice, tensor: bytes, key: bytes | None = None) -> tuple[bytes, bytes]:
    body = bytes_field(1, name) + bytes_field(2, encode_slice(piece)) + bytes_field(3, tensor)
    return slice_key(name, piece) if key is None else key, bytes_field(2, body)


def made(path: Path, *items: tuple[bytes, bytes]) -> Path:
    path.write_bytes(b"".join(encode_table(sorted(items))))
    return path


def one(path: Path, dtype: int, tensor: bytes, shape: tuple[int, ...] = (4,)) -> Path:
    """A checkpoint of one tensor, w, that is whole."""
    piece: Slice = ((0, -1),) * len(shape)
    return made(path, meta(listed(b"w", dtype, shape, [piece])), data(b"w", piece, tensor))


def read_all(path: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    with read_checkpoint_v1(path) as checkpoint:
        for name, entry in checkpoint.entries.items():
            node = entry.node
            found[name] = node.numpy().tolist() if isinstance(node, Tensor) else node
    return found


LISTS = {
    "packed floats": (1, FLOATS, [0, 1, 2, 3]),
    "floats one by one": (1, b"".join(b"\x2d" + x.tobytes() for x in F4), [0, 1, 2, 3]),
    "packed floats in two": (
        1,
        bytes_field(5, F4[:3].tobytes()) + bytes_field(5, F4[3:].tobytes()),
        [0, 1, 2, 3],
    ),
    "doubles one by one": (2, b"".join(b"\x31" + np.float64(x).tobytes() for x in F4), [0, 1, 2, 3]),
    "packed numbers": (3, bytes_field(7, varints([1, -2, 3, -(2**31)])), [1, -2, 3, -(2**31)]),
    "numbers one by one": (3, b"".join(b"\x38" + varint(x) for x in (1, -2, 3, 4)), [1, -2, 3, 4]),
    "bytes": (4, bytes_field(7, varints([0, 1, 200, 255])), [0, 1, 200, 255]),
    "signed bytes": (6, bytes_field(7, varints([0, -1, 127, -128])), [0, -1, 127, -128]),
    "long numbers": (9, bytes_field(10, varints([2**63 - 1, -(2**63), 0, -1])), [2**63 - 1, -(2**63), 0, -1]),
    "truths": (10, bytes_field(11, b"\x01\x00\x01\x01"), [True, False, True, True]),
    "halves": (19, bytes_field(13, varints([0x3C00, 0xBC00, 0, 0x7C00])), [1, -1, 0, float("inf")]),
    "unsigned": (23, bytes_field(17, varints([2**64 - 1, 0, 1, 2])), [2**64 - 1, 0, 1, 2]),
    "other fields": (1, int_field(1, 1) + bytes_field(2, encode_shape((4,))) + FLOATS, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("case", LISTS)
def test_every_list_is_read(case: str, tmp_path: Path) -> None:
    dtype, tensor, expected = LISTS[case]
    assert read_all(one(tmp_path / "x", dtype, tensor)) == {"w": expected}


def test_brain_floats_are_the_bits_of_their_numbers(tmp_path: Path) -> None:
    array = np.array([1, -2.5, 0, np.inf], ml_dtypes.bfloat16)
    tensor = bytes_field(13, varints(array.view("u2").tolist()))
    with read_checkpoint_v1(one(tmp_path / "x", 14, tensor)) as checkpoint:
        node = checkpoint.entries["w"].node
        assert isinstance(node, Tensor)
        assert node.numpy().tobytes() == array.tobytes()


BAD = {
    "a byte of 256": (4, bytes_field(7, varints([0, 1, 2, 256])), "none of uint8"),
    "a negative byte": (4, bytes_field(7, varints([0, 1, 2, -1])), "none of uint8"),
    "a number of 33 bits": (3, bytes_field(7, varints([0, 1, 2, 2**31])), "none of int32"),
    "a truth of 2": (10, bytes_field(11, b"\x01\x00\x01\x02"), "none of bool"),
    "a half of 17 bits": (19, bytes_field(13, varints([0, 0, 0, 65536])), "none of uint16"),
    "too few": (1, bytes_field(5, F4[:3].tobytes()), "3 elements in a slice of 4"),
    "too many": (1, bytes_field(5, bytes(20)), "5 elements in a slice of 4"),
    "none": (1, b"", "0 elements in a slice of 4"),
    "numbers in another list": (3, FLOATS, "0 elements"),
    "a number cut": (3, bytes_field(7, b"\x01\x01\x01\x80"), "ends inside a number"),
    "elements cut": (1, bytes_field(5, bytes(15)), "no whole number"),
    "a list of strings for numbers": (1, int_field(5, 1), "wire type"),
}


@pytest.mark.parametrize("case", BAD)
def test_elements_that_do_not_fit_are_refused_by_name(case: str, tmp_path: Path) -> None:
    dtype, tensor, message = BAD[case]
    path = one(tmp_path / "x", dtype, tensor)
    with pytest.raises(FormatError, match=message) as caught:
        read_all(path)
    assert (caught.value.file, caught.value.tensor) == (str(path), "w")


LEFT: Slice = ((0, 2),)
RIGHT: Slice = ((2, 2),)
HALF = bytes_field(5, F4[:2].tobytes())
W = b"w"
HOSTILE: dict[str, tuple[list[tuple[bytes, bytes]], type[FormatError], str]] = {
    "no list": ([data(W, ALL, FLOATS)], FormatError, "without the list"),
    "nothing": ([], FormatError, "without the list"),
    "two lists": (
        [(b"", bytes_field(1, b"") * 2)],
        FormatError,
        "there 2 times",
    ),
    "no message": ([(b"", b"\xff")], FormatError, "malformed list"),
    "for newer readers": ([meta(versions=b"\x08\x02\x10\x02")], UnsupportedVersionError, "version 2"),
    "unknown type": ([meta(listed(W, 60, (4,), [ALL]))], UnsupportedVersionError, "type 60"),
    "a type that V1 has not": ([meta(listed(W, 24, (4,), [ALL]))], UnsupportedVersionError, "type 24"),
    "huge": ([meta(listed(W, 1, (2**40, 2**40), [((0, -1), (0, -1))]))], LimitError, "2\\^64"),
    "a slice outside": ([meta(listed(W, 1, (4,), [((2, 3),)]))], FormatError, "does not lie"),
    "a hole": ([meta(listed(W, 1, (4,), [LEFT])), data(W, LEFT, HALF)], FormatError, "missing"),
    "no slices": ([meta(listed(W, 1, (4,), []))], FormatError, "missing"),
    "overlap": ([meta(listed(W, 1, (4,), [LEFT, ((1, 3),)]))], FormatError, "overlap"),
    "twice": ([meta(listed(W, 1, (4,), [ALL, ALL]))], FormatError, "twice"),
    "twice, with another shape": (
        [meta(listed(W, 1, (4,), [LEFT]), listed(W, 1, (5,), [RIGHT]))],
        FormatError,
        "another type or shape",
    ),
    "data not there": ([meta(listed(W, 1, (4,), [ALL]))], FormatError, "is not there"),
    "data of another": (
        [meta(listed(W, 1, (4,), [ALL])), data(b"v", ALL, FLOATS, slice_key(W, ALL))],
        FormatError,
        "under another key",
    ),
    "not UTF-8": ([meta(listed(b"\xff", 1, (4,), [ALL]))], FormatError, "UTF-8"),
    "strings missing": (
        [meta(listed(W, 7, (2,), [((0, -1),)])), data(W, ALL, bytes_field(8, b"a"))],
        FormatError,
        "1 strings in a slice of 2",
    ),
    "strings in a hole": (
        [meta(listed(W, 7, (2**50,), [((0, 1),)])), data(W, ((0, 1),), bytes_field(8, b"a"))],
        FormatError,
        "missing",
    ),
    "strings that overlap": (
        [
            meta(listed(W, 7, (3,), [((0, 2),), ((1, 1),)])),
            data(W, ((0, 2),), bytes_field(8, b"a") * 2),
            data(W, ((1, 1),), bytes_field(8, b"a")),
        ],
        FormatError,
        "overlap",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_no_checkpoint_says_is_refused(case: str, tmp_path: Path) -> None:
    items, kind, message = HOSTILE[case]
    path = made(tmp_path / "x", *items)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=message) as caught:
            read_all(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.file is not None


def test_strings_in_slices_are_joined(tmp_path: Path) -> None:
    path = made(
        tmp_path / "x",
        meta(listed(W, 7, (2, 3), [((0, -1), (0, 2)), ((0, -1), (2, 1))])),
        data(W, ((0, -1), (0, 2)), b"".join(bytes_field(8, text) for text in (b"a", b"b", b"d", b"e"))),
        data(W, ((0, -1), (2, 1)), bytes_field(8, b"c") + bytes_field(8, b"f")),
    )
    node = read_all(path)["w"]
    assert isinstance(node, Strings)
    assert (node.shape, node.values) == ((2, 3), (b"a", b"b", b"c", b"d", b"e", b"f"))


def test_slices_in_several_files_are_joined_in_whatever_order(tmp_path: Path) -> None:
    for shard, piece, values in ((0, RIGHT, F4[2:]), (1, LEFT, F4[:2])):
        made(
            tmp_path / f"x-{shard:05d}-of-00002",
            meta(listed(W, 1, (4,), [piece])),
            data(W, piece, bytes_field(5, values.tobytes())),
        )
    assert read_all(tmp_path / "x") == {"w": [0, 1, 2, 3]}


def test_names_of_files(tmp_path: Path) -> None:
    assert files_of(tmp_path / "x-?????-of-00002")[1] == str(tmp_path / "x-00001-of-00002")
    with pytest.raises(NotFoundError):
        files_of(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"")
    assert files_of(tmp_path / "x") == (str(tmp_path / "x"),)
    with pytest.raises(NotFoundError):
        read_checkpoint_v1(tmp_path / "no" / "x")


# ---------------------------------------------------------------------- blocks


def block_of(key: bytes, head: bytes, size: int = 0) -> bytes:
    """A block of one entry, `size` zeros after the head of its value, without its trailer."""
    return varint(0) + varint(len(key)) + varint(len(head) + size) + key + head


def test_listing_four_sparse_gib_and_reading_a_part_reads_little(tmp_path: Path) -> None:
    """The list and a tensor of 4 GiB in the first block, a small tensor in the second."""
    size = 4 << 30
    key, whole = data(b"v", ALL, FLOATS)
    big = slice_key(b"a", ALL)
    key_meta, list_of = meta(listed(b"a", 1, (size // 4,), [ALL]), listed(b"v", 1, (4,), [ALL]))
    path = tmp_path / "x"
    end = struct.pack("<II", 0, 1)
    with path.open("wb") as file:
        file.write(block_of(key_meta, list_of) + block_of(big, b"", size))
        file.seek(size, 1)
        file.write(end + bytes(TRAILER))  # its checksum is wrong, which only reading it would tell
        first = file.tell() - TRAILER
        second = block_of(key, whole) + end + b"\0"
        file.write(second + struct.pack("<I", masked(second)))
        index_at = file.tell()
        rows = [(big, varint(0) + varint(first)), (key, varint(first + TRAILER) + varint(len(second) - 1))]
        lines = [varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in rows]
        index = b"".join(lines) + struct.pack("<III", 0, len(lines[0]), 2) + b"\0"
        file.write(index + struct.pack("<I", masked(index)))
        file.write((varint(0) * 2 + varint(index_at) + varint(len(index) - 1)).ljust(40, b"\0") + MAGIC)
    tracemalloc.start()
    try:
        with read_checkpoint_v1(path) as checkpoint:
            assert {name: entry.shape for name, entry in checkpoint.entries.items()} == {
                "a": (size // 4,),
                "v": (4,),
            }
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_list_in_a_large_block_is_verified_before_anything_is_handed_out(tmp_path: Path) -> None:
    array = np.arange(2 << 20, dtype="f4")
    path = made(
        tmp_path / "x",
        meta(listed(b"a", 1, array.shape, [ALL]), listed(b"v", 1, (4,), [ALL])),
        data(b"a", ALL, bytes_field(5, array.tobytes())),
        data(b"v", ALL, FLOATS),
    )
    with read_checkpoint_v1(path) as checkpoint:
        node = checkpoint.entries["a"].node
        assert isinstance(node, Tensor)
        assert np.array_equal(node.numpy(), array)
        assert node.read(Box((5,), (3,))).tolist() == [5, 6, 7]
    changed = bytearray(path.read_bytes())
    at = changed.index(b"\x0a\x01a")  # the name in the list
    changed[at + 2] ^= 3
    path.write_bytes(changed)
    with read_checkpoint_v1(path) as checkpoint:
        node = checkpoint.entries["v"].node
        assert isinstance(node, Tensor)
        with pytest.raises(ChecksumError):
            node.numpy()


def test_many_small_tensors_of_one_block_are_read_in_a_time_that_grows_with_them(tmp_path: Path) -> None:
    names = [b"n%05d" % number for number in range(4000)]
    lines = [listed(name, 3, (1,), [ALL]) for name in names]
    items = [data(name, ALL, bytes_field(7, varint(number))) for number, name in enumerate(names)]
    found = read_all(made(tmp_path / "x", meta(*lines), *items))
    assert list(found.values()) == [[number] for number in range(4000)]
