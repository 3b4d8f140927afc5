"""Directories that PyTorch writes: layouts of today and metadata as older releases had it."""

from __future__ import annotations

import importlib
import os
import pickle
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import ckptfmt
from ckptfmt.frameworks.pytorch.dcp import reader as dcp_reader
from ckptfmt.storage import pool
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.nodes import Composite

Foreign: TypeAlias = Any  # an object of a library without types
OPEN = Path("/proc/self/fd")


def state(torch: Foreign) -> dict[str, Foreign]:
    return {
        "m": {"w": torch.arange(6.0).reshape(2, 3), "h": torch.ones(2, dtype=torch.bfloat16)},
        "p": torch.nn.Parameter(torch.ones(2)),
        "l": [torch.ones(1), {"d": torch.zeros(2)}],
        "n": 5,
        "t": (1, torch.ones(2)),
    }


def rewritten(folder: Path, change: Foreign, protocol: int = 4) -> None:
    """Change the metadata as PyTorch's own object and pickle it again."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())  # noqa: S301 - written here a moment ago
    path.write_bytes(pickle.dumps(change(metadata) or metadata, protocol))


@pytest.mark.framework
@pytest.mark.parametrize(
    "options", [{}, {"thread_count": 3}, {"single_file_per_rank": False}], ids=["one", "threads", "items"]
)
def test_every_layout_is_read(dcp: Foreign, options: dict[str, object], tmp_path: Path) -> None:
    dcp.save(state(dcp.torch), tmp_path / "a", **options)
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert checkpoint.findings == ()
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(state(dcp.torch)).root


def without_new_fields(metadata: Foreign) -> None:
    del metadata.__dict__["storage_meta"], metadata.__dict__["version"]


def without_a_planner(metadata: Foreign) -> None:
    metadata.planner_data = None
    without_new_fields(metadata)


def with_old_properties(metadata: Foreign) -> None:
    """Properties were a class of another module before PyTorch 2.3."""
    old = importlib.import_module("torch.distributed._shard.sharded_tensor.metadata").TensorProperties
    for row in metadata.state_dict_metadata.values():
        if hasattr(row, "properties"):
            row.properties = old(dtype=row.properties.dtype, requires_grad=row.properties.requires_grad)
    without_new_fields(metadata)


@pytest.mark.framework
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("change", [without_new_fields, with_old_properties])
def test_metadata_of_older_releases_is_read(
    dcp: Foreign, change: Foreign, protocol: int, tmp_path: Path
) -> None:
    dcp.save(state(dcp.torch), tmp_path / "a")
    rewritten(tmp_path / "a", change, protocol)
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(state(dcp.torch)).root
        tag = checkpoint.tensors()["p"].tag
        assert tag is not None
        assert tag.attributes == {"requires_grad": True}


@pytest.mark.framework
def test_names_stay_flat_where_no_planner_tells_their_paths(dcp: Foreign, tmp_path: Path) -> None:
    dcp.save(state(dcp.torch), tmp_path / "a")
    rewritten(tmp_path / "a", without_a_planner)
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert isinstance(checkpoint.tree, dict)
        assert list(checkpoint.tree) == ["m.w", "m.h", "p", "l.0", "l.1.d", "n", "t"]


@pytest.mark.framework
def test_transformed_items_are_refused_by_name(dcp: Foreign, tmp_path: Path) -> None:
    dcp.save(state(dcp.torch), tmp_path / "a")

    def change(metadata: Foreign) -> None:
        next(iter(metadata.storage_data.values())).transform_descriptors = ["stream.zstd/1"]

    rewritten(tmp_path / "a", change)
    with pytest.raises(ckptfmt.UnsupportedVersionError, match="extension has transformed"):
        ckptfmt.read(tmp_path / "a")


@pytest.mark.framework
def test_a_quantised_tensor_is_a_composite(dcp: Foreign, tmp_path: Path) -> None:
    torch = dcp.torch
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.qint8)
    dcp.save({"q": quantised, "c": torch.ones(2).to(torch.complex32)}, tmp_path / "a")
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        found = checkpoint["q"]
        assert isinstance(found, Composite)
        assert found.attributes["scale"] == 0.5
        assert isinstance(checkpoint["c"], Composite)


def test_opening_reads_no_tensor_and_reading_one_reads_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckptfmt.write({f"w{k}": np.full(1 << 20, k, "f4") for k in range(8)}, tmp_path / "a", to="dcp")
    count = 0
    real = FileReader.readinto

    def counted(reader: FileReader, offset: int, out: memoryview) -> None:
        nonlocal count
        count += len(out)
        real(reader, offset, out)

    monkeypatch.setattr(FileReader, "readinto", counted)
    monkeypatch.setattr(FileReader, "view", lambda *_: None)
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert count < 1 << 16
        assert checkpoint.tensors()["w3"].numpy()[0] == 3
        assert count < (4 << 20) + (1 << 17)


def test_more_files_than_may_be_open_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {f"w{k}": np.full(100, k, "f4") for k in range(20)}
    ckptfmt.write(tree, tmp_path / "a", to="dcp", shard_size=1)
    monkeypatch.setattr(
        dcp_reader, "open_files", lambda paths, stack: pool.open_files(paths, stack, most_open=3)
    )
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root
        if OPEN.is_dir():
            held = [
                path for path in OPEN.iterdir() if path.is_symlink() and os.fspath(tmp_path) in _led_to(path)
            ]
            assert 1 <= len(held) <= 3


def _led_to(path: Path) -> str:
    try:
        return os.fspath(path.readlink())
    except OSError:  # the descriptor of the listing itself
        return ""


def test_arrays_outlive_the_checkpoint_and_its_replacement(tmp_path: Path) -> None:
    ckptfmt.write({"w": np.arange(1000.0)}, tmp_path / "a", to="dcp")
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        before = checkpoint.tensors()["w"]
        ckptfmt.write({"w": np.zeros(1000)}, tmp_path / "a", to="dcp", overwrite=True)
        array = before.numpy()
    assert array.tolist() == list(range(1000))
