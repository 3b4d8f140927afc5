"""Bytes are verified when they are handed out: once where mapped, at each read where copied."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.format.digests import chunk_digest
from ckptfmt.parallel import rowsource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK = 4 << 20


def damage(path: Path, offset: int = -1) -> None:
    """Flip a bit of the only shard, in place: an open handle sees it."""
    (shard,) = path.glob("data-*")
    with shard.open("r+b") as file:
        file.seek(offset, 0 if offset >= 0 else 2)
        old = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([old ^ 1]))


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the chunks whose digests are taken, as they are taken."""
    lengths: list[int] = []

    def counted(data: memoryview) -> bytes:
        lengths.append(len(data))
        return chunk_digest(data)

    monkeypatch.setattr(rowsource, "chunk_digest", counted)
    return lengths


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("verify", ["access", "full"])
def test_what_is_copied_is_verified_in_memory_whatever_was_verified_before(
    codec: str, verify: Literal["access", "full"], tmp_path: Path
) -> None:
    ckptfmt.save({"w": np.arange(1000)}, tmp_path / "c", codec=codec)
    with ckptfmt.load(tmp_path / "c", copy=True, verify=verify) as checkpoint:
        assert checkpoint.tensors()["w"].numpy()[-1] == 999
        damage(tmp_path / "c")
        with pytest.raises(ckptfmt.ChecksumError):
            checkpoint.tensors()["w"].numpy()


def test_mapped_chunks_are_verified_once(digested: list[int], tmp_path: Path) -> None:
    array = np.arange(3 << 20, dtype="f4")
    ckptfmt.save({"w": array}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        tensor = checkpoint.tensors()["w"]
        assert digested == []
        tensor[CHUNK // 4]
        assert digested == [CHUNK]
        assert np.array_equal(tensor.numpy(), array)
        assert np.array_equal(tensor[5:], array[5:])
        assert digested == [CHUNK] * 3


def test_nothing_is_verified_where_nobody_asks(digested: list[int], tmp_path: Path) -> None:
    ckptfmt.save({"w": np.arange(5)}, tmp_path / "c")
    damage(tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", verify="none") as checkpoint:
        assert checkpoint.tensors()["w"].numpy().tolist()[:4] == [0, 1, 2, 3]
    assert digested == []


def test_damage_elsewhere_does_not_hinder_a_box(tmp_path: Path) -> None:
    array = np.arange(3 << 20, dtype="f4")
    ckptfmt.save({"w": array}, tmp_path / "c")
    damage(tmp_path / "c")
    for copy in (False, True):
        with ckptfmt.load(tmp_path / "c", copy=copy) as checkpoint:
            tensor = checkpoint.tensors()["w"]
            assert np.array_equal(tensor[: 2 << 20], array[: 2 << 20])
            with pytest.raises(ckptfmt.ChecksumError) as caught:
                tensor[(2 << 20) - 1 : (2 << 20) + 1]
            assert (caught.value.tensor, caught.value.chunk) == ("w", 2)
            with pytest.raises(ckptfmt.ChecksumError):
                tensor.numpy()


WAYS: dict[str, Callable[[ckptfmt.Tensor], object]] = {
    "numpy": lambda t: t.numpy(),
    "index": lambda t: t[-1],
    "bytes": lambda t: t.bytes(),
    "asarray": np.asarray,
    "into": lambda t: t.into(np.empty(t.shape, t.dtype.numpy)),
    "into strided": lambda t: t.into(np.empty((*t.shape, 2), t.dtype.numpy)[..., 0]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("codec", ["raw", "planes+zstd"])
@pytest.mark.parametrize("kind", ["f4", ml_dtypes.int4, "S3"])
def test_every_way_to_the_bytes_verifies_them(
    way: str,
    copy: bool,  # noqa: FBT001 - a parameter
    codec: str,
    kind: np.typing.DTypeLike,
    tmp_path: Path,
) -> None:
    ckptfmt.save({"w": np.arange(6).astype(kind)}, tmp_path / "c", codec=codec)
    damage(tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", copy=copy) as checkpoint, pytest.raises(ckptfmt.FormatError) as caught:
        WAYS[way](checkpoint.tensors()["w"])
    assert caught.value.tensor == "w"
    assert caught.value.file == str(next((tmp_path / "c").glob("data-*")))


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_threads_may_share_a_tensor(
    codec: str,
    copy: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
) -> None:
    array = np.arange(5 << 20, dtype="f4")
    ckptfmt.save({"w": array}, tmp_path / "c", codec=codec)
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ckptfmt.load(tmp_path / "c", copy=copy) as checkpoint, ThreadPoolExecutor(8) as pool:
            tensor = checkpoint.tensors()["w"]
            starts = [(i * 7919_137) % (array.size - 1000) for i in range(60)]
            for start, found in zip(starts, pool.map(lambda s: tensor[s : s + 1000], starts), strict=True):
                assert np.array_equal(found, array[start : start + 1000])
    finally:
        sys.setswitchinterval(old)
