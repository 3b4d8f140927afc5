"""Writing with threads: what fails in any of them ends the save with that error, and nothing stays."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.parallel.pipeline import Progress, thread_count
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 30 << 20
CODECS = ("raw", "zstd", "planes+zstd")


class Raising:
    """Canonical bytes of zeros, with an error at some place."""

    def __init__(self, error: BaseException, at: int) -> None:
        self._error = error
        self._at = at

    def view(self, _start: int, _stop: int) -> memoryview | None:
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        if start <= self._at < start + len(out):
            raise self._error
        out[:] = bytes(len(out))


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("error", [OSError(5, "disk"), KeyError("k"), KeyboardInterrupt()], ids=repr)
def test_the_error_of_a_source_is_the_error_of_the_save(
    codec: str, at: int, threads: int, error: BaseException, tmp_path: Path
) -> None:
    bad = Tensor(dtype("u8"), (SIZE,), Raising(error, at))
    tree = {"good": np.ones(5), "bad": bad, "more": np.ones(1 << 20)}
    with pytest.raises(type(error)) as caught:
        ckptfmt.save(tree, tmp_path / "c", codec=codec, threads=threads)
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", CODECS)
def test_the_error_of_a_callback_is_the_error_of_the_save(codec: str, tmp_path: Path) -> None:
    def tell(done: int, _total: int) -> None:
        if done > SIZE // 2:
            raise InterruptedError(done)

    ckptfmt.save({"w": 1}, tmp_path / "c")
    with pytest.raises(InterruptedError):
        ckptfmt.save(np.zeros(SIZE, "u1"), tmp_path / "c", codec=codec, progress=tell, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        assert checkpoint["w"] == 1


def test_the_error_of_a_callback_is_the_error_of_a_check(tmp_path: Path) -> None:
    def tell(done: int, _total: int) -> None:
        raise InterruptedError(done)

    ckptfmt.save(np.zeros(SIZE, "u1"), tmp_path / "c")
    for use in (ckptfmt.check, ckptfmt.digest):
        with pytest.raises(InterruptedError):
            use(tmp_path / "c", progress=tell)
    with pytest.raises(InterruptedError):
        ckptfmt.load(tmp_path / "c", verify="full", progress=tell)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_files_are_the_same_for_any_number_of_threads(codec: str, threads: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tree = {f"t{i}": rng.integers(0, 5, 900_000 + 77 * i, np.uint8) for i in range(25)}
    for name, count, direct in (("one", 1, False), ("many", threads, True)):
        ckptfmt.save(tree, tmp_path / name, codec=codec, threads=count, direct=direct, shard_size=9 << 20)
    one, many = (sorted((tmp_path / name).iterdir()) for name in ("one", "many"))
    assert [file.name for file in one] == [file.name for file in many]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, many, strict=True))


def test_progress_is_told_from_one_thread_at_a_time(tmp_path: Path) -> None:
    inside = threading.Lock()
    seen: list[int] = []

    def tell(done: int, total: int) -> None:
        assert total == SIZE
        assert inside.acquire(blocking=False)
        seen.append(done)
        inside.release()

    ckptfmt.save(np.zeros(SIZE, "u1"), tmp_path / "c", threads=5, progress=tell)
    assert seen == sorted(seen)
    assert seen[-1] == SIZE
    assert len(seen) == -(-SIZE // (4 << 20))


def test_nothing_is_counted_for_nobody() -> None:
    Progress(None, 5).add(3)


def test_at_least_four_threads_keep_a_disk_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, expected in ((None, 4), (1, 4), (6, 6), (64, 8)):
        monkeypatch.setattr("os.cpu_count", lambda count=processors: count)
        assert thread_count(None) == expected
    assert thread_count(3) == 3
