"""HDF5 files that h5py 2.10 (HDF5 1.10, 2019) wrote: read as it reads them itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ckptfmt.tree.nodes import Composite, Strings
from ckptfmt.tree.tensor import Tensor

pytestmark = pytest.mark.framework
REASON = "needs the extra `hdf5`"
Hdf5File = pytest.importorskip("ckptfmt.containers.hdf5.reader", reason=REASON).Hdf5File
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "hdf5" / "h5py-2.10.0"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("version", EXPECTED)
def test_every_dataset_is_what_its_own_library_reads(version: str) -> None:
    expected = EXPECTED[version]
    with Hdf5File(GOLDEN / f"{version}.h5") as found:
        assert set(expected) <= set(found.datasets)
        assert set(found.datasets) - set(expected) <= {"links/hard", "links/soft", "types/i1"}
        for name, value in expected.items():
            dataset = found.datasets[name]
            node = dataset.node
            if value is None:
                assert node is None
            elif isinstance(node, Strings):
                assert list(node.values) == value
            else:
                tensor = node.parts["bytes"] if isinstance(node, Composite) else node
                assert isinstance(tensor, Tensor)
                kind, shape, digest = value
                assert list(dataset.shape) == shape
                assert dataset.words.replace(">", "<") == kind
                assert hashlib.sha256(tensor.bytes()).hexdigest() == digest
        assert found.datasets["links/soft"] is found.datasets["links/hard"] is found.datasets["types/i1"]
        names = found.groups["types"].attributes["names"]
        assert isinstance(names, Strings)
        assert names.values == ("w:0", "b:0")
        assert found.groups["types"].attributes["text"] == "\u00e9"


def test_the_files_are_those_of_the_manifest() -> None:
    manifest = (GOLDEN / "MANIFEST.toml").read_text()
    files = [path for path in GOLDEN.iterdir() if path.name != "MANIFEST.toml"]
    assert len(files) == len(EXPECTED) + 1
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() in manifest
