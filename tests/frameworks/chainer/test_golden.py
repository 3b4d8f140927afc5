"""What the real Chainer 7.8.1 wrote is read bit for bit, with no Chainer at hand; see tools/make_golden."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.nodes import Strings, Tree

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "chainer" / "7.8.1"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
SNAPSHOTS = sorted(name for name in EXPECTED if name.endswith("snapshot_iter_3"))


def at(tree: Tree, name: str) -> Tree:
    """Return the node of a name, one level for each of its parts."""
    for part in name.split("/"):
        assert isinstance(tree, dict)
        tree = tree[part]
    return tree


def described(node: Tree) -> object:
    """Return a node as the golden files' maker described an array."""
    if node is None:
        return None
    if isinstance(node, Strings):
        return {"shape": list(node.shape), "texts": list(node.values)}
    assert isinstance(node, ckptfmt.Tensor)
    array = node.numpy()
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest}


def leaves(tree: Tree) -> int:
    """Count what is no mapping."""
    return sum(map(leaves, tree.values())) if isinstance(tree, dict) else 1


@pytest.mark.parametrize("name", [name for name in EXPECTED if not name.endswith(".h5")])
def test_every_array_of_a_file_is_what_numpy_reads(name: str) -> None:
    with ckptfmt.read(GOLDEN / name, format="chainer-npz") as checkpoint:
        found = {key: described(at(checkpoint.tree, key)) for key in EXPECTED[name]}
        assert found == EXPECTED[name]
        assert leaves(checkpoint.tree) == len(found)


@pytest.mark.framework
@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".h5")])
def test_every_dataset_of_a_file_is_what_h5py_reads(name: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    assert ckptfmt.detect(GOLDEN / name).name == "hdf5"
    ckptfmt.convert(GOLDEN / name, tmp_path / "again.h5", source_format="chainer-hdf5", to="chainer-hdf5")
    for path in (GOLDEN / name, tmp_path / "again.h5"):
        with ckptfmt.read(path, format="chainer-hdf5") as checkpoint:
            found = {key: described(at(checkpoint.tree, key)) for key in EXPECTED[name]}
            assert found == EXPECTED[name]
            assert leaves(checkpoint.tree) == len(found)
            assert not checkpoint.findings


@pytest.mark.framework
def test_the_two_kinds_of_file_hold_one_tree() -> None:
    pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    for stem in ("model", "optimizer"):
        with (
            ckptfmt.read(GOLDEN / f"{stem}.npz", format="chainer-npz") as one,
            ckptfmt.read(GOLDEN / f"{stem}.h5", format="chainer-hdf5") as two,
        ):
            assert ckptfmt.digest(one).root == ckptfmt.digest(two).root


def test_the_files_are_those_that_were_made() -> None:
    manifest = (GOLDEN / "MANIFEST.toml").read_text()
    for name in EXPECTED:
        digest = hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest()
        assert f'"{name}" = "{digest}"' in manifest


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_is_told_by_content_and_tells_its_step(name: str) -> None:
    assert ckptfmt.detect(GOLDEN / name).name == "chainer-npz"
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        assert checkpoint.step == 3
        assert at(checkpoint.tree, "updater/model:main/predictor/fresh/W") is None
        state = at(checkpoint.tree, "updater/optimizer:main/predictor/fresh/W")
        assert isinstance(state, dict)
        assert list(state) == ["t"]


@pytest.mark.parametrize("name", ["model.npz", "optimizer.npz"])
def test_a_model_alone_stays_an_npz_file_with_the_names_as_they_stand(name: str) -> None:
    assert ckptfmt.detect(GOLDEN / name).name == "npz"
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        assert isinstance(checkpoint.tree, dict)
        assert set(checkpoint.tree) == set(EXPECTED[name])


@pytest.mark.parametrize("name", [*SNAPSHOTS, "model.npz", "model-stored.npz", "optimizer.npz"])
@pytest.mark.parametrize("codec", ["raw", "deflate"])
def test_what_is_written_again_has_the_same_arrays_and_no_note(name: str, codec: str, tmp_path: Path) -> None:
    ckptfmt.convert(GOLDEN / name, tmp_path / "native", source_format="chainer-npz")
    report = ckptfmt.convert(
        tmp_path / "native", tmp_path / "again.npz", to="chainer-npz", codec=codec, strict=True
    )
    assert report.same_root is True
    with (
        np.load(GOLDEN / name, allow_pickle=True) as wanted,
        np.load(tmp_path / "again.npz", allow_pickle=True) as found,
    ):
        assert sorted(found.files) == sorted(wanted.files)
        for key in wanted.files:
            assert found[key].dtype == wanted[key].dtype
            assert found[key].shape == wanted[key].shape
            assert found[key].dtype == object or found[key].tobytes() == wanted[key].tobytes()
            assert found[key].dtype != object or found[key][()] is None


def test_a_directory_of_snapshots_is_told_by_what_it_holds(tmp_path: Path) -> None:
    for step in (3, 6):
        (tmp_path / f"snapshot_iter_{step}").write_bytes((GOLDEN / SNAPSHOTS[0]).read_bytes())
    with pytest.raises(
        ckptfmt.UnknownFormatError, match=r"snapshot_iter_3.*snapshot_iter_6.*Give one of them"
    ):
        ckptfmt.detect(tmp_path)
