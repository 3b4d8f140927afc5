from __future__ import annotations

import errno
import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import ExistsError, StorageError
from ckptfmt.storage.directory import Directory
from ckptfmt.storage.files import PAGE, DataFile, aligned_buffer
from ckptfmt.storage.system import System
from ckptfmt.testing.faults import Fault, FaultySystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SYSTEMS = {
    "as the machine is": System,
    "no direct I/O": lambda: System(direct=False),
    "no preallocation": lambda: System(preallocation=False),
    "no positioned writes": lambda: System(positioned=False),
    "no descriptors": lambda: System(descriptors=False),
    "direct refused at open": lambda: FaultySystem(refuse_direct="open"),
    "direct refused at write": lambda: FaultySystem(refuse_direct="write"),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Directory]:
    with Directory(tmp_path) as opened:
        yield opened


def _random(size: int) -> memoryview:
    buffer = aligned_buffer(size)
    np.frombuffer(buffer, np.uint8)[:] = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    return buffer


@pytest.mark.parametrize("make", SYSTEMS.values(), ids=SYSTEMS)
@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, 5 * PAGE, 300 * PAGE + 77])
def test_threads_write_every_byte(tmp_path: Path, make: type[System], size: int) -> None:
    system, data, step = make(), _random(size), 4 * PAGE
    with Directory(tmp_path, descriptors=system.descriptors) as place:
        with DataFile(system, place, "data", size=size, direct=True) as file, ThreadPoolExecutor(4) as pool:
            starts = range(0, size, step)
            list(pool.map(lambda start: file.write_at(start, data[start : start + step]), starts))
            file.sync()
        assert file.written == size
        assert (tmp_path / "data").read_bytes() == bytes(data)
        assert place.names() == ["data"]


def test_a_file_system_without_direct_io_is_told(place: Directory) -> None:
    for refuse in ("open", "write"):
        system = FaultySystem(refuse_direct="open" if refuse == "open" else "write")
        with DataFile(system, place, refuse, size=PAGE, direct=True) as file:
            file.write_at(0, _random(PAGE))
            assert not file.direct
            assert file.retries == 0


def test_an_invalid_argument_of_a_buffered_write_is_an_error(place: Directory) -> None:
    system = FaultySystem(Fault("error", at=1, number=errno.EINVAL, name="write"))
    with DataFile(system, place, "data", size=PAGE) as file, pytest.raises(StorageError):
        file.write_at(0, bytes(PAGE))


@pytest.mark.parametrize("make", [System, lambda: System(direct=False)], ids=["direct", "buffered"])
@pytest.mark.parametrize(
    ("offset", "length"), [(1, PAGE), (0, 100), (PAGE, PAGE + 1), (-PAGE, PAGE), (2 * PAGE, 2 * PAGE)]
)
def test_partial_pages_inside_and_ranges_outside_are_refused_everywhere(
    place: Directory, make: type[System], offset: int, length: int
) -> None:
    with DataFile(make(), place, "data", size=3 * PAGE, direct=True) as file:
        with pytest.raises(ValueError, match="data: bytes"):
            file.write_at(offset, aligned_buffer(length))
        assert file.written == 0


def test_space_is_reserved_before_it_is_written(tmp_path: Path, place: Directory) -> None:
    with DataFile(System(), place, "data", size=64 * PAGE, direct=True):
        assert (tmp_path / "data").stat().st_blocks * 512 >= 64 * PAGE


def test_nothing_that_exists_is_opened(tmp_path: Path, place: Directory) -> None:
    (tmp_path / "data").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("data", "link"):
        with pytest.raises(ExistsError):
            DataFile(System(), place, name)
    assert (tmp_path / "data").read_bytes() == b"mine"
    assert not (tmp_path / "elsewhere").exists()


def test_a_failed_sync_is_final(place: Directory) -> None:
    system = FaultySystem(Fault("error", at=1, name="sync"))
    file = DataFile(system, place, "data")
    file.write_at(0, b"bytes")
    for _ in range(2):
        with pytest.raises(StorageError, match="could not bring it to the disk"):
            file.sync()
    file.close()
    assert sum(call.name == "sync" for call in system.calls) == 1


def test_closing_before_syncing_is_noticed(place: Directory) -> None:
    file = DataFile(System(), place, "data")
    file.write_at(0, b"bytes")
    file.close()
    file.close()
    with pytest.raises(StorageError, match="closed before"):
        file.sync()


def test_a_write_after_a_sync_is_synced_again(place: Directory) -> None:
    system = FaultySystem()
    with DataFile(system, place, "data") as file:
        for _ in range(2):
            file.write_at(0, b"bytes")
            file.sync()
            file.sync()
    assert sum(call.name == "sync" for call in system.calls) == 2


def test_an_aligned_buffer_starts_at_a_page_and_is_zeroed() -> None:
    for size in (1, PAGE, PAGE + 1, 1 << 20):
        buffer = aligned_buffer(size)
        assert np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] % mmap.PAGESIZE == 0
        assert len(buffer) == size
        assert not np.frombuffer(buffer, np.uint8).any()
        buffer[size - 1] = 7
    assert len(aligned_buffer(0)) == 0
