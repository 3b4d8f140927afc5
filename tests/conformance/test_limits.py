"""Limits that need checkpoints too large to store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import read_ckptfmt

import ckptfmt
from ckptfmt.errors import LimitError
from tools.make_vectors.parts import f32
from tools.make_vectors.writer import draft

if TYPE_CHECKING:
    from pathlib import Path


def with_header_of(mebibytes: int, path: Path) -> Path:
    """Write a checkpoint whose one header has somewhat more than so many MiB."""
    names = [f"{index:05}".ljust(4000, "k") for index in range(mebibytes * 259)]
    tree = ["map", [[name, f32()] for name in names]]
    path.mkdir()
    for name, data in draft(tree).seal().items():
        (path / name).write_bytes(data)
    return path


@pytest.mark.slow
def test_a_header_within_the_limit_is_read(tmp_path: Path) -> None:
    path = with_header_of(15, tmp_path / "c")
    assert len(read_ckptfmt.read(path).tensors) == 15 * 259
    assert ckptfmt.check(path).ok


@pytest.mark.slow
def test_a_header_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = with_header_of(17, tmp_path / "c")
    with pytest.raises(read_ckptfmt.RejectedError) as caught:
        read_ckptfmt.read(path)
    assert (caught.value.rule, caught.value.kind) == ("R-015", "limit")


@pytest.mark.slow
def test_load_refuses_a_header_beyond_the_limit(tmp_path: Path) -> None:
    with pytest.raises(LimitError) as caught:
        ckptfmt.load(with_header_of(17, tmp_path / "c"))
    assert caught.value.rule == "R-015"
