from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.containers.zip.directory import MAX_ENTRIES
from ckptfmt.containers.zip.members import StoredMember
from ckptfmt.containers.zip.writer import ZipWriter
from ckptfmt.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    MissingFileError,
    TruncatedError,
    UnsupportedVersionError,
)
from ckptfmt.storage.reader import FileReader, MemoryReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfmt.containers.zip.members import Member
    from ckptfmt.containers.zip.window import Window

NOISE = np.random.default_rng(7).bytes(300_000)


def archive(data: bytes) -> ZipArchive:
    return ZipArchive(MemoryReader(data, "a.zip"))


def read_all(data: bytes) -> dict[str, bytes]:
    opened = archive(data)
    return {name: opened.open(name).read(0, entry.size) for name, entry in opened.entries.items()}


def python_zip(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return buffer.getvalue()


def our_zip(members: dict[str, bytes], *, descriptors: bool = False) -> bytes:
    buffer = io.BytesIO()
    writer = ZipWriter(buffer, descriptors=descriptors)
    for name, data in members.items():
        writer.add(name, len(data), (data[:1000], data[1000:]))
    writer.close()
    return buffer.getvalue()


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


HANDING_OUT: dict[str, Callable[[Member], object]] = {
    "whole": lambda member: member.read(0, len(NOISE)),
    "part": lambda member: member.read(0, 4),
    "view": lambda member: (member.view(0, 4), member.read(0, 4)),
}
MEMBERS = {"a": b"alpha", "dir/b": b"", "ünï": NOISE, "zeros": bytes(100_000)}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_pythons_archives_are_read(method: int) -> None:
    assert read_all(python_zip(MEMBERS, method)) == MEMBERS


def test_streamed_and_zip64_archives_of_python_are_read() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: object) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in MEMBERS.items():
            with file.open(name, "w", force_zip64=True) as member:
                member.write(data)
    assert read_all(pipe.getvalue()) == MEMBERS


@pytest.mark.parametrize("descriptors", [False, True])
def test_python_reads_what_we_write(descriptors: bool) -> None:  # noqa: FBT001
    data = our_zip(MEMBERS, descriptors=descriptors)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        assert {name: file.read(name) for name in file.namelist()} == MEMBERS
    assert read_all(data) == MEMBERS


@pytest.mark.parametrize("descriptors", [False, True])
def test_data_begins_at_the_alignment(descriptors: bool) -> None:  # noqa: FBT001
    data = our_zip({f"n{'x' * i}": NOISE[: i + 1] for i in range(80)}, descriptors=descriptors)
    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        named, extended = struct.unpack_from("<2H", data, info.header_offset + 26)
        assert (info.header_offset + 30 + named + extended) % 64 == 0


def test_more_than_65535_members_need_zip64_and_come_back() -> None:
    names = {f"{i}": b"" for i in range(70_000)}
    data = our_zip(names)
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == list(names)
    assert list(archive(data).entries) == list(names)


def test_a_member_of_more_than_4_gib_comes_back(tmp_path: Path) -> None:
    piece = memoryview(bytes(64 << 20))
    path = tmp_path / "large.zip"

    class Sparse(io.FileIO):
        def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # holes in place of zeros
            if data is piece:
                self.seek(len(piece), 1)
                return len(piece)
            return super().write(data)

    with Sparse(path, "w") as file:
        writer = ZipWriter(file, descriptors=True)
        writer.add("large", 65 * len(piece), (piece for _ in range(65)))
        writer.add("small", 3, [b"abc"])
        writer.close()
    assert zipfile.ZipFile(path).getinfo("large").file_size == 65 << 26
    with FileReader(path) as reader:
        opened = ZipArchive(reader)
        assert opened.entries["large"].size == 65 << 26
        assert opened.open("large").name.endswith("large")
        assert opened.open("small").read(0, 3) == b"abc"


def test_folders_are_not_listed() -> None:
    assert list(archive(python_zip({"d/": b"", "d/x": b"1"})).entries) == ["d/x"]


