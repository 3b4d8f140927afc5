from __future__ import annotations

import pytest

from ckptfmt.errors import TruncatedError
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.storage.slices import SliceReader


def test_a_section_is_a_reader_of_its_range_and_of_nothing_else() -> None:
    section = SliceReader(MemoryReader(memoryview(bytearray(b"0123456789"))), 2, 5, name="part")
    out = bytearray(2)
    section.readinto(1, memoryview(out))
    view = section.view(0, 5)
    assert (section.name, section.size, section.read(0, 5), bytes(out)) == ("part", 5, b"23456", b"34")
    assert view is not None
    assert bytes(view) == b"23456"
    for offset, length in ((0, 6), (5, 1), (-1, 1), (6, 0)):
        with pytest.raises(TruncatedError) as caught:
            section.read(offset, length)
        assert caught.value.file == "part"


def test_a_section_beyond_its_reader_is_refused() -> None:
    with pytest.raises(TruncatedError):
        SliceReader(MemoryReader(b"012"), 2, 2, name="part")
