"""Trees in HDF5 files: names that HDF5 cannot have, files of others, ties; h5py is the judge."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.nodes import Strings, tag_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.framework
h5py = pytest.importorskip("h5py", reason="needs the extra `hdf5`")

ODD_NAMES = {
    "": 1, "/": 2, ".": 3, "..": 4, "a": 5, "a/b": 6, "a//b": 7, "a/": 8, "/a": 9, "a/./b": 10, "é\n": 11,
    "nul\0": 12, "nul\\0": 13, "ckptfmt.tree": 14, "ckptfmt.tree/x": 15, "x" * 4000: 16, "a#": 17, "#": 18,
    "a/b/c": 19, "ckptfmt.tree#": 20, "\\": 21, "a.b": 22, " ": 23,
}  # fmt: skip


def root(path: Path) -> bytes:
    with ckptfmt.read(path) as checkpoint:
        return ckptfmt.digest(checkpoint).root


@pytest.mark.parametrize("nested", [False, True])
def test_any_names_come_back_and_every_tensor_is_there_for_others(nested: bool, tmp_path: Path) -> None:  # noqa: FBT001 - parametrised
    flat = {name: np.full(2, value) for name, value in ODD_NAMES.items()}
    tree = {name: {"." + name: array, "": array + 100} for name, array in flat.items()} if nested else flat
    findings = ckptfmt.write(tree, tmp_path / "a.h5")
    assert all(finding.severity is ckptfmt.Severity.INFO for finding in findings)
    assert root(tmp_path / "a.h5") == ckptfmt.digest(tree).root
    values: list[int] = []
    with h5py.File(tmp_path / "a.h5") as judged:
        _collect(judged, values)
    expected = sorted(ODD_NAMES.values())
    assert sorted(values) == (sorted([*expected, *(v + 100 for v in expected)]) if nested else expected)


def _collect(group: object, values: list[int]) -> None:
    for node in group.values():  # type: ignore[attr-defined] # of h5py
        if isinstance(node, h5py.Dataset):
            if node.dtype.kind == "i":
                values.append(int(node[0]))
        else:
            _collect(node, values)


def test_thousands_of_long_names_are_written(tmp_path: Path) -> None:
    tree = {f"{k:05d}".ljust(80, "x"): np.array([k], "i4") for k in range(5000)}
    assert ckptfmt.write(tree, tmp_path / "a.h5") == ()
    with h5py.File(tmp_path / "a.h5") as judged:
        assert len(judged) == 5000
        assert int(judged[f"{4321:05d}".ljust(80, "x")][0]) == 4321
        assert not judged.attrs
    assert root(tmp_path / "a.h5") == ckptfmt.digest(tree).root


def test_a_plain_mapping_needs_no_note_and_has_the_names_that_h5py_sees(tmp_path: Path) -> None:
    kernel = np.arange(6.0).reshape(2, 3)
    tree = {
        "layer/kernel": kernel,
        "layer/bias": np.ones(3, ml_dtypes.bfloat16),
        "four": np.ones((3, 3), ml_dtypes.int4),
        "names": Strings((2,), ("a", "é")),
        "scalar": np.array(2.5),
    }
    assert ckptfmt.write(tree, tmp_path / "a.h5") == ()
    with h5py.File(tmp_path / "a.h5") as judged:
        assert np.array_equal(judged["layer/kernel"][...], kernel)
        assert judged["layer/bias"].attrs["dtype"] == "bfloat16"
        assert judged["names"].asstr()[...].tolist() == ["a", "é"]
    with ckptfmt.read(tmp_path / "a.h5") as checkpoint:
        assert tag_of(checkpoint.tree) is None
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root


@pytest.mark.parametrize("codec", ["raw", "deflate"])
def test_native_to_hdf5_and_back_has_the_same_root_and_ties(codec: str, tmp_path: Path) -> None:
    shared = np.arange(12, dtype="f4").reshape(3, 4)
    tree = {
        "model": {"w": shared, "tied": shared, "b": np.ones(3, ml_dtypes.float8_e4m3fn)},
        "optimizer": [{"step": 3, "m": np.zeros((3, 4))}, (1.5, None, "text", b"\0")],
        "names": Strings((2,), (b"a", b"\xff")),
    }
    ckptfmt.save(tree, tmp_path / "native")
    ckptfmt.convert(tmp_path / "native", tmp_path / "a.h5", codec=codec, strict=True)
    ckptfmt.convert(tmp_path / "a.h5", tmp_path / "back", strict=True)
    with ckptfmt.load(tmp_path / "back") as back, ckptfmt.load(tmp_path / "native") as native:
        assert back.root == native.root
        assert back.tensors()["model/w"].identity == back.tensors()["model/tied"].identity
    with h5py.File(tmp_path / "a.h5") as judged:
        assert ("tied" in judged["model"]) != ("w" in judged["model"])


def test_attributes_and_empty_groups_of_others_come_through(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["backend"] = "tensorflow"
        file.attrs["config"] = '{"x": 1}' * 10_000
        file["m/w"] = np.arange(3.0)
        file["m/w"].attrs["units"] = [1, 2]
        file["m"].attrs["names"] = np.array([b"w:0", b"b:0"])
        file["m"].attrs["flag"] = True
        file.create_group("empty/inside")
        file["v"] = np.ones(2, ml_dtypes.bfloat16).view("V2")
        file["v"].attrs["dtype"] = "bfloat16"
    ckptfmt.convert(tmp_path / "a.h5", tmp_path / "native", strict=True)
    ckptfmt.convert(tmp_path / "native", tmp_path / "b.h5", to="hdf5", strict=True)
    with h5py.File(tmp_path / "b.h5") as judged:
        assert judged.attrs["backend"] == "tensorflow"
        assert judged.attrs["config"] == '{"x": 1}' * 10_000
        assert judged["m/w"].attrs["units"].tolist() == [1, 2]
        assert list(judged["m"].attrs["names"]) == ["w:0", "b:0"]
        assert bool(judged["m"].attrs["flag"])
        assert list(judged["empty/inside"]) == []
        assert dict(judged["v"].attrs) == {"dtype": "bfloat16"}
        assert "ckptfmt.tree" not in judged
    assert root(tmp_path / "b.h5") == root(tmp_path / "a.h5")


def test_hard_links_are_ties(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["w"] = np.arange(3.0)
        file["again"] = file["w"]
        file["soft/w"] = h5py.SoftLink("/w")
    with ckptfmt.read(tmp_path / "a.h5") as checkpoint:
        assert len({tensor.identity for tensor in checkpoint.tensors().values()}) == 1
    ckptfmt.convert(tmp_path / "a.h5", tmp_path / "b.h5", strict=True)
    with ckptfmt.read(tmp_path / "b.h5") as checkpoint:
        assert len({tensor.identity for tensor in checkpoint.tensors().values()}) == 1
        assert len(checkpoint.tensors()) == 3


def test_nothing_at_all_is_a_file(tmp_path: Path) -> None:
    for name, tree in {"a": {}, "b": {"x": {}}, "c": 7}.items():
        ckptfmt.write(tree, tmp_path / f"{name}.h5")
        assert root(tmp_path / f"{name}.h5") == ckptfmt.digest(tree).root


def test_a_changed_dataset_makes_the_note_useless_and_that_is_told(tmp_path: Path) -> None:
    ckptfmt.write({"a": {"w": np.arange(3), "n": 1}}, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["a/more"] = 1.0
    with ckptfmt.read(tmp_path / "a.h5") as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["note-mismatch"]
        assert isinstance(checkpoint.tree, dict)
        assert set(checkpoint.tree) == {"a/w", "a/more"}


def test_listing_a_large_file_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:  # 4 GiB, all of it holes
        for k in range(64):
            dataset = file.create_dataset(f"g/{k}", (1 << 24,), "f4")
            dataset[-1] = k
    count = 0
    real = FileReader.readinto

    def counted(reader: FileReader, offset: int, out: memoryview) -> None:
        nonlocal count
        count += len(out)
        real(reader, offset, out)

    monkeypatch.setattr(FileReader, "readinto", counted)
    with ckptfmt.read(tmp_path / "a.h5") as checkpoint:
        assert len(checkpoint.tensors()) == 64
        last = checkpoint["g/63"]
        assert isinstance(last, ckptfmt.Tensor)
        assert last[-1:].tolist() == [63.0]
    assert (tmp_path / "a.h5").stat().st_size > 4 << 30
    assert count < 1 << 20


def test_without_h5py_the_extra_is_named(tmp_path: Path) -> None:
    ckptfmt.write({"w": np.ones(2)}, tmp_path / "a.h5")
    program = (
        "import sys; sys.modules['h5py'] = None\n"
        "import ckptfmt\n"
        "assert ckptfmt.detect(sys.argv[1]).name == 'hdf5'\n"
        "for do in (lambda: ckptfmt.read(sys.argv[1]), lambda: ckptfmt.write({}, sys.argv[1] + '.h5')):\n"
        "    try:\n"
        "        do()\n"
        "    except ckptfmt.MissingExtraError as error:\n"
        "        assert 'ckptfmt[hdf5]' in str(error)\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.h5")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