def test_an_absent_member_is_named() -> None:
    with pytest.raises(MissingFileError, match="'nope'"):
        archive(python_zip({"a": b""})).open("nope")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_parts_read_in_any_order_equal_the_whole(method: int) -> None:
    member = archive(python_zip({"n": NOISE}, method)).open("n")
    for start, length in [(0, 10), (10, 1000), (1010, 5), (200_000, 7), (3, 9), (0, 300_000), (299_999, 1)]:
        assert member.read(start, length) == NOISE[start : start + length]
    with pytest.raises(TruncatedError):
        member.read(299_999, 2)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("how", ["whole", "part", "view"])
def test_a_flipped_bit_is_found_before_bytes_are_handed_out(tmp_path: Path, method: int, how: str) -> None:
    data = bytearray(python_zip({"n": NOISE}, method))
    data[150_000] ^= 4
    path = tmp_path / "bad.zip"
    path.write_bytes(data)
    with FileReader(path) as reader:
        member = ZipArchive(reader).open("n")
        with pytest.raises(FormatError, match=r"bad\.zip: n") as caught:
            HANDING_OUT[how](member)
    assert method == zipfile.ZIP_DEFLATED or caught.type is ChecksumError


def test_an_absent_checksum_is_told_and_not_held_against_the_file() -> None:
    data = python_zip({"n": NOISE})
    at = data.index(b"PK\x01\x02")
    data = patched(patched(data, 14, bytes(4)), at + 16, bytes(4))
    opened = archive(data)
    assert opened.open("n").read(5, 10) == NOISE[5:15]
    assert [finding.kind for finding in opened.findings()] == ["crc-absent"]
    assert archive(python_zip({"n": NOISE, "e": b""})).findings() == ()


def refused(data: bytes, error: type[FormatError], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        read_all(data)
    assert caught.value.file is not None


def test_what_is_ambiguous_is_refused() -> None:
    plain = python_zip({"aa": b"alpha", "bb": b"beta"})
    twice = patched(plain, plain.rindex(b"bb"), b"aa")
    refused(patched(twice, twice.index(b"bb"), b"aa"), FormatError, "twice")
    refused(b"junk" + plain, FormatError, "directory")
    refused(plain + b"junk", FormatError, "follow")
    refused(patched(plain, 30, b"zz"), FormatError, "another name")
    refused(patched(plain, 22, struct.pack("<L", 4)), FormatError, "contradicts")
    refused(patched(plain, 14, b"\1\2\3\4"), FormatError, "contradicts")
    refused(patched(plain, 8, b"\x08"), FormatError, "contradicts")
    comment = plain[:-2] + struct.pack("<H", 22) + plain[-22:]
    refused(comment, FormatError, "more than one")


def test_a_folder_that_holds_bytes_is_refused() -> None:
    """torch leaves the memory of such a tensor as it was, Python's zipfile reads the bytes."""
    refused(python_zip({"aa/": b"alpha"}), FormatError, "a directory that holds bytes")
    plain = python_zip({"aa": b"alpha"})
    attributes = plain.index(b"PK\x01\x02") + 38
    refused(patched(plain, attributes, b"\x10"), FormatError, "a directory that holds bytes")
    assert read_all(patched(python_zip({"aa": b""}), plain.index(b"PK\x01\x02") - 5 + 38, b"\x10")) == {
        "aa": b""
    }


def test_what_is_not_read_is_named() -> None:
    plain = python_zip({"aa": b"alpha"})
    at = plain.index(b"PK\x01\x02")
    refused(patched(plain, at + 8, b"\x01"), UnsupportedVersionError, "encrypted")
    refused(patched(plain, at + 10, b"\x0c"), UnsupportedVersionError, "method 12")
    refused(patched(plain, at + 34, b"\x01"), UnsupportedVersionError, "disks")
    refused(patched(plain, len(plain) - 18, b"\x01"), UnsupportedVersionError, "disks")
    refused(patched(plain, at + 46, b"\xff\xfe"), FormatError, "decoded")
    refused(patched(plain, at + 46, b"a\0"), FormatError, "NUL")


def test_overlapping_records_are_refused() -> None:
    data = python_zip({"aa": NOISE[:500], "bb": NOISE[500:600]})
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 1)
    refused(patched(data, second + 42, bytes(4)), FormatError, "next record")
    shorter = patched(data, second + 42, struct.pack("<L", 300))
    refused(shorter, FormatError, "next record")


