"""Everything that is wrong is found, all of it at once, and named: file, tensor, chunk, offset, rule."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype

if TYPE_CHECKING:
    from types import ModuleType

CAMPAIGN = Path(__file__).resolve().parents[2] / "tools" / "campaigns" / "flip_bits.py"
SHARD = "data-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def campaign() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flip_bits", CAMPAIGN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flip_bits"] = module
    spec.loader.exec_module(module)
    return module


def test_any_single_fault_is_found_and_named(campaign: ModuleType, tmp_path: Path) -> None:
    campaign.prepare(tmp_path)
    missed = [(name, fault) for name, fault, found in campaign.faults(tmp_path, 300, 7) if not found]
    assert missed == []


def flip(file: Path, offset: int, mask: int = 1) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= mask
    file.write_bytes(data)


def wrong(path: Path) -> list[tuple[str | None, str, int | None, str | None]]:
    return [
        (f.file, f.path, f.chunk, f.rule) for f in ckptfmt.check(path).findings if f.severity == "problem"
    ]


@pytest.mark.parametrize("codec", ["raw", "planes+zstd"])
def test_no_byte_of_a_small_checkpoint_is_uncovered(codec: str, tmp_path: Path) -> None:
    state = {"w": np.zeros(300, "f4"), "p": np.arange(3).astype(ml_dtypes.int4), "e": np.zeros((0, 2))}
    ckptfmt.save(state, tmp_path / "c", codec=codec, extra_files={"x.txt": b"hello"})
    for file in sorted((tmp_path / "c").iterdir()):
        good = file.read_bytes()
        step = 3 if len(good) < 2000 else 17  # padding is most of a header
        for offset in range(0, len(good), step):
            flip(file, offset, 1 << offset % 8)
            assert file.name in {found[0] for found in wrong(tmp_path / "c")}, (file.name, offset)
            file.write_bytes(good)


def test_all_faults_are_told_not_just_the_first(tmp_path: Path) -> None:
    state = {"a": np.zeros(3 << 20, "f4"), "b": np.ones(5), "c": np.ones(6)}
    ckptfmt.save(state, tmp_path / "c", extra_files={"x.txt": b"x"})
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    size = manifest["shards"][0][1]
    begin = size - (12 << 20) - 88
    flip(tmp_path / "c" / SHARD, begin + 3)
    flip(tmp_path / "c" / SHARD, begin + (9 << 20))
    flip(tmp_path / "c" / SHARD, size - 1)
    flip(tmp_path / "c" / "x.txt", 0)
    flip(tmp_path / "c" / "provenance.json", 5)
    (tmp_path / "c" / "stray").write_bytes(b"")
    names = [row[0][0] for row in manifest["tensors"]]
    assert sorted(wrong(tmp_path / "c"), key=str) == sorted(
        [
            (SHARD, "a", 0, "R-052"),
            (SHARD, "a", 2, "R-052"),
            (SHARD, names[-1], 0, "R-052"),
            ("x.txt", "", None, "R-071"),
            ("provenance.json", "", None, "R-070"),
            ("stray", "", None, "R-003"),
        ],
        key=str,
    )


def test_offsets_are_where_the_chunk_begins(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.zeros(3 << 20, "f4")}, tmp_path / "c")
    size = (tmp_path / "c" / SHARD).stat().st_size
    flip(tmp_path / "c" / SHARD, size - 1)
    (finding,) = ckptfmt.check(tmp_path / "c").findings
    assert (finding.chunk, finding.offset) == (2, size - (4 << 20))


def test_a_missing_shard_hides_nothing_else(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.zeros(9), "b": np.ones(9)}, tmp_path / "c", shard_size=1)
    (tmp_path / "c" / "data-00001-of-00002.safetensors").unlink()
    flip(tmp_path / "c" / "data-00002-of-00002.safetensors", -1)
    assert wrong(tmp_path / "c") == [
        ("data-00001-of-00002.safetensors", "", None, "R-002"),
        ("data-00002-of-00002.safetensors", "b", 0, "R-052"),
    ]


def test_shards_of_one_length_cannot_be_exchanged(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.zeros(9), "b": np.ones(9)}, tmp_path / "c", shard_size=1)
    one, two = sorted((tmp_path / "c").glob("data-*"))
    shutil.copy(one, tmp_path / "kept")
    shutil.copy(two, one)
    shutil.copy(tmp_path / "kept", two)
    assert {(file, rule) for file, path, _, rule in wrong(tmp_path / "c") if not path} == {
        (one.name, "R-043"),
        (two.name, "R-043"),
    }


def test_the_expected_root_is_compared(tmp_path: Path) -> None:
    root = ckptfmt.save({"a": np.zeros(9)}, tmp_path / "c").root
    assert ckptfmt.check(tmp_path / "c", expect=root).ok
    assert ckptfmt.check(tmp_path / "c", expect=root.hex()).ok
    report = ckptfmt.check(tmp_path / "c", expect=bytes(32))
    assert not report.ok
    assert [finding.kind for finding in report.findings] == ["unexpected-root"]
    for wrong_root in ("abc", "zz" * 32, b"short", ""):
        with pytest.raises(ckptfmt.OptionError):
            ckptfmt.check(tmp_path / "c", expect=wrong_root)


def test_a_checkpoint_made_anew_by_someone_else_has_another_root(tmp_path: Path) -> None:
    root = ckptfmt.save({"a": np.zeros(9)}, tmp_path / "c").root
    ckptfmt.save({"a": np.ones(9)}, tmp_path / "c", overwrite=True)
    assert ckptfmt.check(tmp_path / "c").ok
    assert not ckptfmt.check(tmp_path / "c", expect=root).ok


@pytest.mark.parametrize("name", [n for n in DTYPE_NAMES if dtype(n).is_float] + ["c64", "c128"])
def test_numbers_that_are_not_finite_are_found_in_every_type(name: str, tmp_path: Path) -> None:
    kind = dtype(name)
    codes = np.arange(256, dtype=np.uint8)
    if kind.packed:
        array = (codes % 16)[:15].view(kind.numpy).reshape(3, 5)
    elif kind.numpy.itemsize == 1:
        array = codes.view(kind.numpy).reshape(16, 16)
    else:
        array = np.ones((2, 3), kind.numpy)
        array[1, 0], array[1, 2] = np.nan, np.inf
    bad = ~np.isfinite(array.astype("c16" if name[0] == "c" else "f8"))
    ckptfmt.save({"deep": [array, np.ones(2)]}, tmp_path / "c")
    assert ckptfmt.check(tmp_path / "c").ok
    report = ckptfmt.check(tmp_path / "c", finite=True)
    assert report.ok == (not bad.any())
    if bad.any():
        (finding,) = report.findings
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        assert (finding.kind, finding.path) == ("not-finite", "deep/0")
        assert finding.message.endswith(f"elements of {array.size}, the first at {first}")


def test_tensors_of_only_zeros_are_told_and_are_no_problem(tmp_path: Path) -> None:
    ckptfmt.save({"z": np.zeros(4), "n": -np.zeros(2, "f2"), "i": np.zeros(2, int)}, tmp_path / "c")
    report = ckptfmt.check(tmp_path / "c", finite=True)
    assert report.ok
    assert sorted((finding.kind, finding.path) for finding in report.findings) == [
        ("all-zero", "n"),
        ("all-zero", "z"),
    ]


def test_files_of_other_formats_are_checked_too(tmp_path: Path) -> None:
    state = {"w": np.arange(5.0)}
    np.savez(tmp_path / "a.npz", w=state["w"])
    report = ckptfmt.check(tmp_path / "a.npz")
    assert (report.ok, report.format, report.tensors, report.nbytes) == (True, "npz", 1, 40)
    assert report.bag == ckptfmt.digest(state).bag
    flip(tmp_path / "a.npz", 150)
    assert not ckptfmt.check(tmp_path / "a.npz").ok


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_progress_ends_at_the_total_whatever_the_length(codec: str, tmp_path: Path) -> None:
    lengths = (17 * (1 << 20) + 1, 3, 0, 5 << 20)
    random = np.random.default_rng(0)
    state = {f"t{i}": random.integers(0, 9, n, np.uint8) for i, n in enumerate(lengths)}
    ckptfmt.save(state, tmp_path / "c", codec=codec)
    seen: list[tuple[int, int]] = []
    ckptfmt.check(tmp_path / "c", threads=3, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_nothing_stays_open(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(9)}, tmp_path / "c")
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("the system does not tell open files")
    report = ckptfmt.check(tmp_path / "c", finite=True)
    assert report.ok
    assert not [fd for fd in folder.iterdir() if str(tmp_path) in str(fd.resolve())]


def test_what_is_not_there_is_an_error_not_a_finding(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.NotFoundError):
        ckptfmt.check(tmp_path / "nothing")
