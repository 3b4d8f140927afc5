"""Files of other formats, and of none: whatever their bytes, checking says what is wrong."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STATE = {"w": np.arange(50.0), "v": np.ones((3, 4), "f2")}


def npz(path: Path) -> None:
    np.savez(path, w=STATE["w"], v=STATE["v"])


def compressed(path: Path) -> None:
    np.savez_compressed(path, w=STATE["w"], v=STATE["v"])


def pt(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    torch.save({name: torch.from_numpy(array) for name, array in STATE.items()}, path)


def safetensors(path: Path) -> None:
    real = pytest.importorskip("safetensors.numpy", reason="needs the package `safetensors`")
    real.save_file(STATE, path)


WRITERS = [
    pytest.param(npz, "a.npz", id="npz"),
    pytest.param(compressed, "a.npz", id="npz compressed"),
    pytest.param(pt, "a.pt", id="pt", marks=pytest.mark.framework),
    pytest.param(safetensors, "a.safetensors", id="safetensors", marks=pytest.mark.framework),
]


def flips(data: bytes, count: int) -> Iterator[bytes]:
    rng = random.Random(3)  # noqa: S311 - no secrets here
    for offset in rng.sample(range(len(data)), count):
        changed = bytearray(data)
        changed[offset] ^= 1 << rng.randrange(8)
        yield bytes(changed)


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_digests_of_files_checkpoints_and_live_states_agree(
    write: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    ckptfmt.save(STATE, tmp_path / "native", codec="zstd")
    live = ckptfmt.digest(STATE)
    for path in (tmp_path / name, tmp_path / "native"):
        found = ckptfmt.digest(path)
        assert (found.root, found.bag, found.tensors) == (live.root, live.bag, live.tensors)
        report = ckptfmt.check(path, expect=live.root, finite=True)
        assert (report.ok, report.root, report.bag, report.tensors, report.nbytes) == (
            True,
            live.root,
            live.bag,
            2,
            424,
        )


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_a_flipped_bit_never_changes_a_number_unseen(
    write: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    """Archives have checksums; safetensors has none, so only who knows the root finds a change of data."""
    write(tmp_path / name)
    root = ckptfmt.check(tmp_path / name).root
    for changed in flips((tmp_path / name).read_bytes(), 120):
        (tmp_path / name).write_bytes(changed)
        report = ckptfmt.check(tmp_path / name, expect=root)
        if report.ok:
            assert report.root == root
        if not name.endswith(".safetensors"):
            assert "unexpected-root" not in {f.kind for f in report.findings} or len(report.findings) > 1


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_a_file_that_is_cut_short_is_never_good(
    write: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    for length in (*range(0, len(data), 1 + len(data) // 60), len(data) - 1):
        (tmp_path / name).write_bytes(data[:length])
        report = ckptfmt.check(tmp_path / name)
        assert not report.ok, length
        assert all(finding.message for finding in report.findings)


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_numbers_that_are_not_finite_are_found_in_any_format(
    write: Callable[[Path], None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = np.ones((3, 4), "f2")
    wrong[1, 2], wrong[2, 0] = np.inf, np.nan
    monkeypatch.setitem(STATE, "v", wrong)
    write(tmp_path / name)
    assert ckptfmt.check(tmp_path / name).ok
    (finding,) = ckptfmt.check(tmp_path / name, finite=True).findings
    assert (finding.kind, finding.path) == ("not-finite", "v")
    assert finding.message == "1 NaN and 1 infinite elements of 12, the first at (1, 2)"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"PK\x03\x04" + bytes(60),
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a":5}  ',
        b"\x80\x02}q\x00",
        b"\x80\x05cos\nsystem\n(S'true'\nt",
        b"\x93NUMPY\x01\x00",
        b"\x89HDF\r\n\x1a\n" + bytes(100),
        b"{" * 100_000,
        random.Random(0).randbytes(4096),  # noqa: S311 - no secrets here
    ],
    ids=lambda data: repr(data[:12]),
)
@pytest.mark.parametrize("name", ["x", "x.pt", "x.npz", "x.safetensors", "manifest.json"])
def test_garbage_is_a_finding_whatever_it_is_called(data: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    report = ckptfmt.check(tmp_path / name)
    assert not report.ok
    assert (report.root, report.bag, report.tensors) == (None, None, 0)
    assert len(report.findings) == 1


MANIFESTS = {
    "empty": b"",
    "no JSON": b"\0\xff",
    "deep": b"[" * 100_000,
    "no members": b"{}",
    "long number": b"1" * 100_000,
    "unsealed": json.dumps({"format": [1, 0], "tensors": []}).encode(),
    "seal of another": b'{"format":[1,0],"self":"' + b"0" * 64 + b'"}',
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_none_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "manifest.json").write_bytes(MANIFESTS[name])
    report = ckptfmt.check(tmp_path / "c")
    (finding,) = report.findings
    assert (report.format, finding.file) == ("ckptfmt", "manifest.json")
    assert finding.rule in {"R-010", "R-011"}
    with pytest.raises(ckptfmt.FormatError) as caught:
        ckptfmt.load(tmp_path / "c")
    assert caught.value.rule == finding.rule


def test_a_directory_without_a_manifest_is_told_which_file_it_lacks(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(3)}, tmp_path / "c")
    (tmp_path / "c" / "manifest.json").unlink()
    (tmp_path / "empty").mkdir()
    for name in ("c", "empty"):
        (finding,) = ckptfmt.check(tmp_path / name).findings
        assert (finding.kind, finding.file, finding.rule) == ("missing-file", "manifest.json", "R-001")