def test_sizes_that_lie_are_refused() -> None:
    stored = python_zip({"aa": NOISE[:500]})
    at = stored.index(b"PK\x01\x02")
    refused(patched(stored, at + 24, struct.pack("<L", 0)), FormatError, "stored in 500 of 0")
    both = patched(stored, at + 20, struct.pack("<LL", 1 << 30, 1 << 30))
    refused(both, FormatError, "next record")
    deflated = python_zip({"aa": bytes(50_000)}, zipfile.ZIP_DEFLATED)
    at = deflated.index(b"PK\x01\x02")
    for size in (0, 10, 49_999, 50_001):
        lie = patched(patched(deflated, at + 24, struct.pack("<L", size)), 22, struct.pack("<L", size))
        refused(lie, FormatError, "inflates to")
    refused(patched(deflated, at + 24, struct.pack("<L", 1 << 30)), LimitError, "cannot expand")


def test_counts_are_bounded_by_the_file() -> None:
    data = python_zip({"aa": b"x"})
    lie = patched(data, len(data) - 14, struct.pack("<2H", 60_000, 60_000))
    refused(lie, FormatError, "cannot be listed")
    entry = data[data.index(b"PK\x01\x02") : -22]
    many = entry * (MAX_ENTRIES + 1)
    offset = len(data) - 22 - len(entry)
    end64 = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, *(MAX_ENTRIES + 1,) * 2, len(many), offset
    )
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, offset + len(many), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    refused(data[:offset] + many + end64 + locator + end, LimitError, "at most")


def test_bombs_are_refused_before_they_are_inflated() -> None:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(1 << 20)
    raw = b"".join(engine.compress(zeros) for _ in range(512)) + engine.flush()
    size = 512 << 20
    head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, 0, 33, 1, len(raw), size, 1, 0) + b"b"
    entry = struct.pack(
        "<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 8, 0, 33, 1, len(raw), size, 1, 0, 0, 0, 0, 0, 0
    )
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry) + 1, len(head) + len(raw), 0)
    refused(head + raw + entry + b"b" + end, LimitError, "claim to expand")


def test_every_truncation_is_one_kind_of_error() -> None:
    data = our_zip({"aa": b"alpha", "bb": b"beta"}, descriptors=True)
    for length in range(len(data)):
        with pytest.raises(FormatError):
            read_all(data[:length])


def test_any_changed_byte_gives_the_same_bytes_or_a_typed_error() -> None:
    members = {"aa": b"alpha" * 50, "bb": b"beta"}
    for data in (our_zip(members, descriptors=True), python_zip(members, zipfile.ZIP_DEFLATED)):
        for at in range(len(data)):
            try:
                found = read_all(patched(data, at, bytes([data[at] ^ 0x11])))
            except FormatError:
                continue
            assert found == members


def test_a_writer_refuses_what_it_could_not_read_back() -> None:
    writer = ZipWriter(io.BytesIO())
    writer.add("a", 1, [b"x"])
    with pytest.raises(ValueError, match="already"):
        writer.add("a", 1, [b"x"])
    with pytest.raises(ValueError, match="announced"):
        writer.add("b", 2, [b"x"])


