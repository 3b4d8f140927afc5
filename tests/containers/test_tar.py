"""Tar archives: the standard library's are read, damaged and hostile ones refused."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from ckptfmt.containers.tar import read_tar
from ckptfmt.errors import CkptError, FormatError, LimitError, TruncatedError
from ckptfmt.storage.reader import MemoryReader

if TYPE_CHECKING:
    from collections.abc import Iterable

MEMBERS = {"a": b"x", "b/c": b"", "long/" + "n" * 180: b"y" * 513, "é": bytes(1024)}


def archived(
    members: Iterable[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT, mtime: float = 1.25
) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime if kind == tarfile.PAX_FORMAT else 1
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_where_the_standard_library_put_them(kind: int) -> None:
    members = {
        name: data for name, data in MEMBERS.items() if kind != tarfile.USTAR_FORMAT or len(name) < 100
    }
    reader = MemoryReader(archived(members.items(), kind))
    found = {name: member.open(reader).read(0, member.size) for name, member in read_tar(reader).items()}
    assert found == members


def test_what_is_no_regular_file_is_left_out() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("./f"))
    assert list(read_tar(MemoryReader(file.getvalue()))) == ["f"]


def test_an_archive_that_ends_early_is_truncated_wherever_it_ends() -> None:
    data = archived([("a", b"x" * 600), ("b", b"y")])
    end = len(data.rstrip(b"\0"))
    end += -end % 512 + 1024  # what follows the end mark is padding
    for length in range(0, end, 7):
        with pytest.raises(TruncatedError) as caught:
            read_tar(MemoryReader(data[:length], "x.tar"))
        assert caught.value.file == "x.tar"
    assert list(read_tar(MemoryReader(data[:end]))) == ["a", "b"]


def test_a_changed_header_is_found() -> None:
    data = archived([("a", b"x")], mtime=1)
    for at in range(500):
        changed = bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]])
        if 148 <= at < 156:  # the checksum itself, whose padding says nothing
            continue
        with pytest.raises(FormatError):
            read_tar(MemoryReader(changed))


def test_every_changed_byte_of_a_pax_header_gives_members_or_a_typed_error() -> None:
    data = archived([("é" * 70, b"x")])
    for at in range(512, 1024):
        changed = bytearray(data)
        changed[at] ^= 0x11
        try:
            read_tar(MemoryReader(bytes(changed)))
        except CkptError as error:
            assert isinstance(error, FormatError)  # noqa: PT017 - any of them


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157], block[257:265] = kind, b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_a_large_size_in_binary_is_read() -> None:
    data = header(b"a", b"\x80" + bytes(10) + b"\x05") + b"hello".ljust(512, b"\0") + bytes(1024)
    assert read_tar(MemoryReader(data))["a"].size == 5
    with pytest.raises(TruncatedError, match="a member of"):
        read_tar(MemoryReader(header(b"a", b"\x80\x7f" + bytes(9) + b"\x05") + data[512:]))


def pax(text: bytes) -> bytes:
    return header(b"p", b"%o" % len(text), b"x") + text.ljust(512, b"\0")


HOSTILE = {
    "two of one name": (header(b"a", b"0") * 2 + bytes(1024), "two members"),
    "size that is no number": (header(b"a", b"9") + bytes(1024), "octal"),
    "negative size": (header(b"a", b"\xff" * 12) + bytes(1024), "octal"),
    "pax without an end": (pax(b"99 path=x\n") + bytes(1024), "pax"),
    "pax of no length": (pax(b"0 path=x\n") + bytes(1024), "pax"),
    "pax with a huge size": (pax(b"30 size=99999999999999999999\n\n") + bytes(1024), "pax"),
    "pax with a size of text": (pax(b"10 size=x\n") + bytes(1024), "size"),
    "sparse": (pax(b"22 GNU.sparse.major=1\n") + bytes(1024), "sparse"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_cannot_be_is_refused(kind: str) -> None:
    data, match = HOSTILE[kind]
    with pytest.raises(FormatError, match=match):
        read_tar(MemoryReader(data))


def test_members_without_end_are_refused() -> None:
    data = header(b"a", b"0", b"5") * 70_000
    with pytest.raises(LimitError, match="members"):
        read_tar(MemoryReader(data))
