from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from ckptfmt.errors import NotFoundError, StorageError
from ckptfmt.storage.owner import Owner, State, new_names, owner_state, parse_name, read_owner, this_process
from ckptfmt.storage.recovery import leftovers, locate, recover
from ckptfmt.testing.processes import start, wait
from ckptfmt.testing.simple import load_simple, save_simple


def _gone() -> Owner:
    """Return the record of a process that was, on this machine."""
    pid = start(lambda: None)
    wait(pid)
    return dataclasses.replace(this_process(), pid=pid)


def _leave(
    parent: Path, version: int, owner: Owner | None, *, suffix: str = "", target: str = "ckpt"
) -> Path:
    """Leave a whole checkpoint under a writer's name, and the writer's record."""
    names = new_names(target)
    save_simple(parent / "made", version)
    left = (parent / "made").rename(parent / (names.staging + suffix))
    if owner is not None:
        (parent / names.owner).write_bytes(owner.encode())
    return left


def _here() -> Owner:
    return this_process()


CASES: list[tuple[str, State]] = [
    ("this process", "running"),
    ("a process that has ended", "gone"),
    ("another process of the same number", "gone"),
    ("the machine was started anew", "gone"),
    ("another machine", "other-host"),
    ("another container", "unknown"),
    ("no record", "unknown"),
]


def _owner(case: str) -> Owner | None:
    here = this_process()
    return {
        "this process": here,
        "a process that has ended": _gone(),
        "another process of the same number": dataclasses.replace(here, started=(here.started or 0) + 1),
        "the machine was started anew": dataclasses.replace(here, boot="another"),
        "another machine": dataclasses.replace(here, host="elsewhere"),
        "another container": dataclasses.replace(here, namespace="pid:[1]"),
        "no record": None,
    }[case]


@pytest.mark.parametrize(("case", "state"), CASES)
def test_a_writer_is_gone_only_when_that_is_known(tmp_path: Path, case: str, state: State) -> None:
    left = _leave(tmp_path, 1, _owner(case))
    (found,) = leftovers(tmp_path)
    assert (found.kind, found.path, found.target) == ("staging", str(left), str(tmp_path / "ckpt"))
    assert found.size == sum(path.stat().st_size for path in left.iterdir())
    assert found.state == state
    (action,) = recover(tmp_path, dry_run=True)
    assert action.kind == ("removed" if state == "gone" else "kept")
    assert left.exists()
    assert recover(tmp_path) == [action]
    assert left.exists() == (state != "gone")
    (forced,) = recover(tmp_path, force=True) or [action]
    assert forced.kind == ("kept" if state == "running" else "removed")
    assert left.exists() == (state == "running")


def test_machines_of_one_common_name_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "localhost.localdomain")
    assert owner_state(this_process()) == "running"
    assert owner_state(dataclasses.replace(this_process(), boot="another")) == "unknown"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells it from one that runs")
def test_a_dead_process_nobody_waited_for_is_gone() -> None:
    read, write = os.pipe()
    pid = start(lambda: None)
    os.close(write)
    os.read(read, 1)  # returns when the process has ended and its copy of the pipe is closed
    os.close(read)
    owner = dataclasses.replace(this_process(), pid=pid, started=None)
    while owner_state(owner) == "running":
        pass
    assert owner_state(owner) == "gone"
    wait(pid)


@pytest.mark.parametrize("owner", [None, _here()], ids=["unknown", "running"])
def test_a_missing_target_names_the_command_that_restores_it(tmp_path: Path, owner: Owner | None) -> None:
    _leave(tmp_path, 1, owner, suffix=".old")
    with pytest.raises(NotFoundError, match="try again" if owner else "ckptfmt recover"):
        locate(tmp_path / "ckpt")


def test_nothing_left_is_nothing_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file or directory"):
        locate(tmp_path / "ckpt")
    with pytest.raises(NotFoundError, match="nothing is left"):
        recover(tmp_path / "ckpt")
    assert recover(tmp_path) == []
    save_simple(tmp_path / "ckpt", 1)
    assert recover(tmp_path / "ckpt") == []
    with locate(tmp_path / "ckpt") as place:
        assert "manifest.json" in place.names()


