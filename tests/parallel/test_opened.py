"""Opening: files through one directory, nothing read before it is asked for, nothing left open."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.format.digests import chunk_digest
from ckptfmt.parallel import opened as module
from ckptfmt.parallel.opened import open_checkpoint

OPEN = Path("/proc/self/fd")
needs_proc = pytest.mark.skipif(not OPEN.exists(), reason="the system does not tell open files")


def open_below(folder: Path) -> list[str]:
    return [name for fd in OPEN.iterdir() if (name := str(fd.resolve())).startswith(str(folder))]


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint of six shards of one tensor each."""
    ckptfmt.save({f"w{i}": np.full(9, i) for i in range(6)}, tmp_path / "c", shard_size=1, step=1)
    return tmp_path / "c"


@needs_proc
@pytest.mark.parametrize("broken", ["missing", "cut", "damaged", "manifest"])
def test_nothing_stays_open_after_an_error(broken: str, sharded: Path) -> None:
    last = sharded / "data-00006-of-00006.safetensors"
    data = bytearray(last.read_bytes())
    if broken == "missing":
        last.unlink()
    elif broken == "cut":
        last.write_bytes(data[:-1])
    elif broken == "damaged":
        data[-1] ^= 1
        last.write_bytes(data)
    else:
        (sharded / "manifest.json").write_bytes(b"{}")
    before = threading.active_count()
    with pytest.raises(ckptfmt.FormatError) as caught:  # which holds the frames, and so all that they hold
        ckptfmt.load(sharded, verify="full")
    assert open_below(sharded) == []
    assert threading.active_count() == before
    assert caught.value.file == str(sharded / "manifest.json" if broken == "manifest" else last)


@needs_proc
def test_closing_closes_every_file(sharded: Path) -> None:
    with ckptfmt.load(sharded) as checkpoint:
        assert len(open_below(sharded)) >= 6
        arrays = [tensor.numpy() for tensor in checkpoint.tensors().values()]
    assert [int(array.max()) for array in arrays] == list(range(6))
    arrays.clear()  # each mapping has a descriptor of its own, as long as an array lies in it
    assert open_below(sharded) == []


def test_shards_are_opened_and_not_read(sharded: Path) -> None:
    """What lies in the shards is not looked at before a tensor of them is asked for."""
    for shard in sharded.glob("data-*"):
        shard.write_bytes(bytes(shard.stat().st_size))
    with ckptfmt.load(sharded) as checkpoint:
        assert sorted(checkpoint.tensors()) == [f"w{i}" for i in range(6)]
        with pytest.raises(ckptfmt.FormatError):
            checkpoint.tensors()["w3"].numpy()


def test_every_tensor_is_read_from_the_directory_that_was_opened(sharded: Path, tmp_path: Path) -> None:
    with ckptfmt.load(sharded) as checkpoint:
        ckptfmt.save(
            {f"w{i}": np.full(9, i + 50) for i in range(6)}, sharded, shard_size=1, step=2, overwrite=True
        )
        shutil.move(sharded, tmp_path / "elsewhere")
        assert [int(t.numpy()[0]) for t in checkpoint.tensors().values()] == list(range(6))


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
@pytest.mark.parametrize("name", ["data-00002-of-00006.safetensors", "manifest.json", "provenance.json"])
def test_a_listed_name_that_is_no_regular_file_is_refused(kind: str, name: str, sharded: Path) -> None:
    """A pipe would hang who opens it, and a link could lead anywhere."""
    (sharded / name).rename(sharded.parent / "moved")
    if kind == "link":
        (sharded / name).symlink_to(sharded.parent / "moved")
    elif kind == "folder":
        (sharded / name).mkdir()
    else:
        os.mkfifo(sharded / name)
    (finding,) = ckptfmt.check(sharded).findings
    assert (finding.file, finding.rule) == (name, "R-005")
    if name != "provenance.json":  # which loading does not need
        with pytest.raises(ckptfmt.FormatError, match="regular file"):
            ckptfmt.load(sharded)


def test_a_header_is_checked_once_for_each_shard(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(data: bytes) -> bytes:
        sizes.append(len(data))
        return chunk_digest(data)

    monkeypatch.setattr(module, "chunk_digest", counted)
    opened = open_checkpoint(sharded)
    for _ in range(3):
        for index in range(6):
            opened.check_header(index)
    opened.close()
    assert sizes == opened.header_sizes


@pytest.mark.parametrize("codec", ["zstd", "planes+zstd"])
def test_lengths_of_coded_chunks_that_cannot_be_are_refused(codec: str, tmp_path: Path) -> None:
    ckptfmt.save({"w": np.arange(3 << 20, dtype="f4")}, tmp_path / "c", codec=codec)
    chunks = tmp_path / "c" / "chunks.bin"
    good = chunks.read_bytes()
    for value in (0, (4 << 20) + 1, 2**63, 2**64 - 1):
        chunks.write_bytes(good[:-8] + value.to_bytes(8, "little"))
        with ckptfmt.load(tmp_path / "c") as checkpoint, pytest.raises(ckptfmt.FormatError) as caught:
            checkpoint.tensors()["w"][:3]
        assert (caught.value.rule, caught.value.tensor) == ("R-054", "w")
        assert ("chunks.bin", "w") in {(f.file, f.path) for f in ckptfmt.check(tmp_path / "c").findings}
