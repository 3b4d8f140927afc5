"""The process dies at every call that writes: the old checkpoint or the new one, and a way on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ckptfmt.errors import NotFoundError
from ckptfmt.storage.recovery import leftovers, recover
from ckptfmt.storage.replace import replacing
from ckptfmt.testing.faults import Fault, FaultySystem
from ckptfmt.testing.processes import KILLED, start, wait
from ckptfmt.testing.simple import load_simple, save_simple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfmt.storage.commit import Overwrite

OLD, NEW, NEXT = 1, 2, 3


@dataclass(frozen=True)
class Way:
    """One way to save: what is there before, how it is overwritten, and what the machine cannot do."""

    overwrite: Overwrite
    system: Callable[[Fault | None], FaultySystem] = FaultySystem
    there_before: bool = True


WAYS = {
    "create": Way("no", there_before=False),
    "create where overwriting is allowed": Way("exchange", there_before=False),
    "exchange": Way("exchange"),
    "two-step": Way("two-step", lambda fault: FaultySystem(fault, exchange=False)),
    "direct refused at open": Way("exchange", lambda fault: FaultySystem(fault, refuse_direct="open")),
    "direct refused at write": Way("exchange", lambda fault: FaultySystem(fault, refuse_direct="write")),
    "portable": Way(
        "two-step",
        lambda fault: FaultySystem(
            fault, preallocation=False, exchange=False, positioned=False, descriptors=False
        ),
    ),
}


@pytest.mark.parametrize("kind", ["kill", "kill-midway"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_killed_at_any_call_leaves_the_old_or_the_new(place: Path, way: Way, kind: str) -> None:
    template = place / "template"
    save_simple(template, OLD)
    calls = _count_calls(place / "count", template, way)
    assert calls >= 25  # else nothing was tested
    name = "write" if kind == "kill-midway" else None
    number = calls if name is None else sum(call == "write" for call in _names(place, template, way))
    for k in range(1, number + 1):
        fault = Fault("kill-midway" if name else "kill", at=k, name=name)
        _check_after_kill(place / str(k), template, way, fault)


def _names(place: Path, template: Path, way: Way) -> list[str]:
    where = place / "names"
    where.mkdir()
    if way.there_before:
        shutil.copytree(template, where / "ckpt")
    system = way.system(None)
    save_simple(where / "ckpt", NEW, overwrite=way.overwrite, system=system)
    return [call.name for call in system.calls]


def _count_calls(where: Path, template: Path, way: Way) -> int:
    where.mkdir()
    return len(_names(where, template, way))


def _check_after_kill(where: Path, template: Path, way: Way, fault: Fault) -> None:
    where.mkdir()
    target = where / "ckpt"
    if way.there_before:
        shutil.copytree(template, target)
    pid = start(lambda: save_simple(target, NEW, overwrite=way.overwrite, system=way.system(fault)))
    assert wait(pid) == KILLED
    _check_left_over(where)
    if target.exists():
        assert load_simple(target) in ({OLD, NEW} if way.there_before else {NEW})
    elif way.there_before:
        assert way.overwrite == "two-step"
        _check_neither(target)
    elsewhere = where / "copy"
    shutil.copytree(where, elsewhere)
    _check_recovers_first(elsewhere, way)
    shutil.rmtree(elsewhere)
    _check_saves_first(where, way)


def _check_left_over(where: Path) -> None:
    """Everything but the target is listed, its writer known to be gone or not to have finished its record."""
    found = leftovers(where)
    assert {left.target for left in found} <= {str(where / "ckpt")}
    unwritten = [left for left in found if left.kind == "owner-record" and left.owner is None]
    assert all(left.state == "gone" for left in found if left not in unwritten)
    listed = {left.path for left in found}
    hidden = {str(path) for path in where.iterdir() if path.name != "ckpt" and path.suffix != ".owner"}
    assert hidden <= listed
    assert listed or not any(path.suffix == ".owner" for path in where.iterdir())


def _check_neither(target: Path) -> None:
    with pytest.raises(NotFoundError, match="ckptfmt recover"):
        load_simple(target)


def _check_recovers_first(where: Path, way: Way) -> None:
    target = where / "ckpt"
    found = leftovers(where)
    planned = recover(where, dry_run=True)
    assert leftovers(where) == found
    assert recover(where) == planned
    assert {action.kind for action in planned} <= {"restored", "removed"}
    assert len(planned) == len(found)
    _check_settled(where, way)
    _save_next(target, way)


def _save_next(target: Path, way: Way) -> None:
    overwrites = target.exists() and way.overwrite == "no"
    save_simple(target, NEXT, overwrite="exchange" if overwrites else way.overwrite)
    assert load_simple(target) == NEXT


def _check_settled(where: Path, way: Way) -> None:
    if way.there_before:
        assert load_simple(where / "ckpt") in {OLD, NEW}
    assert [path.name for path in where.iterdir()] in ([], ["ckpt"])


def _check_saves_first(where: Path, way: Way) -> None:
    target = where / "ckpt"
    _save_next(target, way)
    recover(target)
    assert load_simple(target) == NEXT
    assert [path.name for path in where.iterdir()] == ["ckpt"]


def _export(path: Path, data: bytes, system: FaultySystem, *, overwrite: bool) -> None:
    with replacing(path, overwrite=overwrite, system=system) as file:
        file.write(data)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("exchange", [True, False])
def test_export_killed_at_any_call_leaves_the_old_file_or_the_new(
    place: Path, *, overwrite: bool, exchange: bool
) -> None:
    old, new = b"old" * 1000, b"newer" * 1000
    system = FaultySystem(exchange=exchange)
    _export(place / "count", new, system, overwrite=overwrite)
    assert len(system.calls) >= 7
    for k in range(1, len(system.calls) + 1):
        where = place / str(k)
        where.mkdir()
        target = where / "model.pt"
        if overwrite:
            target.write_bytes(old)
        dying = FaultySystem(Fault("kill", at=k), exchange=exchange)
        assert wait(start(lambda: _export(target, new, dying, overwrite=overwrite))) == KILLED  # noqa: B023
        seen = target.read_bytes() if target.exists() else None
        assert seen in ({old, new} if overwrite else {None, new})
        _export(target, new, FaultySystem(), overwrite=seen is not None)
        recover(where)
        assert [(path.name, path.read_bytes()) for path in where.iterdir()] == [("model.pt", new)]
