from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ckptfmt.errors import ExistsError, NotFoundError, StorageError
from ckptfmt.storage import removal
from ckptfmt.storage.commit import Overwrite, Staging
from ckptfmt.storage.recovery import leftovers, locate
from ckptfmt.storage.system import System
from ckptfmt.testing.faults import Fault, FaultySystem
from ckptfmt.testing.processes import start, wait
from ckptfmt.testing.simple import load_simple, save_simple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfmt.storage.directory import Directory

OVERWRITES: list[Overwrite] = ["exchange", "two-step"]


@pytest.fixture
def mask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_calls_come_in_the_order_that_makes_them_durable(tmp_path: Path) -> None:
    save_simple(tmp_path / "ckpt", 1)
    system = FaultySystem()
    save_simple(tmp_path / "ckpt", 2, overwrite="exchange", system=system)
    calls = [(call.name, call.subject) for call in system.calls]
    files = ["data-1.bin", "data-2.bin", "note.json", "manifest.json"]
    written = {name: max(k for k, call in enumerate(calls) if call == ("write", name)) for name in files}
    synced = {name: calls.index(("sync", name)) for name in files}
    directories = [k for k, call in enumerate(calls) if call[0] == "sync_directory"]
    put = max(k for k, call in enumerate(calls) if call[0] == "exchange")
    removed = [k for k, call in enumerate(calls) if call[0] == "unlink" and call[1] in files]
    assert all(written[name] < synced[name] for name in files)
    assert written["manifest.json"] == max(written.values())
    assert max(synced.values()) < directories[0] < put < directories[1] < min(removed)
    assert calls[removed[0]][1] == "manifest.json"
    assert calls[-1][1].endswith(".owner")
    assert calls[0] == ("create", calls[-1][1])


@pytest.mark.usefixtures("mask")
def test_modes_follow_umask(tmp_path: Path) -> None:
    save_simple(tmp_path / "ckpt", 1)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ckpt").iterdir()}
    assert stat.S_IMODE((tmp_path / "ckpt").stat().st_mode) == 0o750
    assert set(modes.values()) == {0o640}
    assert len(modes) == 4


@pytest.mark.usefixtures("mask")
def test_group_follows_setgid_of_the_parent(tmp_path: Path) -> None:
    group = _another_group()
    os.chown(tmp_path, -1, group)
    tmp_path.chmod(0o2750)
    save_simple(tmp_path / "ckpt", 1)
    made = tmp_path / "ckpt"
    assert made.stat().st_mode & stat.S_ISGID
    assert {path.stat().st_gid for path in (made, *made.iterdir())} == {group}


def _another_group() -> int:
    others = [group for group in os.getgroups() if group != os.getegid()]
    if os.geteuid() == 0:
        return 12345
    if not others:
        pytest.skip("this user is in one group only")
    return others[0]


@pytest.mark.parametrize("overwrite", OVERWRITES)
@pytest.mark.parametrize("kind", ["file", "link to a checkpoint", "no manifest", "nested", "dangling link"])
def test_what_is_not_a_checkpoint_is_never_replaced(tmp_path: Path, overwrite: Overwrite, kind: str) -> None:
    target = tmp_path / "ckpt"
    _make_foreign(target, kind)
    before = _contents(tmp_path)
    with pytest.raises(ExistsError, match="not a checkpoint directory"):
        save_simple(target, 2, overwrite=overwrite)
    assert _contents(tmp_path) == before


def _make_foreign(target: Path, kind: str) -> None:
    if kind == "file":
        target.write_bytes(b"precious")
    elif kind == "dangling link":
        target.symlink_to("nowhere")
    elif kind == "link to a checkpoint":
        save_simple(target.with_name("real"), 1)
        target.symlink_to("real")
    else:
        target.mkdir()
        (target / "thesis.tex").write_bytes(b"precious")
        if kind == "nested":
            (target / "manifest.json").write_bytes(b"{}")
            (target / "src").mkdir()


