"""Fuzzing of Chainer's files: names, notes and what repeats them, and the files of several ranks.

What is read must come back the same when it is written again: one in eight is.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from ckptfmt.registry import read_foreign
from tools.fuzz.oracles import reads_alike
from tools.fuzz.structure import mutate_zip
from tools.fuzz.target import Target, fresh, state

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CHAINER"]


def _snapshot(place: Path, rank: int) -> bytes:
    """Return what a rank's trainer could have written."""
    members = {
        "updater/iteration": 4,
        "updater/model:main/l1/W": np.arange(6, dtype="f4").reshape(2, 3),
        "updater/model:main/l2/W": None,
        "updater/model:main/bn/avg_mean": np.full(2, rank, "f4"),
        "updater/optimizer:main/t": 4,
        "updater/iterator:main/order": np.arange(5)[:: 1 - 2 * rank],
        "extensions/LogReport/_log": '[{"epoch": 1}]',
    }
    arrays = {name: np.asarray(value) for name, value in members.items()}
    np.savez(place / "snapshot.npz", **arrays)  # type: ignore[arg-type] # no name is an option's
    return (place / "snapshot.npz").read_bytes()


def _seeds(place: Path) -> list[bytes]:
    made = []
    for tree in (state(), {"a": None, "a/b": {"c": np.ones(2)}}, {"x": {"n": 7, "t": "text", "f": 0.5}}):
        ckptfmt.write(tree, place / "seed", to="chainer-npz", overwrite=True)
        made.append((place / "seed").read_bytes())
    return [*made, _snapshot(place, 0)]


def _run(data: bytes, place: Path) -> None:
    path = place / "input.npz"
    path.write_bytes(data)
    reads_alike(lambda: read_foreign(path, "chainer-npz"), place, data)
    if zlib.crc32(data) % 8:
        return
    with read_foreign(path, "chainer-npz") as checkpoint:
        ckptfmt.write(checkpoint.tree, place / "again", to="chainer-npz", overwrite=True)
        with read_foreign(place / "again", "chainer-npz") as again:
            if ckptfmt.digest(again).root != ckptfmt.digest(checkpoint).root:
                raise AssertionError("written again, it is another tree")


def _rank_seeds(place: Path) -> list[bytes]:
    return [_snapshot(place, 1), _snapshot(place, 0)]


def _ranks(data: bytes, place: Path) -> None:
    folder = place / "ranks"
    if not folder.exists():
        fresh(folder)
        (folder / "run.0.4").write_bytes(_snapshot(place, 0))
    (folder / "run.1.4").write_bytes(data)
    reads_alike(lambda: read_foreign(folder, "chainermn"), place, data)


CHAINER = (
    Target("chainer-npz", _seeds, _run, mutate_zip),
    Target("chainermn", _rank_seeds, _ranks, mutate_zip),
)