def test_deflated_members_come_back_and_python_reads_them() -> None:
    rng = np.random.default_rng(3)
    members = {
        "text": b" ".join(b"%d" % i for i in range(10_000)),
        "half": bytes(200_000) + rng.bytes(100_000),
        "noise": rng.bytes(70_000),
        "zeros": bytes(5_000_000),
        "empty": b"",
    }
    file = io.BytesIO()
    writer = ZipWriter(file)
    for name, data in members.items():
        pieces = [data[at : at + 4096] for at in range(0, len(data), 4096)]
        writer.add_deflated(name, len(data), lambda pieces=pieces: pieces)  # type: ignore[misc]
    writer.add("last", 4, [b"last"])
    writer.close()
    archive = ZipArchive(MemoryReader(file.getvalue()))
    assert {name: archive.open(name).read(0, len(data)) for name, data in members.items()} == members
    deflated = {name for name, entry in archive.entries.items() if entry.method == zipfile.ZIP_DEFLATED}
    assert deflated == {"text", "half"}  # noise grows, and zeros shrink as only a bomb does
    with zipfile.ZipFile(file) as judge:
        assert judge.testzip() is None
        assert {name: judge.read(name) for name in members} == members


@pytest.mark.parametrize("most", [100, 1 << 33])
def test_a_member_may_be_written_in_any_order(most: int) -> None:
    """Through a window of the archive itself, as files are written that have no order of their own."""

    def write(window: Window) -> None:
        window.write(memoryview(b"....world"))
        window.seek(0)
        window.write(memoryview(b"hell"))
        assert (window.seek(0, io.SEEK_END), window.end()) == (9, 9)
        window.seek(-5, io.SEEK_CUR)
        assert window.read(3) == b"wor"
        window.truncate(8)

    file = io.BytesIO()
    writer = ZipWriter(file)
    writer.add("before", 3, [b"abc"])
    crc = writer.add_written("member", write, most=most)
    writer.add("after", 3, [b"xyz"])
    with pytest.raises(ValueError, match="is there already"):
        writer.add_written("member", write, most=most)
    writer.close()
    assert crc == zlib.crc32(b"hellworl")
    with zipfile.ZipFile(file) as theirs:
        assert theirs.testzip() is None
        assert {name: theirs.read(name) for name in theirs.namelist()} == {
            "before": b"abc",
            "member": b"hellworl",
            "after": b"xyz",
        }
    opened = ZipArchive(MemoryReader(file.getvalue()))
    assert {name: opened.open(name).read(0, opened.open(name).size) for name in opened.entries} == {
        "before": b"abc",
        "member": b"hellworl",
        "after": b"xyz",
    }


def test_a_member_that_is_longer_than_was_said_is_refused() -> None:
    writer = ZipWriter(io.BytesIO())
    with pytest.raises(ValueError, match="9 bytes where at most 8 were announced"):
        writer.add_written("member", lambda window: window.write(memoryview(bytes(9))), most=8)


def test_a_member_may_be_read_without_its_checksum() -> None:
    """What is handed out then is what lies there, within the member."""
    file = io.BytesIO()
    writer = ZipWriter(file)
    writer.add("member", 6, [b"abcdef"])
    writer.close()
    data = file.getvalue().replace(b"abcdef", b"abcdeX")
    member = ZipArchive(MemoryReader(data)).open("member")
    assert isinstance(member, StoredMember)
    raw = member.unverified()
    assert (raw.read(3, 3), raw.size, raw.name) == (b"deX", 6, member.name)
    with pytest.raises(TruncatedError):
        raw.read(3, 4)
    with pytest.raises(ChecksumError):
        member.read(3, 3)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_peek_shows_the_beginning_and_verifies_nothing(method: int) -> None:
    data = np.random.default_rng(3).integers(0, 4, 300_000, np.uint8).tobytes()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a", data)
        archive.writestr("b", b"")
    broken = bytearray(file.getvalue())
    broken[len(broken) // 2] ^= 1
    member = ZipArchive(MemoryReader(bytes(broken))).open("a")
    assert member.peek(100) == data[:100]
    assert member.peek(1 << 30)[:1000] == data[:1000]
    with pytest.raises(FormatError):
        member.read(0, 100)
    assert ZipArchive(MemoryReader(file.getvalue())).open("b").peek(100) == b""
