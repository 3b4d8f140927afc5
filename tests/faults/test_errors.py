"""A call that writes fails: a typed error or success, and each tells the truth about the target."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ckptfmt.errors import ExistsError, NoSpaceError, StorageError, UnsupportedError
from ckptfmt.storage.recovery import leftovers, recover
from ckptfmt.storage.replace import replacing
from ckptfmt.testing.faults import FOREVER, Fault, FaultySystem
from ckptfmt.testing.processes import start, wait
from ckptfmt.testing.simple import load_simple, save_simple

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.storage.commit import Overwrite

OLD, NEW, NEXT = 1, 2, 3
NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR, errno.ESTALE, errno.EROFS]
WAYS: list[Overwrite] = ["no", "exchange", "two-step"]
CLEANING = {"unlink", "remove_directory"}


class Outcome(NamedTuple):
    """What a save with a fault did."""

    error: StorageError | None
    system: FaultySystem
    target: Path


def _attempt(where: Path, template: Path, overwrite: Overwrite, fault: Fault | None) -> Outcome:
    where.mkdir()
    target = where / "ckpt"
    if overwrite != "no":
        shutil.copytree(template, target)
    system = FaultySystem(fault)
    try:
        save_simple(target, NEW, overwrite=overwrite, system=system)
    except StorageError as error:
        return Outcome(error, system, target)
    return Outcome(None, system, target)


def _check(outcome: Outcome, overwrite: Overwrite) -> None:
    """The return tells the truth: an error means the old, unless it says that the new is in place."""
    error, target = outcome.error, outcome.target
    if error is None or "is in place" in error.message:
        assert load_simple(target) == NEW
    elif overwrite == "no":
        assert not target.exists()
    else:
        assert load_simple(target) == OLD


def _check_next_save(outcome: Outcome) -> None:
    save_simple(outcome.target, NEXT, overwrite="exchange")
    assert load_simple(outcome.target) == NEXT
    for left in leftovers(outcome.target.parent):
        assert left.target == str(outcome.target)
        unwritten = left.kind == "owner-record" and left.owner is None
        assert unwritten or left.state == "running"  # it is this process


@pytest.mark.parametrize("kind", ["error", "error-after"])
@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
@pytest.mark.parametrize("overwrite", WAYS)
def test_one_failing_call_leaves_no_debris(
    memory: Path, overwrite: Overwrite, number: int, kind: str
) -> None:
    template = memory / "template"
    save_simple(template, OLD)
    count = len(_attempt(memory / "count", template, overwrite, None).system.calls)
    assert count >= 25
    for k in range(1, count + 1):
        fault = Fault("error" if kind == "error" else "error-after", at=k, number=number)
        outcome = _attempt(memory / str(k), template, overwrite, fault)
        _check(outcome, overwrite)
        if number in {errno.ENOSPC, errno.EDQUOT} and outcome.error is not None:
            assert isinstance(outcome.error, NoSpaceError)
        struck = outcome.system.calls[k - 1].name
        if struck not in CLEANING and (outcome.error is None or "is in place" not in outcome.error.message):
            assert sorted(path.name for path in outcome.target.parent.iterdir()) in ([], ["ckpt"])
        _check_next_save(outcome)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
@pytest.mark.parametrize("overwrite", WAYS)
def test_failing_for_ever_from_any_call_on_is_typed_and_listed(
    memory: Path, overwrite: Overwrite, number: int
) -> None:
    template = memory / "template"
    save_simple(template, OLD)
    count = len(_attempt(memory / "count", template, overwrite, None).system.calls)
    neither = 0
    for k in range(1, count + 1):
        where = memory / str(k)
        fault = Fault("error", at=k, number=number, times=FOREVER)
        if overwrite == "two-step" and _strikes_between_the_steps(where, template, fault):
            neither += 1
            continue
        outcome = _attempt(where, template, overwrite, fault)
        _check(outcome, overwrite)
        assert outcome.error is None or outcome.error.errno == number
        listed = {left.path for left in leftovers(where)}
        stray = {str(path) for path in where.iterdir() if path.name != "ckpt" and path.suffix != ".owner"}
        assert stray <= listed
        _check_next_save(outcome)
    assert neither == (overwrite == "two-step")  # at the second rename, and at its undoing


def _strikes_between_the_steps(where: Path, template: Path, fault: Fault) -> bool:
    """Try, in another process; if neither is there afterwards, see that `recover` restores the old."""

    def save() -> None:
        outcome = _attempt(where, template, "two-step", fault)
        assert outcome.error is not None
        assert not outcome.target.exists()

    log = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    status = wait(start(save))
    os.dup2(log, 2)
    os.close(log)
    os.close(null)
    if status == 0:
        assert "restored" in {action.kind for action in recover(where / "ckpt")}
        assert load_simple(where / "ckpt") == OLD
        assert [path.name for path in where.iterdir()] == ["ckpt"]
        return True
    shutil.rmtree(where)
    return False


@pytest.mark.parametrize("overwrite", WAYS)
def test_short_writes_are_continued(place: Path, overwrite: Overwrite) -> None:
    template = place / "template"
    save_simple(template, OLD)
    calls = _attempt(place / "count", template, overwrite, None).system.calls
    writes = sum(call.name == "write" for call in calls)
    assert writes >= 6
    for k in range(1, writes + 1):
        outcome = _attempt(place / str(k), template, overwrite, Fault("short", at=k, name="write"))
        assert outcome.error is None
        assert load_simple(outcome.target) == NEW
        assert len(outcome.system.calls) == len(calls) + 1


@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR, errno.ESTALE], ids=errno.errorcode.get)
def test_a_transient_error_of_a_write_is_one_logged_retry(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    system = FaultySystem(Fault("error", at=3, number=number, name="write"))
    with caplog.at_level(logging.WARNING, logger="ckptfmt"):
        save_simple(tmp_path / "ckpt", NEW, system=system)
    assert load_simple(tmp_path / "ckpt") == NEW
    assert len(caplog.records) == 1
    assert os.strerror(number) in caplog.text


def test_a_lasting_error_of_a_write_ends_after_few_retries(tmp_path: Path) -> None:
    system = FaultySystem(Fault("error", at=1, number=errno.EIO, name="write", times=FOREVER))
    with pytest.raises(StorageError, match="could not write at 0"):
        save_simple(tmp_path / "ckpt", NEW, system=system)
    assert sum(call.name == "write" for call in system.calls) == 5
    assert sum(system.pauses) < 3
    assert list(tmp_path.iterdir()) == []


def test_a_failed_sync_is_never_retried_on_the_same_file(tmp_path: Path) -> None:
    system = FaultySystem(Fault("error", at=2, number=errno.EIO, name="sync"))  # the first is the owner's
    with pytest.raises(StorageError, match="could not bring it to the disk"):
        save_simple(tmp_path / "ckpt", NEW, system=system)
    synced = [call.subject for call in system.calls if call.name == "sync"]
    assert len(synced) == len(set(synced))
    assert not (tmp_path / "ckpt").exists()


def test_no_space_names_path_and_bytes_needed_and_free(tmp_path: Path) -> None:
    system = FaultySystem(Fault("error", at=1, number=errno.ENOSPC, name="allocate"))
    with pytest.raises(NoSpaceError) as caught:
        save_simple(tmp_path / "ckpt", NEW, system=system)
    assert caught.value.errno == errno.ENOSPC
    assert "8292 bytes are needed" in str(caught.value)
    assert "bytes are free" in str(caught.value)
    assert "data-1.bin" in str(caught.value)


def test_without_exchange_overwriting_says_what_to_do_before_anything_is_written(tmp_path: Path) -> None:
    save_simple(tmp_path / "ckpt", OLD)
    system = FaultySystem(exchange=False)
    with pytest.raises(UnsupportedError, match="save to a new name"):
        save_simple(tmp_path / "ckpt", NEW, overwrite="exchange", system=system)
    assert not any(call.name == "allocate" for call in system.calls)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]
    assert load_simple(tmp_path / "ckpt") == OLD


@pytest.mark.parametrize("kind", ["error", "error-after"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_export_failing_at_any_call_keeps_the_old_file(
    memory: Path, number: int, kind: str, *, exchange: bool, overwrite: bool
) -> None:
    old, new = b"old" * 1000, b"newer" * 1000

    def export(where: Path, system: FaultySystem) -> StorageError | None:
        where.mkdir()
        if overwrite:
            (where / "model.pt").write_bytes(old)
        try:
            with replacing(where / "model.pt", overwrite=overwrite, system=system) as file:
                file.write(new)
        except StorageError as error:
            return error
        return None

    counting = FaultySystem(exchange=exchange)
    assert export(memory / "count", counting) is None
    for k in range(1, len(counting.calls) + 1):
        fault = Fault("error" if kind == "error" else "error-after", at=k, number=number)
        system = FaultySystem(fault, exchange=exchange)
        error = export(memory / str(k), system)
        assert not isinstance(error, ExistsError)
        target = memory / str(k) / "model.pt"
        if error is None or "is in place" in error.message:
            assert target.read_bytes() == new
        else:
            assert (target.read_bytes() if target.exists() else None) == (old if overwrite else None)
        if system.calls[k - 1].name not in CLEANING:
            assert {path.name for path in target.parent.iterdir()} <= {"model.pt"}
