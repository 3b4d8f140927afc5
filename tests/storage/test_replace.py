from __future__ import annotations

import errno
import mmap
import os
import stat
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import ExistsError, NotFoundError, StorageError
from ckptfmt.storage.recovery import leftovers
from ckptfmt.storage.replace import replacing
from ckptfmt.testing.faults import FOREVER, Fault, FaultySystem

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.storage.directory import Directory


def test_the_file_appears_at_the_end_and_not_before(tmp_path: Path) -> None:
    with replacing(tmp_path / "model.npz") as file:
        file.write(b"half")
        assert not (tmp_path / "model.npz").exists()
        (left,) = leftovers(tmp_path)
        assert left.target == str(tmp_path / "model.npz")
        assert left.state == "running"
        file.write(b" whole")
    assert (tmp_path / "model.npz").read_bytes() == b"half whole"
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="the real reason"):
        _fail(tmp_path / "model.pt")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("model.pt", b"old")]


def _fail(path: Path) -> None:
    with replacing(path, overwrite=True) as file:
        file.write(b"new" * 1_000_000)
        message = "the real reason"
        raise RuntimeError(message)


def test_whoever_has_the_old_file_mapped_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000))
    lazy = np.load(path, mmap_mode="r")
    system = FaultySystem()
    with replacing(path, overwrite=True, system=system) as file:
        np.save(file, lazy * 0 + 7)
    assert (lazy == np.arange(1000)).all()
    assert (np.load(path) == 7).all()
    assert not any(call.name == "truncate" for call in system.calls)
    del lazy


def test_a_mapped_archive_may_be_saved_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, first=np.arange(5.0), second=np.ones(3))
    with path.open("rb") as old, mmap.mmap(old.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = bytes(mapped)
        with np.load(path) as lazy, replacing(path, overwrite=True) as file:
            np.savez(file, first=lazy["first"] + 1, second=lazy["second"])
        assert bytes(mapped) == before
    with np.load(path) as again:
        assert (again["first"] == np.arange(5.0) + 1).all()


def test_it_is_synced_before_it_is_put_in_place(tmp_path: Path) -> None:
    for overwrite in (False, True):
        system = FaultySystem()
        with replacing(tmp_path / "file", overwrite=overwrite, system=system) as file:
            file.write(b"x")
        names = [call.name for call in system.calls]
        put = names.index("replace" if overwrite else "rename_new")
        synced = max(k for k, name in enumerate(names) if name == "sync")
        assert synced < put < names.index("sync_directory")


def test_the_mode_follows_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "file") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_without_leave_to_overwrite_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    system = FaultySystem()
    with pytest.raises(ExistsError), replacing(tmp_path / "file", system=system):
        pytest.fail("the block must not run")
    assert system.calls == []


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path, *, exchange: bool, links: bool) -> None:
    fault = None if links else Fault("error", at=1, number=errno.EPERM, name="link", times=FOREVER)
    target = tmp_path / "file"

    class Sudden(FaultySystem):
        """Somebody is faster at the very last moment."""

        def _come(self) -> None:
            if not target.exists():
                target.write_bytes(b"theirs")

        def rename_new(self, place: Directory, source: str, target: str) -> None:
            if exchange:
                self._come()
            super().rename_new(place, source, target)

        def link(self, place: Directory, source: str, target: str) -> None:
            self._come()
            super().link(place, source, target)

    with (
        pytest.raises(ExistsError),
        replacing(target, system=Sudden(fault, exchange=exchange)) as file,
    ):
        file.write(b"ours")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"theirs")]


@pytest.mark.parametrize("links", [True, False])
def test_file_systems_without_the_call_or_without_links_still_work(tmp_path: Path, *, links: bool) -> None:
    fault = None if links else Fault("error", at=1, number=errno.EPERM, name="link", times=FOREVER)
    system = FaultySystem(fault, exchange=False, positioned=False, descriptors=False)
    with replacing(tmp_path / "file", system=system) as file:
        file.write(b"x")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"x")]


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "file"
    if kind == "link":
        target.symlink_to("elsewhere")
    elif kind == "directory":
        target.mkdir()
    else:
        os.mkfifo(target)
    with pytest.raises(ExistsError, match="not a regular file"), replacing(target, overwrite=True):
        pytest.fail("the block must not run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_parent_and_a_name_that_is_none_are_typed(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError), replacing(tmp_path / "none" / "file"):
        pytest.fail("the block must not run")
    with pytest.raises(StorageError, match="names no entry"), replacing("/"):
        pytest.fail("the block must not run")


def test_it_behaves_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as file:
        assert str(file.name).startswith(str(tmp_path))
        assert file.write(b"0123456789" * 1000) == 10_000
        assert file.tell() == 10_000
        assert file.seek(5) == 5
        assert file.read(3) == b"567"
        assert file.write(b"XY") == 2
        assert file.seek(-2, os.SEEK_END) == 9998
        assert file.read() == b"89"
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            file.seek(-1)
        assert file.truncate(12) == 12
    assert path.read_bytes() == b"01234567XY01"


def test_others_may_write_to_it_by_its_name(tmp_path: Path) -> None:
    system = FaultySystem()
    with replacing(tmp_path / "file", system=system) as file:
        file.close()
        with open(file.name, "wb") as by_name:  # noqa: PTH123 (as libraries that take a path do)
            by_name.write(b"by name")
    assert (tmp_path / "file").read_bytes() == b"by name"


def test_the_standard_library_writes_archives_to_it(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.zip") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("member", b"x" * 3_000_000)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert archive.read("member") == b"x" * 3_000_000
