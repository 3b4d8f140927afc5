"""Everything that is wrong is yielded: once, in a fixed order, whatever the number of threads."""

from __future__ import annotations

import json
import os
import stat
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.parallel.opened import open_checkpoint
from ckptfmt.parallel.verifying import problems

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 4 << 20


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as out:
        out.seek(offset, 0 if offset >= 0 else 2)
        old = out.read(1)[0]
        out.seek(-1, 1)
        out.write(bytes([old ^ 16]))


def found(path: Path, threads: int = 4) -> list[str]:
    opened = open_checkpoint(path)
    try:
        return [str(problem) for problem in problems(opened, threads=threads)]
    finally:
        opened.close()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A checkpoint of three shards with five wrong chunks and a file too many."""
    rng = np.random.default_rng(0)
    state = {f"t{i}": rng.integers(0, 255, 5 * CHUNK, np.uint8) for i in range(2)}
    state |= {f"s{i}": rng.integers(0, 255, 100, np.uint8) for i in range(50)}
    ckptfmt.save(state, tmp_path / "c", shard_size=CHUNK)
    shards = sorted((tmp_path / "c").glob("data-*"))
    for shard, offset in ((0, -1), (0, -CHUNK - 1), (0, -5 * CHUNK), (1, -1), (2, -1)):
        flip(shards[shard], offset)
    (tmp_path / "c" / "stray.txt").write_bytes(b"")
    return tmp_path / "c"


def test_problems_do_not_depend_on_the_number_of_threads(damaged: Path) -> None:
    one = found(damaged, 1)
    assert len(one) == 6
    assert len(set(one)) == 6
    assert found(damaged, 2) == found(damaged, 7) == one


def test_who_stops_at_the_first_problem_leaves_no_thread(damaged: Path) -> None:
    before = threading.active_count()
    opened = open_checkpoint(damaged)
    told = problems(opened, threads=5)
    next(told)
    next(told)
    told.close()  # type: ignore[attr-defined] # a generator
    assert threading.active_count() == before
    opened.close()


def test_the_first_problem_ends_a_full_load(damaged: Path) -> None:
    with pytest.raises(ckptfmt.FormatError, match="does not belong"):
        ckptfmt.load(damaged, verify="full")
    (damaged / "stray.txt").unlink()
    with pytest.raises(ckptfmt.ChecksumError) as caught:
        ckptfmt.load(damaged, verify="full")
    assert (caught.value.tensor, caught.value.chunk) == ("t0", 0)


@pytest.mark.parametrize(
    "name", ["stray", ".hidden", "data-00004-of-00003.safetensors", "chunks.bin", "folder"]
)
def test_what_is_not_listed_does_not_belong(name: str, tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(9)}, tmp_path / "c")
    if name == "folder":
        (tmp_path / "c" / name).mkdir()
    else:
        (tmp_path / "c" / name).write_bytes(b"x")
    (finding,) = ckptfmt.check(tmp_path / "c").findings
    assert (finding.file, finding.rule) == (name, "R-050" if name == "chunks.bin" else "R-003")


def test_a_truncated_chunks_file_is_named_with_each_tensor_that_it_hurts(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.ones(2 * CHUNK, "u1"), "b": np.ones(3 * CHUNK, "u1")}, tmp_path / "c")
    chunks = tmp_path / "c" / "chunks.bin"
    chunks.write_bytes(chunks.read_bytes()[:-1])
    report = ckptfmt.check(tmp_path / "c")
    assert {finding.file for finding in report.findings} == {"chunks.bin"}
    assert len(report.findings) <= 2


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_missing_chunks_file_is_told_without_a_word_for_each_chunk(codec: str, tmp_path: Path) -> None:
    ckptfmt.save({"a": np.ones(9 * CHUNK, "u1"), "b": np.ones(3)}, tmp_path / "c", codec=codec)
    (tmp_path / "c" / "chunks.bin").unlink()
    report = ckptfmt.check(tmp_path / "c")
    assert {(finding.kind, finding.file) for finding in report.findings} == {("missing-file", "chunks.bin")}
    assert len(report.findings) <= 2


def test_a_damaged_digest_in_chunks_is_told_once_for_its_tensor(tmp_path: Path) -> None:
    """Whatever is wrong with the digests of one tensor, its data cannot be judged: one word is enough."""
    ckptfmt.save({"a": np.ones(9 * CHUNK, "u1"), "b": np.ones(2 * CHUNK, "u1")}, tmp_path / "c")
    flip(tmp_path / "c" / "chunks.bin", 3)
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    (hurt,) = [row[0][0] for row in manifest["tensors"] if row[8] == 0]
    (finding,) = ckptfmt.check(tmp_path / "c").findings
    assert (finding.file, finding.path, finding.rule) == ("chunks.bin", hurt, "R-051")


def test_checking_writes_nothing(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.ones(9)}, tmp_path / "c", extra_files={"x": b"x"})
    before = {file.name: file.stat() for file in (tmp_path / "c").iterdir()}
    for file in (tmp_path / "c").iterdir():
        file.chmod(stat.S_IRUSR)
    assert ckptfmt.check(tmp_path / "c", finite=True).ok
    after = {file.name: file.stat() for file in (tmp_path / "c").iterdir()}
    assert {name: (s.st_mtime_ns, s.st_size, s.st_ino) for name, s in before.items()} == {
        name: (s.st_mtime_ns, s.st_size, s.st_ino) for name, s in after.items()
    }
    assert os.listdir(tmp_path) == ["c"]  # noqa: PTH208 - names are enough
