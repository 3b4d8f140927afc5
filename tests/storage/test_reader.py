from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ckptfmt.errors import NotFoundError, StorageError, TruncatedError
from ckptfmt.storage.directory import Directory
from ckptfmt.storage.reader import FileReader, MemoryReader, RangeSource

if TYPE_CHECKING:
    from pathlib import Path

DATA = bytes(range(256)) * 400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(DATA)
    return made


@pytest.mark.parametrize("positioned", [True, False])
def test_threads_read_the_bytes_they_asked_for(path: Path, *, positioned: bool) -> None:
    with FileReader(path, positioned=positioned) as reader, ThreadPoolExecutor(8) as pool:
        starts = [(k * 7919) % (len(DATA) - 500) for k in range(2000)]
        pieces = pool.map(lambda start: reader.read(start, 500), starts)
        assert all(piece == DATA[start : start + 500] for start, piece in zip(starts, pieces, strict=True))


@pytest.mark.parametrize("method", ["read", "view"])
@pytest.mark.parametrize(
    ("offset", "length"), [(0, len(DATA) + 1), (len(DATA), 1), (-1, 1), (0, -1), (1 << 62, 1)]
)
def test_ranges_outside_are_refused_before_anything_is_allocated(
    path: Path, method: str, offset: int, length: int
) -> None:
    with FileReader(path) as reader:
        for one in (reader, MemoryReader(DATA)):
            with pytest.raises(TruncatedError):
                getattr(one, method)(offset, length)


@pytest.mark.parametrize("positioned", [True, False])
def test_a_file_cut_after_opening_is_truncated_not_zeros(path: Path, *, positioned: bool) -> None:
    with FileReader(path, positioned=positioned) as reader:
        os.truncate(path, 100)
        with pytest.raises(TruncatedError, match="the file ends at 100"):
            reader.read(50, 100)


def test_a_view_is_private_and_writable(path: Path) -> None:
    with FileReader(path) as reader:
        view = reader.view(10, 5)
        assert view is not None
        view[:] = b"xxxxx"
        assert bytes(view) == b"xxxxx"
    assert path.read_bytes() == DATA


def test_without_mapping_there_is_no_view(path: Path) -> None:
    with FileReader(path, mapped=False) as reader:
        assert reader.view(0, 10) is None


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        FileReader(tmp_path / "pipe")


def test_missing_files_and_directories_are_typed(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        FileReader(tmp_path / "none")
    with pytest.raises(StorageError):
        FileReader(tmp_path)


def test_an_open_directory_stays_the_same_when_its_path_is_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"old")
    with Directory(tmp_path / "a") as place:
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_bytes(b"new")
        with place.reader("file") as reader:
            assert reader.read(0, reader.size) == b"old"
        assert place.names() == ["file"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "nul\0"])
def test_names_that_are_paths_are_refused(tmp_path: Path, name: str) -> None:
    with Directory(tmp_path) as place:
        with pytest.raises(ValueError, match="not the name of"):
            place.reader(name)
        with pytest.raises(ValueError, match="not the name of"):
            place.subdirectory(name)


@pytest.mark.parametrize("descriptors", [True, False])
def test_a_link_is_not_opened_as_a_subdirectory(tmp_path: Path, *, descriptors: bool) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Directory(tmp_path, descriptors=descriptors) as place:
        place.subdirectory("real").close()
        with pytest.raises(StorageError, match="not a directory"):
            place.subdirectory("link")


@pytest.mark.parametrize("descriptors", [True, False])
def test_a_directory_must_be_one(tmp_path: Path, path: Path, *, descriptors: bool) -> None:
    with pytest.raises(StorageError, match="is not a directory"):
        Directory(path, descriptors=descriptors)
    with pytest.raises(NotFoundError):
        Directory(path / "below a file", descriptors=descriptors)
    with pytest.raises(NotFoundError):
        Directory(tmp_path / "none", descriptors=descriptors)


def test_a_range_source_gives_its_range_only() -> None:
    source = RangeSource(MemoryReader(memoryview(bytearray(DATA))), 10, 20)
    out = bytearray(5)
    source.readinto(3, memoryview(out))
    assert bytes(out) == DATA[13:18]
    assert bytes(source.view(0, 20) or b"") == DATA[10:30]
    with pytest.raises(TruncatedError):
        RangeSource(MemoryReader(DATA), len(DATA) - 1, 2)