def _contents(directory: Path) -> dict[str, bytes | None]:
    found = sorted(directory.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.mark.parametrize("overwrite", OVERWRITES)
def test_what_comes_between_looking_and_replacing_is_put_back(tmp_path: Path, overwrite: Overwrite) -> None:
    target = tmp_path / "ckpt"
    save_simple(target, 1)

    class Swapped(FaultySystem):
        """Somebody puts a directory of their own there at the last moment."""

        swapped = False

        def _swap(self, name: str) -> None:
            if name == "ckpt" and not self.swapped:
                shutil.rmtree(target)
                _make_foreign(target, "no manifest")
                self.swapped = True

        def exchange(self, place: Directory, first: str, second: str) -> None:
            self._swap(second)
            super().exchange(place, first, second)

        def rename(self, place: Directory, source: str, target: str) -> None:
            self._swap(source)
            super().rename(place, source, target)

    system = Swapped()
    with pytest.raises(ExistsError, match="not a checkpoint directory"):
        save_simple(target, 2, overwrite=overwrite, system=system)
    assert system.swapped
    assert [path.name for path in tmp_path.rglob("*")] == ["ckpt", "thesis.tex"]


def test_without_leave_to_overwrite_nothing_is_touched(tmp_path: Path) -> None:
    save_simple(tmp_path / "ckpt", 1)
    system = FaultySystem()
    with pytest.raises(ExistsError, match="already there"):
        save_simple(tmp_path / "ckpt", 2, system=system)
    assert system.calls == []
    assert load_simple(tmp_path / "ckpt") == 1


def test_an_empty_directory_is_a_free_target(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    save_simple(tmp_path / "ckpt", 1)
    assert load_simple(tmp_path / "ckpt") == 1


@pytest.mark.parametrize("descriptors", [True, False])
@pytest.mark.parametrize("overwrite", OVERWRITES)
def test_a_reader_keeps_the_bytes_of_a_checkpoint_that_is_overwritten(
    tmp_path: Path, overwrite: Overwrite, *, descriptors: bool
) -> None:
    save_simple(tmp_path / "ckpt", 1)
    with locate(tmp_path / "ckpt") as place, place.reader("data-1.bin") as reader:
        view = reader.view(0, reader.size)
        before = reader.read(0, reader.size)
        for version in range(2, 5):
            save_simple(
                tmp_path / "ckpt", version, overwrite=overwrite, system=System(descriptors=descriptors)
            )
        assert reader.read(0, reader.size) == before
        assert view is not None
        assert bytes(view) == before
    assert load_simple(tmp_path / "ckpt") == 4


def test_leaving_without_commit_leaves_nothing(tmp_path: Path) -> None:
    with Staging(tmp_path / "ckpt") as staging:
        staging.write_bytes("manifest.json", b"{}")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        _fail(tmp_path / "ckpt", KeyboardInterrupt(), System())
    assert list(tmp_path.iterdir()) == []


def _fail(path: Path, error: BaseException, system: System) -> None:
    with Staging(path, system=system) as staging:
        staging.write_bytes("data", b"x")
        staging.create("more", size=1 << 20, direct=True)
        raise error


def test_what_fails_while_cleaning_up_does_not_hide_the_error(tmp_path: Path) -> None:
    system = FaultySystem(Fault("error", at=1, number=errno.EIO, name="unlink", times=1 << 20))
    with pytest.raises(RuntimeError, match="the real reason"):
        _fail(tmp_path / "ckpt", RuntimeError("the real reason"), system)
    (left,) = leftovers(tmp_path)
    assert (left.kind, left.size, left.state) == ("staging", 1 + (1 << 20), "running")


def test_a_checkpoint_without_commit_record_is_never_put_in_place(tmp_path: Path) -> None:
    with Staging(tmp_path / "ckpt") as staging:
        staging.write_bytes("data", b"x")
        with pytest.raises(ValueError, match=r"no manifest\.json"):
            staging.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_could_not_be_synced_is_never_put_in_place(tmp_path: Path) -> None:
    system = FaultySystem(Fault("error", at=2, name="sync"))
    with Staging(tmp_path / "ckpt", system=system) as staging:
        with pytest.raises(StorageError):
            staging.write_bytes("data", b"x")
        staging.write_bytes("manifest.json", b"{}")
        with pytest.raises(StorageError, match="could not bring it to the disk"):
            staging.commit()
    assert list(tmp_path.iterdir()) == []


def test_an_old_checkpoint_that_cannot_be_removed_is_named_and_the_save_stands(tmp_path: Path) -> None:
    save_simple(tmp_path / "ckpt", 1)
    system = FaultySystem(Fault("error", at=1, number=errno.EBUSY, name="remove_directory"))
    with Staging(tmp_path / "ckpt", overwrite="exchange", system=system) as staging:
        staging.write_bytes("manifest.json", b"{}")
        staging.commit()
    assert staging.committed
    (left,) = leftovers(tmp_path)
    assert staging.left_over == left.path
    assert left.target == str(tmp_path / "ckpt")


@pytest.mark.parametrize("overwrite", OVERWRITES)
def test_an_old_checkpoint_that_cannot_be_looked_at_is_not_removed(
    tmp_path: Path, overwrite: Overwrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_simple(tmp_path / "ckpt", 1)

    def look_at(place: Directory, name: str, *, record: str) -> str:
        if name != "ckpt":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return removal.look_at(place, name, record=record)

    monkeypatch.setattr("ckptfmt.storage.commit.look_at", look_at)
    if overwrite == "exchange":
        save_simple(tmp_path / "ckpt", 2, overwrite=overwrite)
        assert load_simple(tmp_path / "ckpt") == 2
        (left,) = leftovers(tmp_path)
        assert load_simple(left.path) == 1
    else:
        with pytest.raises(StorageError, match="could not look at what is there"):
            save_simple(tmp_path / "ckpt", 2, overwrite=overwrite)
        assert load_simple(tmp_path / "ckpt") == 1
        assert leftovers(tmp_path) == []


@pytest.mark.parametrize("path", ["/", ".", "..", "x/.."])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    with pytest.raises(StorageError, match="names no entry"):
        Staging(path)


def test_a_missing_parent_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError), Staging(tmp_path / "none" / "ckpt"):
        pass


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "."])
def test_names_never_become_paths(tmp_path: Path, name: str) -> None:
    with Staging(tmp_path / "ckpt") as staging:
        with pytest.raises(ValueError, match="not the name of"):
            staging.write_bytes(name, b"")
        with pytest.raises(ValueError, match="not the name of"):
            staging.create(name)


