"""Digests are computed from the data, each tensor read once, and paths listed only where asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.format.digests import node_digest
from ckptfmt.tree.source import ArraySource

if TYPE_CHECKING:
    from pathlib import Path


def test_every_path_has_the_digest_of_its_tensor() -> None:
    one = np.arange(5.0)
    found = ckptfmt.digest({"a": one, "b": {"c": one}, "d": one + 1})
    assert list(found.tensors) == ["a", "b/c", "d"]
    assert found.tensors["a"] == found.tensors["b/c"] != found.tensors["d"]
    assert found.root == node_digest(
        {"a": ckptfmt.Tensor.of(one), "b": {"c": ckptfmt.Tensor.of(one)}, "d": ckptfmt.Tensor.of(one + 1)}
    )


def test_a_tied_tensor_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    real = ArraySource.view

    def counted(source: ArraySource, start: int, stop: int) -> memoryview | None:
        reads.append(stop - start)
        return real(source, start, stop)

    monkeypatch.setattr(ArraySource, "view", counted)
    one = np.arange(5.0)
    ckptfmt.digest({"a": one, "b": one, "c": [one]})
    assert reads == [40]


def test_a_tree_that_shares_a_million_times_is_digested_at_once_without_its_paths() -> None:
    node: object = [np.arange(3)]
    for _ in range(20):
        node = [node, node]
    assert ckptfmt.digest(node, paths=False).tensors == {}


def test_what_a_checkpoint_claims_is_not_believed(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.arange(9)}, tmp_path / "c")
    shard = next((tmp_path / "c").glob("data-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ckptfmt.ChecksumError):
        ckptfmt.digest(tmp_path / "c")


def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[int, int]] = []
    ckptfmt.digest([np.zeros(10), np.ones(5)], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (120, 120)
