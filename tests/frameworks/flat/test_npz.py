"""Trees in NPZ files: judged by numpy, and by files as Chainer writes them."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.errors import FormatError, UnsupportedVersionError
from ckptfmt.format.digests import node_digest
from ckptfmt.frameworks.flat.npz import read, write
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path


def test_numpy_reads_what_we_write(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b/c": np.array([True, False]),
        "z": np.array(1 + 2j),
        "s": np.array([b"ab", b"c"]),
        "u": np.array([["x", "longer"], ["é", ""]]),
        "file": np.zeros((0, 3), "i2"),
    }
    tree, _ = as_tree(arrays)
    assert write(tree, tmp_path / "a.npz") == ()
    with np.load(tmp_path / "a.npz", allow_pickle=False) as judged:
        assert set(judged.files) == set(arrays)
        for name, array in arrays.items():
            assert judged[name].dtype == array.dtype
            assert np.array_equal(judged[name], array)


def test_types_that_numpy_cannot_name_keep_their_bits_for_numpy(tmp_path: Path) -> None:
    bf16 = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    fp8 = np.arange(4, dtype=ml_dtypes.float8_e5m2)
    tree, _ = as_tree({"bf16": bf16, "fp8": fp8, "int4": np.array([1, -2, 3], ml_dtypes.int4)})
    findings = write(tree, tmp_path / "a.npz")
    assert [f.path for f in findings if f.kind == "stored-raw"] == ["bf16", "fp8", "int4"]
    with np.load(tmp_path / "a.npz", allow_pickle=False) as judged:
        assert np.array_equal(judged["bf16"].view(ml_dtypes.bfloat16), bf16)
        assert np.array_equal(judged["fp8"].view(ml_dtypes.float8_e5m2), fp8)
        assert judged["int4"].tolist() == [0xE1, 0x03]
        assert json.loads(bytes(judged["ckptfmt.tree"]))["ckptfmt.tree"] == [1, 0]


def test_names_of_paths_are_joined_by_slashes(tmp_path: Path) -> None:
    tree, _ = as_tree({"model": {"a.b": np.ones(2), 3: np.ones(1)}, "l": [np.zeros(1)]})
    write(tree, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as judged:
        assert set(judged.files) == {"model/a.b", "model/3", "l/0", "ckptfmt.tree"}


def test_files_as_chainer_writes_them_are_read(tmp_path: Path) -> None:
    parts = {
        "updater/model:main/predictor/W": np.arange(4, dtype="<f4"),
        "updater/model:main/never/W": np.asarray(None),
        "updater/iteration": np.asarray(3),
        "extensions/LogReport/_log": np.asarray('[{"epoch": 1}]'),
        "is_new_epoch": np.asarray(True),  # noqa: FBT003 - a value
    }
    np.savez_compressed(tmp_path / "snapshot", **parts)  # type: ignore[arg-type] # names, not options
    with read(tmp_path / "snapshot.npz") as found:
        tree = found.tree
        assert isinstance(tree, dict)
        assert list(tree) == list(parts)
        assert tree["updater/model:main/never/W"] is None
        log = tree["extensions/LogReport/_log"]
        assert isinstance(log, Strings)
        assert (log.shape, log.values) == ((), ('[{"epoch": 1}]',))
        flag = tree["is_new_epoch"]
        assert isinstance(flag, Tensor)
        assert (flag.dtype.name, flag.shape) == ("bool", ())


def test_objects_are_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", good=np.ones(2), bad=np.array([{}], object))
    with pytest.raises(UnsupportedVersionError, match=r"a\.npz: bad\.npy"):
        read(tmp_path / "a.npz")


def test_nothing_is_verified_or_read_before_it_is_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.ones(10_000), b=np.zeros(10_000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[40_000] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with read(tmp_path / "a.npz") as found:
        tensors = found.tensors()
        assert np.array_equal(tensors["b"].numpy(), np.zeros(10_000))
        with pytest.raises(FormatError, match=r"a\.npy"):
            tensors["a"].numpy()


def with_note(path: Path, note: bytes, method: int = zipfile.ZIP_STORED) -> None:
    file = io.BytesIO()
    np.save(file, np.frombuffer(note, np.uint8))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("ckptfmt.tree.npy", file.getvalue())


@pytest.mark.parametrize("note", [b"[" + b"[]," * (30 << 20) + b"[]]", b"[" * (64 << 20)])
def test_a_note_that_is_a_bomb_is_ignored(tmp_path: Path, note: bytes) -> None:
    with_note(tmp_path / "a.npz", note, zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    with read(tmp_path / "a.npz") as found:
        assert [finding.kind for finding in found.findings] == ["note-mismatch"]
        assert found.tree == {}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_an_edited_file_is_read_without_its_note(tmp_path: Path) -> None:
    tree, _ = as_tree({"m": [np.ones(2)], "n": 1})
    write(tree, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as judged:
        np.savez(tmp_path / "b.npz", **{name: judged[name] for name in judged.files}, more=np.ones(1))
    with read(tmp_path / "b.npz") as found:
        assert [finding.kind for finding in found.findings] == ["note-mismatch"]
        assert set(found.tree) == {"m/0", "more"}  # type: ignore[arg-type]


def test_a_note_survives_numpys_own_copy(tmp_path: Path) -> None:
    tree, _ = as_tree({"m": [np.ones((2, 3))], "n": 1, "b": np.ones(3, ml_dtypes.bfloat16)})
    write(tree, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as judged:
        np.savez_compressed(tmp_path / "b.npz", **{name: judged[name] for name in judged.files})
    with read(tmp_path / "b.npz") as found:
        assert node_digest(found.tree) == node_digest(tree)


def test_compressed_files_are_smaller_and_equal(tmp_path: Path) -> None:
    tree, _ = as_tree({"a": np.arange(10_000), "b": np.zeros(100_000)})
    write(tree, tmp_path / "a.npz")
    write(tree, tmp_path / "b.npz", compressed=True)
    assert (tmp_path / "b.npz").stat().st_size < (tmp_path / "a.npz").stat().st_size
    with (
        read(tmp_path / "a.npz") as one,
        read(tmp_path / "b.npz") as two,
        np.load(tmp_path / "b.npz") as judged,
    ):
        assert node_digest(one.tree) == node_digest(two.tree)
        assert np.array_equal(judged["a"], np.arange(10_000))


def test_what_we_compress_we_read_whatever_it_holds(tmp_path: Path) -> None:
    tree, _ = as_tree({f"m{k}": np.zeros(4 << 20, "u1") for k in range(40)})  # 160 MiB of zeros
    write(tree, tmp_path / "a.npz", compressed=True)
    with read(tmp_path / "a.npz") as found:
        assert len(found.tensors()) == 40
