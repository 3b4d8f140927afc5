"""Weights that published packages ship: converted, back again, and equal to what the real reader reads."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from tools.fetch_real_files import Row, fetched, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.framework, pytest.mark.real_files]
SUFFIX = {"npz": ".npz", "safetensors": ".safetensors", "torch": ".pt", "torch-legacy": ".pt"}
READ = [row for row in rows() if row["kind"] in SUFFIX]
PROGRAMS = [row for row in rows() if row["kind"] == "torchscript"]


def path_of(row: Row) -> Path:
    path = fetched(row)
    if not path.exists():
        pytest.skip(f"{row['package']} could not be fetched; `python tools/fetch_real_files.py` says why")
    return path


def truth(row: Row, path: Path) -> dict[str, np.ndarray]:
    """Return the tensors that the real reader reads, by displayed path."""
    if row["kind"] == "npz":
        with np.load(path) as file:
            return dict(file)
    if row["kind"] == "safetensors":
        loaded: dict[str, np.ndarray] = pytest.importorskip("safetensors.numpy").load_file(path)
        return loaded
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    value = torch.load(path, map_location="cpu", weights_only=False)  # files of listed hashes
    return dict(_arrays(value, (), torch.Tensor))


def _arrays(value: object, path: tuple, kind: type) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, kind):
        yield "/".join(map(str, path)), value.detach().numpy()  # type: ignore[attr-defined] # a torch tensor
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _arrays(child, (*path, key), kind)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _arrays(child, (*path, index), kind)


@pytest.mark.parametrize("row", READ, ids=lambda row: row["file"].rpartition("/")[2])
def test_published_weights_convert_there_and_back(row: Row, tmp_path: Path) -> None:
    path = path_of(row)
    assert ckptfmt.detect(path).name == row["kind"]
    ckptfmt.convert(path, tmp_path / "native")
    assert ckptfmt.check(tmp_path / "native").ok
    back = tmp_path / f"back{SUFFIX[row['kind']]}"
    ckptfmt.convert(tmp_path / "native", back)
    expected = truth(row, path)
    assert expected
    for target in (path, tmp_path / "native", back):
        with ckptfmt.read(target) as checkpoint:
            tensors = checkpoint.tensors()
            for name, array in expected.items():
                assert tensors[name].numpy().tobytes() == array.tobytes(), (target.name, name)
                assert (tensors[name].shape, tensors[name].numpy().dtype) == (array.shape, array.dtype)
            if row["kind"] != "torch":  # whose objects may hold tensors that are no items of containers
                assert tensors.keys() == expected.keys()


@pytest.mark.parametrize("row", READ, ids=lambda row: row["file"].rpartition("/")[2])
def test_published_weights_keep_their_bag_in_every_format(row: Row, tmp_path: Path) -> None:
    path = path_of(row)
    bag = ckptfmt.digest(path).bag
    for name in ("native", "to.pt", "to.safetensors", "to.npz"):
        ckptfmt.convert(path, tmp_path / name)
        assert ckptfmt.digest(tmp_path / name).bag == bag, name


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row["file"].rpartition("/")[2])
def test_published_programs_give_their_tensors(row: Row) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of TorchScript
        state = torch.jit.load(path_of(row), map_location="cpu").state_dict()
    assert ckptfmt.detect(path_of(row)).name == row["kind"]
    with ckptfmt.read(path_of(row)) as checkpoint:
        found = {(tensor.shape, bytes(tensor.bytes())) for tensor in checkpoint.tensors().values()}
    expected = {(tuple(tensor.shape), tensor.numpy().tobytes()) for tensor in state.values()}
    assert expected
    assert expected <= found
