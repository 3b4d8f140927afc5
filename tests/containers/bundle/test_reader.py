"""What a bundle may not say, foreign byte order, and how little is read: on bundles made by hand."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.containers.bundle import sources
from ckptfmt.containers.bundle.keys import Slice, box_of, slice_key
from ckptfmt.containers.bundle.messages import (
    Entry,
    Header,
    Versions,
    decode_entry,
    decode_header,
    encode_entry,
    encode_header,
)
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.crc32c import mask, masked, update
from ckptfmt.containers.protobuf import bytes_field, int_field, varint
from ckptfmt.containers.table.writer import encode_table
from ckptfmt.errors import (
    ChecksumError,
    CkptError,
    FormatError,
    LimitError,
    MissingFileError,
    NotFoundError,
    TruncatedError,
    UnsupportedVersionError,
)
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEADER = Header(1, versions=Versions(producer=1))


def made(
    prefix: Path,
    entries: Mapping[bytes, Entry | bytes],
    data: bytes = b"",
    header: Header | bytes = HEADER,
) -> Path:
    """A bundle of one file of data, from entries as they are given."""
    rows = [(b"", header if isinstance(header, bytes) else encode_header(header))]
    rows += [
        (key, entry if isinstance(entry, bytes) else encode_entry(entry))
        for key, entry in sorted(entries.items())
    ]
    prefix.with_name(f"{prefix.name}.index").write_bytes(b"".join(encode_table(rows)))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    return prefix


def entry_of(data: bytes, dtype: int, shape: tuple[int, ...], offset: int = 0) -> Entry:
    return Entry(dtype, shape, offset=offset, size=len(data), crc=masked(data))


def read_all(prefix: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    with read_bundle(prefix) as bundle:
        for name, entry in bundle.entries.items():
            node = entry.node
            found[name] = node.numpy().tolist() if isinstance(node, Tensor) else node
    return found


# ---------------------------------------------------------------------- keys and messages

KEYS = {  # as TensorFlow wrote them: see the golden files
    (b"part2d/w", ((0, 3), (3, 3))): b"\x00part2d/w\x00\x01\x01\x02\x80\x83\x83\x83",
    (b"w", ((100, 100), (0, -1))): b"\x00w\x00\x01\x01\x02\xc0d\xc0d\x80\x7f",
    (b"i4", ((4, 5),)): b"\x00i4\x00\x01\x01\x01\x84\x85",
    (b"n\x00\xff", ((0, 1),)): b"\x00n\x00\xff\xff\x00\x00\x01\x01\x01\x80\x81",
    (b"", ()): b"\x00\x00\x01\x00",
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_slices_are_those_of_tensorflow(name: tuple[bytes, Slice]) -> None:
    assert slice_key(*name) == KEYS[name]


def test_keys_of_slices_are_ordered_as_their_starts() -> None:
    starts = [0, 1, 63, 64, 8191, 8192, 2**20, 2**27, 2**34, 2**41, 2**48, 2**55 - 1, 2**55, 2**62, 2**63 - 1]
    keys = [slice_key(b"w", ((start, 1),)) for start in starts]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(starts)


@pytest.mark.parametrize("piece", [((0, 4),), ((3, 1),), ((-1, 1),), ((0, -1), (0, -1)), ()])
def test_a_slice_that_does_not_lie_in_its_tensor_is_refused(piece: Slice) -> None:
    with pytest.raises(FormatError, match="does not lie"):
        box_of(piece, (3,))


def test_messages_that_are_written_are_read() -> None:
    entry = Entry(1, (2, 0, 2**40), 3, 2**33, 2**34, 0xFFFFFFFF, (((0, -1), (5, 0), (2, 3)),))
    assert decode_entry(memoryview(encode_entry(entry))) == entry
    header = Header(7, big_endian=True, versions=Versions(1, 1))
    assert decode_header(memoryview(encode_header(header))) == header


def test_what_a_newer_writer_adds_is_skipped(tmp_path: Path) -> None:
    data = np.float32(7).tobytes()
    entry = encode_entry(entry_of(data, 1, ())) + bytes_field(99, b"new") + int_field(98, 5)
    header = encode_header(HEADER) + bytes_field(50, b"new")
    assert read_all(made(tmp_path / "x", {b"w": entry}, data, header)) == {"w": 7.0}


# ---------------------------------------------------------------------- byte order, references

BIG = Header(1, big_endian=True, versions=Versions(producer=1))
ELEMENTS = {
    1: np.array([1.5, -2.25], "f4"),
    2: np.array([1e300, -0.0], "f8"),
    3: np.array([1, -(2**31)], "i4"),
    5: np.array([1, -300], "i2"),
    6: np.array([1, -3], "i1"),
    8: np.array([1 + 2j, -3.5j], "c8"),
    9: np.array([1, -(2**63)], "i8"),
    10: np.array([True, False]),
    14: np.array([1, -2.5], ml_dtypes.bfloat16),
    18: np.array([1 + 2j, -3.5j], "c16"),
    19: np.array([1, -2.5], "f2"),
    22: np.array([1, 2**31], "u4"),
    24: np.array([1, -2.5], ml_dtypes.float8_e5m2),
    30: np.array([1, 15], ml_dtypes.uint4),
}


def big_endian(array: np.ndarray) -> bytes:
    width = array.itemsize // (2 if array.dtype.kind == "c" else 1)
    return bytes(array.view(f"u{width}").byteswap().tobytes())


@pytest.mark.parametrize("number", ELEMENTS)
def test_bundles_of_big_endian_machines_are_read(number: int, tmp_path: Path) -> None:
    array = ELEMENTS[number]
    data = b"\xaa" + big_endian(array)
    prefix = made(tmp_path / "x", {b"w": entry_of(data[1:], number, (2,), 1)}, data, BIG)
    with read_bundle(prefix) as bundle:
        node = bundle.entries["w"].node
        assert isinstance(node, Tensor)
        assert node.numpy().tobytes() == array.tobytes()
        assert node[1:].tobytes() == array[1:].tobytes()


@pytest.mark.parametrize("order", ["little", "big"])
def test_strings_of_either_byte_order_are_read(order: str, tmp_path: Path) -> None:
    texts = [b"hello", b"", b"\x00" * 200]
    crc = update(0, b"".join(len(text).to_bytes(4, order) for text in texts))  # type: ignore[arg-type]
    stored = mask(crc).to_bytes(4, order)  # type: ignore[arg-type] # one of the two
    data = b"".join(varint(len(text)) for text in texts) + stored + b"".join(texts)
    whole = update(update(crc, stored), b"".join(texts))
    entry = Entry(7, (3,), size=len(data), crc=mask(whole))
    header = BIG if order == "big" else HEADER
    node = read_all(made(tmp_path / "x", {b"s": entry}, data, header))["s"]
    assert isinstance(node, Strings)
    assert node.values == tuple(texts)


def test_variants_of_big_endian_machines_are_read(tmp_path: Path) -> None:
    crc = update(update(0, (3).to_bytes(8, "big")), b"abc")
    stored = mask(crc).to_bytes(4, "big")
    data = b"\x03abc" + stored
    entry = Entry(21, (), size=len(data), crc=mask(update(crc, stored)))
    node = read_all(made(tmp_path / "x", {b"v": entry}, data, BIG))["v"]
    assert isinstance(node, Opaque)
    assert isinstance(node.parts["state"], Strings)
    assert node.parts["state"].values == (b"abc",)


def test_a_type_that_is_a_reference_is_the_type(tmp_path: Path) -> None:
    data = np.float32(7).tobytes()
    prefix = made(tmp_path / "x", {b"w": entry_of(data, 101, ())}, data)
    with read_bundle(prefix) as bundle:
        assert (bundle.entries["w"].kind, bundle.entries["w"].dtype_number) == ("float32", 101)
    assert read_all(prefix) == {"w": 7.0}


def test_holes_between_tensors_are_fine(tmp_path: Path) -> None:
    data = bytes(64) + np.float32(7).tobytes() + bytes(9)
    assert read_all(made(tmp_path / "x", {b"w": entry_of(data[64:68], 1, (), 64)}, data)) == {"w": 7.0}


# ---------------------------------------------------------------------- what is refused

F4 = np.arange(4, dtype="f4").tobytes()
GOOD = entry_of(F4, 1, (4,))
PIECE = Entry(1, (2,), offset=0, size=8, crc=masked(F4[:8]))
OTHER = Entry(1, (2,), offset=8, size=8, crc=masked(F4[8:]))
LEFT, RIGHT = slice_key(b"w", ((0, 2),)), slice_key(b"w", ((2, 2),))
WHOLE = Entry(1, (4,), slices=(((0, 2),), ((2, 2),)))
SHAPES = bytes_field(2, bytes_field(2, int_field(1, -5)))
HOSTILE: dict[str, tuple[dict[bytes, Entry | bytes], type[CkptError], str]] = {
    "beyond the file": ({b"w": entry_of(F4, 1, (4,), 1)}, TruncatedError, "end at 17, the file at 16"),
    "far beyond": ({b"w": Entry(1, (4,), offset=2**62, size=16)}, TruncatedError, "the file at 16"),
    "huge": ({b"w": Entry(1, (2**40,), size=2**42)}, TruncatedError, "the file at 16"),
    "size and shape differ": ({b"w": Entry(1, (3,), size=16)}, FormatError, "which takes 12"),
    "shape overflows": ({b"w": Entry(1, (2**32, 2**32, 2**32), size=16)}, LimitError, "2\\^64"),
    "too many dimensions": ({b"w": Entry(1, (1,) * 65, size=4)}, LimitError, "64 dimensions"),
    "far too many dimensions": ({b"w": Entry(1, (1,) * 300, size=4)}, LimitError, "254"),
    "negative dimension": ({b"w": int_field(1, 1) + SHAPES}, FormatError, "dimension of -5"),
    "unknown rank": (
        {b"w": int_field(1, 1) + bytes_field(2, int_field(3, 1))},
        FormatError,
        "unknown rank",
    ),
    "negative offset": ({b"w": int_field(1, 1) + int_field(4, -1)}, FormatError, "negative"),
    "negative size": ({b"w": int_field(1, 1) + int_field(5, -4)}, FormatError, "negative"),
    "negative file": ({b"w": int_field(1, 1) + int_field(3, -1)}, FormatError, "negative"),
    "unknown type": ({b"w": entry_of(F4, 60, (4,))}, UnsupportedVersionError, "type 60"),
    "no type": ({b"w": entry_of(F4, 0, (4,))}, UnsupportedVersionError, "type 0"),
    "a resource": ({b"w": entry_of(F4, 20, (4,))}, UnsupportedVersionError, "type 20"),
    "a file that is none": ({b"w": Entry(1, (4,), shard=1, size=16)}, FormatError, "file 1 of 1"),
    "overlap": ({b"a": GOOD, b"b": entry_of(F4[8:12], 1, (1,), 8)}, FormatError, "overlap"),
    "same bytes": ({b"a": GOOD, b"b": GOOD}, FormatError, "overlap"),
    "empty with a checksum": ({b"w": Entry(1, (0,), crc=5)}, ChecksumError, "checksum"),
    "wrong checksum": ({b"w": Entry(1, (4,), size=16, crc=5)}, ChecksumError, "checksum"),
    "not UTF-8": ({b"\xff\xfe": GOOD}, FormatError, "UTF-8"),
    "checksum as a number": ({b"w": int_field(1, 1) + int_field(6, 5)}, FormatError, "wire type"),
    "shape as a number": ({b"w": int_field(1, 1) + int_field(2, 5)}, FormatError, "wire type"),
    "a message that is cut": ({b"w": b"\x12\x7f"}, TruncatedError, "malformed entry"),
    "a slice that is not there": ({b"w": WHOLE, LEFT: PIECE}, FormatError, r"\[\(2, 2\)\] is not there"),
    "a slice of another type": (
        {b"w": WHOLE, LEFT: PIECE, RIGHT: Entry(3, (2,), offset=8, size=8, crc=OTHER.crc)},
        FormatError,
        "another type",
    ),
    "a slice of another shape": (
        {b"w": WHOLE, LEFT: PIECE, RIGHT: Entry(1, (2, 1), offset=8, size=8, crc=OTHER.crc)},
        FormatError,
        "another type",
    ),
    "slices that leave a hole": (
        {b"w": Entry(1, (4,), slices=(((0, 2),),)), LEFT: PIECE},
        FormatError,
        "missing",
    ),
    "slices that overlap": (
        {
            b"w": Entry(6, (4,), slices=(((0, 2),), ((1, 3),))),
            LEFT: Entry(6, (2,), size=2),
            slice_key(b"w", ((1, 3),)): Entry(6, (3,), offset=8, size=3),
        },
        FormatError,
        "overlap",
    ),
    "a slice outside": (
        {b"w": Entry(1, (3,), slices=(((0, 2),), ((2, 2),))), LEFT: PIECE, RIGHT: OTHER},
        FormatError,
        "does not lie",
    ),
    "slices of slices": ({b"w": WHOLE, LEFT: PIECE, RIGHT: WHOLE}, FormatError, "is not there"),
    "strings in slices": (
        {b"w": Entry(7, (4,), slices=(((0, 2),), ((2, 2),)))},
        FormatError,
        "cannot lie in slices",
    ),
    "more strings than bytes": ({b"w": Entry(7, (2**50,), size=16)}, TruncatedError, "elements"),
    "strings that are cut": ({b"w": Entry(7, (16,), size=16)}, TruncatedError, "cut"),
    "variants that are cut": ({b"w": Entry(21, (2,), size=16)}, FormatError, "checksum"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_no_bundle_says_is_refused_by_name(case: str, tmp_path: Path) -> None:
    entries, kind, message = HOSTILE[case]
    prefix = made(tmp_path / "x", entries, F4)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=message) as caught:
            read_all(prefix)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, FormatError)
    assert caught.value.file is not None
    assert caught.value.tensor is not None


HEADERS: dict[str, tuple[Header | bytes, type[FormatError], str]] = {
    "newer readers only": (Header(1, versions=Versions(2, 2)), UnsupportedVersionError, "version 2"),
    "not for this version": (
        encode_header(HEADER) + bytes_field(3, bytes_field(3, b"\x01")),
        UnsupportedVersionError,
        "version",
    ),
    "no byte order": (int_field(1, 1) + int_field(2, 2), FormatError, "byte order 2"),
    "negative files": (int_field(1, -1), FormatError, "-1 files"),
    "no message": (b"\xff", FormatError, "malformed header"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_for_others_are_refused(case: str, tmp_path: Path) -> None:
    header, kind, message = HEADERS[case]
    with pytest.raises(kind, match=message) as caught:
        read_bundle(made(tmp_path / "x", {b"w": GOOD}, F4, header))
    assert caught.value.file == str(tmp_path / "x.index")


def test_a_table_without_a_header_is_no_bundle(tmp_path: Path) -> None:
    for items in ([], [(b"w", encode_entry(GOOD))]):
        (tmp_path / "x.index").write_bytes(b"".join(encode_table(items)))
        with pytest.raises(FormatError, match="without the header"):
            read_bundle(tmp_path / "x")


def test_strings_whose_checksums_lie_are_refused(tmp_path: Path) -> None:
    texts = b"\x03\x02" + masked(b"\x03\0\0\0\x02\0\0\0").to_bytes(4, "little") + b"abcde"
    crc = update(update(update(0, b"\x03\0\0\0\x02\0\0\0"), texts[2:6]), b"abcde")
    entry = Entry(7, (2,), size=len(texts), crc=mask(crc))
    node = read_all(made(tmp_path / "x", {b"s": entry}, texts))["s"]
    assert isinstance(node, Strings)
    assert node.values == (b"abc", b"de")
    for place in range(len(texts) * 8):
        changed = bytearray(texts)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(FormatError) as caught:
            read_all(made(tmp_path / "x", {b"s": entry}, bytes(changed)))
        assert caught.value.tensor == "s"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_bundle(tmp_path / "x")
    prefix = made(tmp_path / "x", {b"w": GOOD}, F4)
    (tmp_path / "x.data-00000-of-00001").unlink()
    with pytest.raises(MissingFileError) as caught:
        read_bundle(prefix)
    assert caught.value.tensor == "w"


def test_thousands_of_files_of_data_are_not_all_held_open(tmp_path: Path) -> None:
    count = 1500
    entries = {
        b"w%04d" % number: Entry(1, (), shard=number, size=4, crc=masked(np.float32(number).tobytes()))
        for number in range(count)
    }
    made(tmp_path / "x", entries, header=Header(count, versions=Versions(1)))
    for number in range(count):
        path = tmp_path / f"x.data-{number:05d}-of-{count:05d}"
        path.write_bytes(np.float32(number).tobytes())
    assert list(read_all(tmp_path / "x").values()) == list(range(count))


# ---------------------------------------------------------------------- how little is read


def test_listing_and_reading_one_tensor_of_four_sparse_gib_reads_little(tmp_path: Path) -> None:
    size = 4 << 30
    data = tmp_path / "x.data-00000-of-00001"
    entries: dict[bytes, Entry | bytes] = {
        b"big": Entry(1, (size // 4,), size=size, crc=1),
        b"small": entry_of(F4, 1, (4,), size),
    }
    prefix = made(tmp_path / "x", entries)
    os.truncate(data, size)
    with data.open("ab") as file:
        file.write(F4)
    tracemalloc.start()
    try:
        with read_bundle(prefix) as bundle:
            assert [entry.shape for entry in bundle.entries.values()] == [(size // 4,), (4,)]
            node = bundle.entries["small"].node
            assert isinstance(node, Tensor)
            assert node.numpy().tobytes() == F4
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_tensor_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def counted(crc: int, data: memoryview) -> int:
        taken.append(len(data))
        return update(crc, data)

    monkeypatch.setattr(sources, "update", counted)
    with read_bundle(made(tmp_path / "x", {b"w": GOOD}, F4)) as bundle:
        assert taken == []
        node = bundle.entries["w"].node
        assert isinstance(node, Tensor)
        assert node[1:3].tolist() == [1, 2]
        assert node.numpy().tolist() == [0, 1, 2, 3]
    assert taken == [16]


def test_many_entries_are_read_in_a_time_that_grows_with_their_number(tmp_path: Path) -> None:
    count = 20_000
    entries: dict[bytes, Entry | bytes] = {
        b"w%06d" % number: Entry(1, (0,), crc=masked(b"")) for number in range(count)
    }
    with read_bundle(made(tmp_path / "x", entries)) as bundle:
        assert len(bundle.entries) == count
