"""The head of an HDF5 file, read without the library."""

from __future__ import annotations

import struct

import pytest

from ckptfmt.containers.hdf5.superblock import SIGNATURE, find_signature, read_superblock
from ckptfmt.errors import FormatError, TruncatedError, UnsupportedVersionError
from ckptfmt.storage.reader import MemoryReader


def old(end: int, *, base: int = 0, version: int = 0) -> bytes:
    """A superblock of version 0 or 1, as section II.A of the format has it."""
    more = b"\x20\0\0\0" if version else b""
    sizes = bytes((version, 0, 0, 0, 0, 8, 8, 0)) + struct.pack("<HHL", 4, 16, 0) + more
    return SIGNATURE + sizes + struct.pack("<QQQQ", base, 2**64 - 1, end, 2**64 - 1) + bytes(40)


def new(end: int, *, version: int = 2, flags: int = 0, width: int = 8) -> bytes:
    """A superblock of version 2 or 3."""
    head = SIGNATURE + bytes((version, width, width, flags))
    undefined = (1 << 8 * width) - 1
    addresses = (0, undefined, end, 48)
    return head + b"".join(value.to_bytes(width, "little") for value in addresses) + bytes(4)


@pytest.mark.parametrize("at", [0, 512, 1024, 2048, 1 << 16])
def test_the_signature_stands_at_a_power_of_two(at: int) -> None:
    assert find_signature(MemoryReader(bytes(at) + SIGNATURE)) == at


@pytest.mark.parametrize("at", [1, 8, 256, 511, 513, 1536])
def test_a_signature_elsewhere_is_none(at: int) -> None:
    assert find_signature(MemoryReader(bytes(at) + SIGNATURE + bytes(600))) is None


@pytest.mark.parametrize("make", [old, lambda end: old(end, version=1), new, lambda end: new(end, version=3)])
def test_a_file_that_ends_before_its_superblock_says_is_cut_short(make: object) -> None:
    data = make(300).ljust(300, b"\0")  # type: ignore[operator] # one of the two above
    assert read_superblock(MemoryReader(data)).end == 300
    for length in range(9, 300):
        with pytest.raises(TruncatedError, match=f"cut short after {length} bytes"):
            read_superblock(MemoryReader(data[:length]))


def test_a_user_block_counts() -> None:
    data = bytes(512) + old(812, base=512).ljust(300, b"\0")
    found = read_superblock(MemoryReader(data))
    assert (found.offset, found.end) == (512, 812)
    moved = bytes(1024) + data[512:]  # the block grew afterwards: the library shifts addresses
    assert read_superblock(MemoryReader(moved)).end == 1324
    with pytest.raises(TruncatedError):
        read_superblock(MemoryReader(moved[:-1]))


@pytest.mark.parametrize("flags", [0x01, 0x04, 0x05])
def test_a_file_that_is_open_for_writing_is_refused(flags: int) -> None:
    with pytest.raises(FormatError, match="open for writing"):
        read_superblock(MemoryReader(new(48, version=3, flags=flags)))


def test_newer_versions_and_other_widths_are_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 4"):
        read_superblock(MemoryReader(new(48, version=4)))
    with pytest.raises(UnsupportedVersionError, match="lengths of"):
        read_superblock(MemoryReader(new(80, width=4).ljust(80)))
    with pytest.raises(FormatError, match="no HDF5 signature"):
        read_superblock(MemoryReader(b"PK\3\4" + bytes(600)))