def test_the_newest_set_aside_is_restored_and_the_rest_removed(tmp_path: Path) -> None:
    gone = _gone()
    for version, time in [(1, 5), (2, 9), (3, 7)]:
        _leave(tmp_path, version, dataclasses.replace(gone, time_ns=time), suffix=".old")
    actions = recover(tmp_path / "ckpt")
    assert [action.kind for action in actions] == ["restored", "removed", "removed"]
    assert load_simple(tmp_path / "ckpt") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_while_the_newest_may_not_be_touched_nothing_set_aside_is_removed(tmp_path: Path) -> None:
    newest = dataclasses.replace(this_process(), host="elsewhere", time_ns=9)
    _leave(tmp_path, 1, dataclasses.replace(_gone(), time_ns=5), suffix=".old")
    _leave(tmp_path, 2, newest, suffix=".old")
    assert {action.kind for action in recover(tmp_path / "ckpt")} == {"kept"}
    assert sum(left.complete for left in leftovers(tmp_path)) == 2


def test_a_set_aside_that_is_not_whole_is_not_restored_nor_lost(tmp_path: Path) -> None:
    left = _leave(tmp_path, 1, _gone(), suffix=".old")
    (left / "manifest.json").unlink()
    (action,) = recover(tmp_path / "ckpt")
    assert action.kind == "kept"
    assert left.exists()


def test_a_set_aside_is_removed_when_its_target_is_there(tmp_path: Path) -> None:
    save_simple(tmp_path / "ckpt", 2)
    _leave(tmp_path, 1, _gone(), suffix=".old")
    (action,) = recover(tmp_path / "ckpt")
    assert action.kind == "removed"
    assert load_simple(tmp_path / "ckpt") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_only_what_bears_our_names_is_listed_or_touched(tmp_path: Path) -> None:
    foreign = [".ckpt.tmp-17", ".ckpt.ckptfmt-XYZ", "ckpt.ckptfmt-0123456789ab", ".step-5.part", "x.owner"]
    for name in foreign:
        (tmp_path / name).mkdir()
    assert leftovers(tmp_path) == []
    assert recover(tmp_path, force=True) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(foreign)
    save_simple(tmp_path / "ckpt", 1)


def test_one_target_at_a_time(tmp_path: Path) -> None:
    mine, other = _leave(tmp_path, 1, _gone()), _leave(tmp_path, 1, _gone(), target="other")
    assert [action.path for action in recover(tmp_path / "ckpt")] == [str(mine)]
    assert other.exists()
    assert [left.path for left in leftovers(tmp_path)] == [str(other)]


def test_what_holds_a_directory_is_not_emptied_into_it(tmp_path: Path) -> None:
    left = _leave(tmp_path, 1, _gone())
    (left / "nested").mkdir()
    (left / "nested" / "precious").write_bytes(b"x")
    with pytest.raises(StorageError, match="could not remove"):
        recover(tmp_path)
    assert (left / "nested" / "precious").exists()
    assert len(leftovers(tmp_path)) == 1


def test_a_link_is_removed_not_followed(tmp_path: Path) -> None:
    names = new_names("ckpt")
    save_simple(tmp_path / "real", 1)
    (tmp_path / names.staging).symlink_to("real")
    (tmp_path / names.owner).write_bytes(_gone().encode())
    recover(tmp_path)
    assert load_simple(tmp_path / "real") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["real"]


def test_names_are_told_apart_from_targets() -> None:
    names = new_names("a.ckptfmt-0123456789ab")
    assert parse_name(names.staging) == (names, "")
    assert parse_name(names.owner) == (names, ".owner")
    assert parse_name(names.aside) == (names, ".old")
    assert parse_name("a.ckptfmt-0123456789ab") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b" " * 70_000 + b"{}",
        json.dumps({**dataclasses.asdict(_here()), "pid": "1"}).encode(),
        json.dumps({**dataclasses.asdict(_here()), "pid": True}).encode(),
        json.dumps({**dataclasses.asdict(_here()), "pid": -1}).encode(),
        json.dumps({**dataclasses.asdict(_here()), "host": None}).encode(),
        json.dumps({**dataclasses.asdict(_here()), "started": 1.5}).encode(),
        json.dumps({**dataclasses.asdict(_here()), "surprise": 1}).encode(),
    ],
)
def test_a_record_that_is_none_makes_its_writer_unknown(tmp_path: Path, data: bytes) -> None:
    assert read_owner(data) is None
    left = _leave(tmp_path, 1, None)
    (tmp_path / f"{left.name}.owner").write_bytes(data)
    assert [found.state for found in leftovers(tmp_path)] == ["unknown"]


def test_a_record_comes_back_as_it_was() -> None:
    owner = this_process("job 7")
    assert read_owner(owner.encode()) == owner
    assert owner_state(owner) == "running"


def test_a_directory_that_cannot_be_listed_is_typed(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        leftovers(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="not a directory"):
        leftovers(tmp_path / "file")
    shutil.rmtree(tmp_path)
