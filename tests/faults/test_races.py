"""Several processes at one target: one wins, each return tells the truth, a reader never sees half."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ckptfmt.errors import ExistsError, NotFoundError, StorageError
from ckptfmt.storage.recovery import leftovers
from ckptfmt.storage.replace import replacing
from ckptfmt.testing.faults import FaultySystem
from ckptfmt.testing.processes import start, wait
from ckptfmt.testing.simple import load_simple, save_simple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfmt.storage.commit import Overwrite

ROUNDS = 100
WRITERS = (1, 2)


class Starter:
    """Lets forked processes begin one round at the same moment."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def ready(self) -> None:
        os.close(self._write)
        os.read(self._read, 1)  # the end of the pipe: when the parent has closed it too

    def go(self) -> None:
        os.close(self._write)
        os.close(self._read)


def _at_once(functions: list[Callable[[], None]]) -> list[int]:
    """Run functions in processes that begin together; return their exit statuses."""
    starter = Starter()

    def begin(function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            starter.ready()
            function()

        return run

    pids = [start(begin(function)) for function in functions]
    starter.go()
    return [wait(pid) for pid in pids]


def _saving(target: Path, version: int, overwrite: Overwrite, said: Path) -> Callable[[], None]:
    """Return a save that leaves word of how it went: what it raised, or that it returned."""
    system = FaultySystem(exchange=overwrite != "two-step")

    def run() -> None:
        try:
            save_simple(target, version, overwrite=overwrite, system=system)
        except StorageError as error:
            (said / str(version)).write_text(type(error).__name__)
        else:
            (said / str(version)).write_text("saved")

    return run


def test_of_two_creators_one_wins_and_the_other_is_told(place: Path) -> None:
    wins = []
    for k in range(ROUNDS):
        where, said = place / f"{k}", place / f"{k}-said"
        where.mkdir()
        said.mkdir()
        statuses = _at_once([_saving(where / "ckpt", version, "no", said) for version in WRITERS])
        assert statuses == [0, 0]
        answers = {version: (said / str(version)).read_text() for version in WRITERS}
        assert sorted(answers.values()) == [ExistsError.__name__, "saved"]
        assert answers[load_simple(where / "ckpt")] == "saved"
        assert [path.name for path in where.iterdir()] == ["ckpt"]
        wins.append(load_simple(where / "ckpt"))
    assert len(wins) == ROUNDS


@pytest.mark.parametrize("overwrite", ["exchange", "two-step"])
@pytest.mark.parametrize("there_before", [True, False])
def test_of_two_overwriters_both_succeed_and_the_target_is_one_of_them(
    place: Path, overwrite: Overwrite, *, there_before: bool
) -> None:
    for k in range(ROUNDS if there_before else ROUNDS // 4):
        where, said = place / f"{k}", place / f"{k}-said"
        where.mkdir()
        said.mkdir()
        if there_before:
            save_simple(where / "ckpt", 9)
        statuses = _at_once([_saving(where / "ckpt", version, overwrite, said) for version in WRITERS])
        assert statuses == [0, 0]
        assert [(said / str(version)).read_text() for version in WRITERS] == ["saved", "saved"]
        assert load_simple(where / "ckpt") in WRITERS
        assert [path.name for path in where.iterdir()] == ["ckpt"]


def test_of_two_exports_one_wins_and_the_other_is_told(memory: Path) -> None:
    for exchange in (True, False):  # without it, by a hard link
        for k in range(ROUNDS // 2):
            target = memory / f"{exchange}-{k}.pt"

            def export(content: bytes, *, target: Path = target, exchange: bool = exchange) -> None:
                with replacing(target, system=FaultySystem(exchange=exchange)) as file:
                    file.write(content)
                target.with_suffix(".won").write_bytes(content)

            def quietly(content: bytes) -> Callable[[], None]:
                def run() -> None:
                    try:
                        export(content)
                    except ExistsError:
                        return

                return run

            assert _at_once([quietly(b"one" * 5000), quietly(b"two" * 5000)]) == [0, 0]
            assert target.read_bytes() == target.with_suffix(".won").read_bytes()
    assert leftovers(memory) == []


@pytest.mark.parametrize("overwrite", ["exchange", "two-step"])
def test_readers_see_the_old_or_the_new_never_half(place: Path, overwrite: Overwrite) -> None:
    target = place / "ckpt"
    save_simple(target, 0)
    rounds = 1000 if place.is_relative_to("/dev/shm") else 200  # noqa: S108

    def write() -> None:
        for version in range(1, rounds + 1):
            save_simple(target, version, overwrite=overwrite)

    pid = start(write)
    seen, gone = [0], 0
    while seen[-1] < rounds:
        try:
            seen.append(load_simple(target))
        except NotFoundError:  # replaced while it was being opened: told, not mixed
            gone += 1
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            seen.append(load_simple(target))
            break
    assert seen[-1] == rounds
    assert seen == sorted(seen)
    assert len(set(seen)) > 10


def test_another_process_can_load_as_soon_as_save_returns(memory: Path) -> None:
    requests, answers = os.pipe(), os.pipe()

    def read() -> None:
        os.close(requests[1])
        while os.read(requests[0], 1):
            os.write(answers[1], bytes([load_simple(memory / "ckpt") % 251]))

    pid = start(read)
    for version in range(300):
        save_simple(memory / "ckpt", version, overwrite="exchange")
        os.write(requests[1], b"?")
        assert os.read(answers[0], 1) == bytes([version % 251])
    for fd in (*requests, *answers):
        os.close(fd)
    assert wait(pid) == 0
