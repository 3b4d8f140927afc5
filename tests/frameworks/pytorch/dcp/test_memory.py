"""Converting a directory of chunks holds no tensor in memory, let alone all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.frameworks.pytorch.dcp.emit import encode_metadata
from ckptfmt.frameworks.pytorch.dcp.metadata import Metadata, TensorRow, decode_metadata
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.box import Box
from tools.bench.memory import Peak

COUNT, ROWS, COLUMNS, PARTS = 6, 4096, 4096, 4
WIDTH = COLUMNS // PARTS


def in_columns(folder: Path) -> np.ndarray:
    """Make a directory of equal tensors, each in chunks of columns; return one of them."""
    whole = np.arange(ROWS * COLUMNS, dtype="f4").reshape(ROWS, COLUMNS)
    parts = {f"{j}": np.ascontiguousarray(whole[:, j * WIDTH : (j + 1) * WIDTH]) for j in range(PARTS)}
    tree = {f"w{k}": {name: part + 0 for name, part in parts.items()} for k in range(COUNT)}
    ckptfmt.write(tree, folder, to="dcp", shard_size=64 << 20)
    with FileReader(folder / ".metadata") as reader:
        written = decode_metadata(reader)
    made = Metadata({}, {}, {})
    offsets = [(0, j * WIDTH) for j in range(PARTS)]
    for k in range(COUNT):
        row = written.rows[f"w{k}.0"]
        assert isinstance(row, TensorRow)
        chunks = tuple(Box(offset, (ROWS, WIDTH)) for offset in offsets)
        made.rows[f"w{k}"] = replace(row, shape=(ROWS, COLUMNS), chunks=chunks)
        made.paths[f"w{k}"] = (f"w{k}",)
        for j, offset in enumerate(offsets):
            made.places[f"w{k}", offset] = written.places[f"w{k}.{j}", (0, 0)]
    (folder / ".metadata").write_bytes(encode_metadata(made))
    return whole


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told on Linux only")
def test_chunks_of_columns_are_converted_in_bounded_memory(tmp_path: Path) -> None:
    whole = in_columns(tmp_path / "a")
    with Peak() as peak:
        report = ckptfmt.convert(tmp_path / "a", tmp_path / "b", to="ckptfmt")
    assert report.same_root
    assert report.nbytes == COUNT * whole.nbytes
    assert peak.value - peak.before < 48 << 20  # less than one tensor
    with ckptfmt.load(tmp_path / "b") as checkpoint:
        assert np.array_equal(checkpoint.tensors()["w3"].numpy(), whole)
    with Peak() as peak:
        ckptfmt.convert(tmp_path / "b", tmp_path / "c", to="dcp")
    assert peak.value - peak.before < 48 << 20
