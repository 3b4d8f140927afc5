"""Every format passes the tests that are shipped for formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import ckptfmt
from ckptfmt.testing.format_tests import NODES, FormatTests

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