def test_the_owner_record_says_who_and_is_never_published(tmp_path: Path) -> None:
    with Staging(tmp_path / "ckpt", job="run 7") as staging:
        (left,) = leftovers(tmp_path)
        assert left.state == "running"
        assert left.owner is not None
        assert (left.owner.pid, left.owner.job) == (os.getpid(), "run 7")
        staging.write_bytes("manifest.json", b"{}")
        staging.commit()
    assert [path.name for path in tmp_path.rglob("*")] == ["ckpt", "manifest.json"]


def test_a_limit_of_file_size_is_a_typed_error(tmp_path: Path) -> None:
    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(StorageError, match=os.strerror(errno.EFBIG)):
            save_simple(tmp_path / "ckpt", 1)
        assert list(tmp_path.iterdir()) == []

    assert wait(start(save)) == 0


SMALL_DISK = """
import subprocess, sys
from pathlib import Path
from ckptfmt.errors import NoSpaceError
from ckptfmt.storage.commit import Staging
from ckptfmt.storage.system import System
from ckptfmt.testing.simple import load_simple, save_simple
where = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", where], check=True)
save_simple(where / "old", 1)
for preallocation in (True, False):
    try:
        with Staging(where / "new", system=System(preallocation=preallocation)) as staging:
            file = staging.create("data", size=16 << 20, direct=True)
            file.write_at(0, memoryview(bytearray(16 << 20)))
            staging.commit()
    except NoSpaceError as error:
        assert "16777216 bytes are needed" in str(error), error
        assert "bytes are free" in str(error), error
    else:
        raise AssertionError("it fitted")
    assert [path.name for path in where.iterdir()] == ["old"]
assert load_simple(where / "old") == 1
save_simple(where / "old", 2, overwrite="exchange")
assert load_simple(where / "old") == 2
"""


def test_a_full_disk_is_named_and_leaves_no_debris(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("a small file system cannot be mounted here (unshare -rm)")
    command = [unshare, "-rm", sys.executable, "-c", SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
