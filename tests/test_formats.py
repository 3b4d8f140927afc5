"""Every format passes the tests that are shipped for formats."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.testing.format_tests import NODES, FormatTests, small_tree
from ckptfmt.tree.paths import display

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.framework
class TestChainerHdf5(FormatTests):
    name = "chainer-hdf5"
    suffix = ".h5"
    checksums = False  # as TestHdf5

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")

    def read(self, path: Path) -> ckptfmt.Checkpoint:
        """A model alone cannot be told from any other HDF5 file."""
        return ckptfmt.read(path, format=None if path.is_dir() else self.name)


class TestChainerNpz(FormatTests):
    name = "chainer-npz"
    suffix = ".npz"

    def read(self, path: Path) -> ckptfmt.Checkpoint:
        """A model alone cannot be told from any other NPZ file."""
        return ckptfmt.read(path, format=None if path.is_dir() else self.name)


class TestNative(FormatTests):
    name = "ckptfmt"
    suffix = ""


class TestDcp(FormatTests):
    name = "dcp"
    suffix = ".dcp"
    checksums = False  # the metadata has none: a changed name is another name

    @pytest.mark.parametrize("kind", NODES)
    def test_every_kind_of_node_comes_back_or_is_told(self, kind: str, tmp_path: Path) -> None:
        """Keys that look alike as text are refused, as DCP does."""
        if kind != "keys":
            super().test_every_kind_of_node_comes_back_or_is_told(kind, tmp_path)
            return
        with pytest.raises(ckptfmt.ConversionError, match=r"would both be called 'node\.1'"):
            self.write({"node": NODES[kind]}, tmp_path / "target.dcp")
        assert not any(tmp_path.iterdir())


class TestHdf5(FormatTests):
    name = "hdf5"
    suffix = ".h5"
    checksums = False  # elements have none; groups, headers and indices do

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra hdf5)")


@pytest.mark.framework
class _KerasTests(FormatTests):
    """Files of Keras hold models only: what the common tests write stands at the place of variables."""

    checksums = False  # as in any HDF5: elements have none

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra hdf5)")

    def place(self, tree: dict[str, object]) -> tuple[object, tuple[str, ...]]:
        """Return a tree that Keras could have written, with the path at which `tree` stands in it."""
        raise NotImplementedError

    def write(self, tree: object, path: Path) -> tuple[ckptfmt.Finding, ...]:
        """Write it at the place of variables; paths of findings are those within."""
        assert isinstance(tree, dict)
        if "model" in tree:  # the small tree: its plain values are none of a model's
            tree = {"w": tree["model"]["w"], "tied": tree["model"]["tied"], "empty": tree["model"]["empty"]}
        tree = {key: node for key, node in tree.items() if key != "n"}
        placed, where = self.place(tree)
        above = display(where) + "/"
        findings = ckptfmt.write(placed, path, to=self.name)
        return tuple(dataclasses.replace(f, path=f.path.removeprefix(above)) for f in findings)

    def read(self, path: Path) -> ckptfmt.Checkpoint:
        """Read it, and return what stands at that place as the tree."""
        found = ckptfmt.read(path)
        found.tree = found.at(self.place({})[1])
        return found

    @pytest.mark.parametrize("kind", NODES)
    def test_every_kind_of_node_comes_back_or_is_told(self, kind: str, tmp_path: Path) -> None:
        """Nothing but arrays, texts and None has a place in a model; the rest is refused by its path."""
        tree = {"node": NODES[kind], "w": np.ones(2, "f4")}
        if kind in ("none", "strings"):
            super().test_every_kind_of_node_comes_back_or_is_told(kind, tmp_path)
            return
        if isinstance(NODES[kind], dict):
            tree["node"] = {1: {1: np.ones(2)}}
        with pytest.raises(ckptfmt.ConversionError, match=r"node.*--to hdf5"):
            self.write(tree, self.target(tmp_path))
        assert not any(tmp_path.iterdir())

    def test_ties_and_structure_come_back(self, tmp_path: Path) -> None:
        """Keras keeps no ties: tied tensors are written apart, and that is told."""
        findings = self.write(small_tree(), self.target(tmp_path))
        assert [(f.kind, f.severity) for f in findings] == [("tie-broken", ckptfmt.Severity.INFO)]
        with self.read(self.target(tmp_path)) as checkpoint:
            assert checkpoint["w"].numpy().tobytes() == checkpoint["tied"].numpy().tobytes()  # type: ignore[union-attr]

    def test_a_loss_is_an_error_where_none_is_allowed(self, tmp_path: Path) -> None:
        """What is no model is an error with or without `strict`."""
        ckptfmt.save({"w": np.ones(2, "f4")}, tmp_path / "source")
        with pytest.raises(ckptfmt.ConversionError, match="--to hdf5"):
            ckptfmt.convert(tmp_path / "source", self.target(tmp_path), to=self.name, strict=True)
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


class TestKeras(_KerasTests):
    name = "keras"
    suffix = ".keras"
    checksums = True

    def place(self, tree: dict[str, object]) -> tuple[object, tuple[str, ...]]:
        """Return a model with one layer."""
        weights = {"layers": {"dense": {"vars": tree}}, "vars": {}}
        made = {"metadata.json": "{}", "config.json": "{}", "model.weights.h5": weights}
        return made, ("model.weights.h5", "layers", "dense", "vars")


class TestKerasH5(_KerasTests):
    name = "keras-h5"
    suffix = ".h5"

    def place(self, tree: dict[str, object]) -> tuple[object, tuple[str, ...]]:
        """Return weights of one layer."""
        return {"model_weights": {"dense": tree}}, ("model_weights", "dense")


class TestKerasWeights(_KerasTests):
    name = "keras-weights"
    suffix = ".weights.h5"

    def place(self, tree: dict[str, object]) -> tuple[object, tuple[str, ...]]:
        """Return a model with one layer."""
        return {"layers": {"dense": {"vars": tree}}, "vars": {}}, ("layers", "dense", "vars")


class TestNpz(FormatTests):
    name = "npz"
    suffix = ".npz"


class TestSafetensors(FormatTests):
    name = "safetensors"
    suffix = ".safetensors"
    checksums = False


class TestTensorFlow(FormatTests):
    name = "tensorflow"
    suffix = ".index"

    def files(self, path: Path) -> list[Path]:
        """Return the index and the file of data."""
        return sorted(path.parent.glob(f"{path.stem}.*"))


class TestTorch(FormatTests):
    name = "torch"
    suffix = ".pt"


class TestTorchLegacy(FormatTests):
    name = "torch-legacy"
    suffix = ".pt"
    checksums = False
