"""What a target of fuzzing is, and what those of every kind of parser share."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.zip.writer import ZipWriter
from tools.fuzz.mutation import mutate, mutate_json

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

__all__ = ["CORPUS", "ROOT", "SENTINEL", "Target", "archive", "as_json", "corpus", "fresh", "state"]

SENTINEL = "fuzz-was-executed"
"""A file that some seeds would create if they were executed."""

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "corpus"


@dataclass(frozen=True, slots=True)
class Target:
    """A parser under test.

    Attributes
    ----------
    name : str
    seeds : callable
        Makes the first inputs in an empty directory.
    run : callable
        Feeds one input; may write in the directory given.
    change : callable
        Returns a changed input, given the random numbers to use and other inputs to take pieces from.
    needs : str
        What must be installed beside the package; nothing if empty.
    """

    name: str
    seeds: Callable[[Path], list[bytes]]
    run: Callable[[bytes, Path], None]
    change: Callable[[bytes, random.Random, Sequence[bytes]], bytes] = mutate
    needs: str = ""


def as_json(end: bytes) -> Callable[[bytes, random.Random, Sequence[bytes]], bytes]:
    """Return what changes inputs as JSON documents that `end` completes."""
    return partial(mutate_json, end=end)


def corpus(name: str) -> list[bytes]:
    """Return the kept inputs of a target, sorted by file name."""
    folder = CORPUS / name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def state() -> dict[object, object]:
    """Return a small tree of many kinds."""
    weight = np.arange(6, dtype="f4").reshape(2, 3)
    return {
        "model": {"w": weight, "tied": weight, "t": weight.T, "empty": np.zeros((2, 0)), "i": np.int64(5)},
        "names": np.array(["a", "é"]),
        "step": 7,
        "list": [1.5, None, (True, b"x", 2**70), {1, 2}],
        1: "one",
    }


def archive(members: dict[str, bytes]) -> bytes:
    """Return a zip archive of stored members."""
    file = io.BytesIO()
    writer = ZipWriter(file)
    for name, data in members.items():
        writer.add(name, len(data), [data])
    writer.close()
    return file.getvalue()


def fresh(place: Path) -> Path:
    """Return an empty directory."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
