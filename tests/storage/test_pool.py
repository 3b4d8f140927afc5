"""Sets of files that are larger than what may be open at once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from ckptfmt.errors import NotFoundError, ReplacedError, StorageError, TruncatedError
from ckptfmt.storage.pool import open_files
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.storage.slices import SliceReader

if TYPE_CHECKING:
    from pathlib import Path


def made(folder: Path, count: int = 5) -> dict[str, Path]:
    for k in range(count):
        (folder / str(k)).write_bytes(b"%d" % k * 10)
    return {str(k): folder / str(k) for k in range(count)}


@pytest.mark.parametrize("most_open", [1, 2, 5, 100])
def test_files_read_alike_however_many_may_be_open(most_open: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        readers = open_files(made(tmp_path), stack, most_open=most_open)
        for name in (*readers, *reversed(readers)):
            reader, out = readers[name], bytearray(3)
            reader.readinto(2, memoryview(out))
            assert (reader.size, reader.name) == (10, str(tmp_path / name))
            assert reader.read(7, 3) == bytes(out) == name.encode() * 3
            view = reader.view(0, 4)
            assert (view is None) is (most_open < 5)
            assert view is None or bytes(view) == name.encode() * 4
            with pytest.raises(TruncatedError):
                reader.read(8, 3)


def test_a_file_that_is_replaced_meanwhile_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        readers = open_files(made(tmp_path), stack, most_open=1)
        (tmp_path / "new").write_bytes(b"x" * 10)
        (tmp_path / "new").replace(tmp_path / "3")
        with pytest.raises(ReplacedError) as caught:
            readers["3"].read(0, 1)
        assert caught.value.file == str(tmp_path / "3")


def test_nothing_is_read_after_the_end_nor_of_what_is_not_there(tmp_path: Path) -> None:
    with ExitStack() as stack:
        readers = open_files(made(tmp_path), stack, most_open=1)
    with pytest.raises(StorageError, match="closed"):
        readers["0"].read(0, 1)
    with ExitStack() as stack, pytest.raises(NotFoundError):
        open_files({"x": tmp_path / "x"}, stack)


def test_a_slice_is_its_range_and_nothing_beside_it() -> None:
    whole = MemoryReader(memoryview(bytearray(b"0123456789")), "file")
    part = SliceReader(whole, 3, 4)
    assert (part.size, part.read(1, 3), part.name) == (4, b"456", "file from 3 on")
    out = bytearray(2)
    part.readinto(2, memoryview(out))
    assert out == b"56"
    assert bytes(part.view(0, 4) or b"") == b"3456"
    for offset, length in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(TruncatedError):
            part.read(offset, length)
        with pytest.raises(TruncatedError):
            part.view(offset, length)
    with pytest.raises(TruncatedError):
        SliceReader(whole, 8, 3)
