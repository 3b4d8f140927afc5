"""The whole of `save` under faults: whatever call fails or kills, what is at the target checks and loads."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import StorageError
from ckptfmt.testing.faults import FOREVER, Fault, FaultySystem
from ckptfmt.testing.processes import KILLED, start, wait

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


OLD, NEW, NEXT = 1, 2, 3
LARGE = 256 << 10


@pytest.fixture(autouse=True)
def _direct_from_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write also a small shard directly, so that many tries take little time."""
    monkeypatch.setattr("ckptfmt.parallel.pipeline.DIRECT_FROM", LARGE)


@dataclass(frozen=True)
class Way:
    """How to save, and what the machine cannot do."""

    overwrite: bool | Literal["two-step"]
    codec: str = "raw"
    system: Callable[[Fault | None], FaultySystem] = FaultySystem


WAYS = {
    "create": Way(overwrite=False),
    "exchange": Way(overwrite=True),
    "two-step": Way("two-step", system=lambda fault: FaultySystem(fault, exchange=False)),
    "coded": Way(overwrite=True, codec="zstd"),
    "direct refused": Way(overwrite=True, system=lambda fault: FaultySystem(fault, refuse_direct="write")),
}


def _save(path: Path, version: int, way: Way, *, overwrite: bool | Literal["two-step"] | None = None) -> None:
    large = np.full(LARGE >> 2, version, np.float32)
    small = {f"t{k}": np.full((3, k), version, np.int16) for k in range(5)}
    asked = way.overwrite if overwrite is None else overwrite
    tree = {"large": large, "small": small}
    ckptfmt.save(tree, path, step=version, overwrite=asked, codec=way.codec, shard_size=LARGE, threads=2)


def _version(path: Path) -> int:
    """Return which version is there, after checking all of it."""
    report = ckptfmt.check(path)
    assert report.ok, report
    with ckptfmt.load(path) as opened:
        values = np.unique(opened.tensors()["large"].numpy())
    assert len(values) == 1
    return int(values[0])


def _prepare(where: Path, template: Path, way: Way) -> Path:
    where.mkdir()
    if way.overwrite:
        shutil.copytree(template, where / "ckpt")
    return where / "ckpt"


def _run(target: Path, way: Way, system: FaultySystem, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ckptfmt.storage.commit.System", lambda: system)
    _save(target, NEW, way)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_save_killed_at_any_call(memory: Path, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    template = memory / "template"
    _save(template, OLD, way, overwrite=False)
    system = way.system(None)
    with monkeypatch.context() as patch:
        _run(_prepare(memory / "count", template, way), way, system, patch)
    assert len(system.calls) >= 25
    for k in range(1, len(system.calls) + 1):
        where = memory / str(k)
        target = _prepare(where, template, way)
        dying = way.system(Fault("kill", at=k))
        assert wait(start(lambda: _run(target, way, dying, monkeypatch))) == KILLED  # noqa: B023
        if not target.exists():
            assert way.overwrite in {False, "two-step"}
            ckptfmt.recover(where)
        if way.overwrite or target.exists():
            assert _version(target) in ({OLD, NEW} if way.overwrite else {NEW})
        _save(target, NEXT, way, overwrite=target.exists())
        ckptfmt.recover(where)
        assert _version(target) == NEXT
        assert [path.name for path in where.iterdir()] == ["ckpt"]
        shutil.rmtree(where)


@pytest.mark.parametrize("times", [1, FOREVER], ids=["once", "for ever"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("way", [WAYS["exchange"], WAYS["create"]], ids=["exchange", "create"])
def test_a_save_with_an_error_at_any_call(
    memory: Path, way: Way, number: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = memory / "template"
    _save(template, OLD, way, overwrite=False)
    system = way.system(None)
    with monkeypatch.context() as patch:
        _run(_prepare(memory / "count", template, way), way, system, patch)
    for k in range(1, len(system.calls) + 1):
        target = _prepare(memory / str(k), template, way)
        failing = way.system(Fault("error", at=k, number=number, times=times))
        saved = True
        with monkeypatch.context() as patch:
            try:
                _run(target, way, failing, patch)
            except StorageError as error:
                saved = "is in place" in error.message
        if saved:
            assert _version(target) == NEW
        elif way.overwrite:
            assert _version(target) == OLD
        else:
            assert not target.exists()
        shutil.rmtree(memory / str(k))
