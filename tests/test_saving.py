"""What saving promises besides the laws: nothing half done, no thread left, little memory, wrong options."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.tensor import Tensor


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class FailingSource:
    """Canonical bytes that cannot be read beyond the middle."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def view(self, _start: int, _stop: int) -> memoryview | None:
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        if start > self.nbytes // 2:
            raise ckptfmt.ChecksumError("the source is damaged", tensor="w", offset=start)
        out[:] = bytes(len(out))


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_source_that_fails_leaves_target_directory_and_threads_alone(codec: str, tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(3)}, tmp_path / "c")
    before = threading.active_count()
    bad = Tensor(dtype("u8"), (40 << 20,), FailingSource(40 << 20))
    with pytest.raises(ckptfmt.ChecksumError, match="damaged"):
        ckptfmt.save({"w": bad}, tmp_path / "c", overwrite=True, codec=codec)
    assert names_in(tmp_path) == ["c"]
    assert ckptfmt.check(tmp_path / "c").ok
    assert threading.active_count() == before


@pytest.mark.parametrize("codec", ["raw", "planes+zstd"])
def test_progress_grows_to_the_total(codec: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    state = {"a": np.ones(5_000_000, "f4"), "b": np.ones(10)}
    ckptfmt.save(state, tmp_path / "c", codec=codec, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (20_000_080, 20_000_080)
    checked: list[tuple[int, int]] = []
    ckptfmt.check(tmp_path / "c", progress=lambda done, total: checked.append((done, total)))
    assert checked[-1][0] == checked[-1][1] > 0


def test_a_receipt_tells_what_is_on_the_disk(tmp_path: Path) -> None:
    receipt = ckptfmt.save({"a": np.ones((1 << 20) + 1), "b": 1}, tmp_path / "c", step=12, extra={"k": [1]})
    names = names_in(tmp_path / "c")
    assert list(receipt.files) == names
    assert receipt.stored == sum((tmp_path / "c" / name).stat().st_size for name in names)
    assert (receipt.tensors, receipt.nbytes, receipt.step) == (1, 8 * ((1 << 20) + 1), 12)
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert (manifest["step"], manifest["extra"], manifest["root"]) == (12, {"k": [1]}, receipt.root.hex())


def test_provenance_names_nobody_unless_asked(tmp_path: Path) -> None:
    ckptfmt.save({}, tmp_path / "basic")
    ckptfmt.save({}, tmp_path / "full", provenance="full")
    basic = json.loads((tmp_path / "basic" / "provenance.json").read_text())
    full = json.loads((tmp_path / "full" / "provenance.json").read_text())
    assert set(basic) == {"versions", "layout", "options", "self"}
    assert set(full["full"]) == {"command", "directory", "host", "platform", "time", "user"}
    assert ckptfmt.load(tmp_path / "basic").root == ckptfmt.load(tmp_path / "full").root


def test_extra_files_travel_along_and_are_covered(tmp_path: Path) -> None:
    (tmp_path / "source.txt").write_bytes(b"from a file" * 1000)
    extra: dict[str, bytes | Path] = {"config.json": b"{}", "notes.txt": tmp_path / "source.txt"}
    ckptfmt.save({"w": np.ones(2)}, tmp_path / "c", extra_files=extra)
    assert (tmp_path / "c" / "notes.txt").read_bytes() == b"from a file" * 1000
    (tmp_path / "c" / "config.json").write_bytes(b"[]")
    report = ckptfmt.check(tmp_path / "c")
    assert [(finding.file, finding.rule) for finding in report.findings] == [("config.json", "R-071")]


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "lz4"},
        {"level": 0},
        {"level": 23},
        {"level": 1.5},
        {"level": True},
        {"level": "high"},
        {"shard_size": 0},
        {"shard_size": 1.5},
        {"shard_size": True},
        {"shard_size": 2**60},
        {"separate": [5]},
        {"threads": 0},
        {"threads": 1.5},
        {"threads": True},
        {"threads": 10**6},
        {"step": -1},
        {"step": 2**60},
        {"step": True},
        {"step": 1.5},
        {"step": np.arange(2)},
        {"overwrite": "yes"},
        {"overwrite": []},
        {"codec": None},
        {"provenance": "all"},
        {"extra": {"a": 1.5}},
        {"extra": {"a": object()}},
        {"extra_files": {"../x": b""}},
        {"extra_files": {"manifest.json": b""}},
        {"extra_files": {"x.txt": "some text"}},
        {"extra_files": {"x.txt": 5}},
        {"extra_files": {5: b""}},
        {"extra_files": {"DATA-00001-of-00001.SAFETENSORS": b""}},
        {"hf_index": True, "codec": "zstd"},
    ],
    ids=str,
)
def test_options_that_are_none_are_refused_before_anything_is_written(options: dict, tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.OptionError):
        ckptfmt.save({"w": np.ones(2)}, tmp_path / "c", **options)
    assert names_in(tmp_path) == []


def test_whole_numbers_may_be_numpys(tmp_path: Path) -> None:
    receipt = ckptfmt.save(
        {"a": np.ones(3), "b": np.ones(4)},
        tmp_path / "c",
        step=np.int64(5),
        shard_size=np.int32(1),
        threads=np.int8(2),
    )
    assert receipt.step == 5
    assert len(list((tmp_path / "c").glob("data-*"))) == 2
    assert ckptfmt.check(tmp_path / "c").ok


def test_a_single_glob_is_not_its_letters(tmp_path: Path) -> None:
    state = {"model": np.ones(3), "m": np.ones(4), "opt": np.ones(5)}
    roots = [
        ckptfmt.save(state, tmp_path / str(i), separate=way).root
        for i, way in enumerate(("model", ["model"]))
    ]
    assert len(set(roots)) == 1
    one, other = (sorted((tmp_path / name).iterdir()) for name in ("0", "1"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]
    with ckptfmt.load(tmp_path / "0", want="model") as checkpoint:
        assert list(checkpoint.tensors()) == ["model"]


def test_an_opened_checkpoint_can_be_saved_as_it_is(tmp_path: Path) -> None:
    one = ckptfmt.save({"w": np.arange(10)}, tmp_path / "one")
    with ckptfmt.load(tmp_path / "one") as checkpoint:
        assert ckptfmt.save(checkpoint, tmp_path / "two", codec="zstd").root == one.root


_MEMORY = """
import sys, threading, time, numpy as np, ckptfmt
state = {f"w{i}": np.full(1 << 24, i, np.float32).T for i in range(8)}
def now():
    rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return sum(int(rows[name].split()[0]) for name in ("RssAnon", "RssShmem")) >> 10
ckptfmt.save({"w": np.ones(3)}, sys.argv[1] + "warm")
before = peak = now()
done = threading.Event()
def sample():
    global peak
    while not done.is_set():
        peak = max(peak, now())
        time.sleep(0.001)
thread = threading.Thread(target=sample)
thread.start()
ckptfmt.save(state, sys.argv[1], codec=sys.argv[2])
assert ckptfmt.check(sys.argv[1]).ok
done.set()
thread.join()
print(peak - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not tell a process's memory"
)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_saving_and_checking_need_little_memory_beside_the_state(codec: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MEMORY, str(tmp_path / "c"), codec]
    environment = {"PYTHONPATH": str(Path(ckptfmt.__file__).parents[1])}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert int(done.stdout) <= 128  # MiB, of a state of 512 MiB
