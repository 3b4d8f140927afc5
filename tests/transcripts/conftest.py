"""The folder that transcripts run in."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stage(tmp_path: Path, examples_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few files, which is the present one.

    ``training.pt`` is the example's; ``a.npz`` and ``b.npz`` differ in one element by one unit in the last
    place, in a shape, and in one name; ``runs`` holds two steps, one of them damaged.
    """
    shutil.copy(examples_data / "training.pt", tmp_path)
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "a.npz", w=w, b=np.zeros(3), only_a=np.ones(1, np.int8))
    other = w.copy()
    other[1, 1] = np.nextafter(other[1, 1], np.float32(9))
    np.savez(tmp_path / "b.npz", w=other, b=np.zeros(4), only_b=np.ones(1, np.int8))
    (tmp_path / "pointer.pt").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"
    )
    (tmp_path / "page.pt").write_bytes(b"<!DOCTYPE html><html><title>Sign in</title></html>")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-100])
    (tmp_path / "runs").mkdir()
    for step in (100, 200):
        tree = {"model": {"w": w + step}, "rate": 0.5}
        ckptfmt.save(tree, tmp_path / "runs" / f"step-{step:06}", step=step)
    shard = next((tmp_path / "runs" / "step-000200").glob("data-*"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    nan = {"w": np.array([1.0, np.nan, np.inf], np.float32), "z": np.zeros(2)}
    ckptfmt.save(nan, tmp_path / "nan")
    monkeypatch.chdir(tmp_path)
    return tmp_path
