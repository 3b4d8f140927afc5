"""A checkpoint is found by whatever people call it, and what is missing is told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.errors import (
    ChecksumError,
    CkptError,
    FormatError,
    MissingFileError,
    NotFoundError,
    TruncatedError,
)
from ckptfmt.frameworks.tensorflow.prefixes import prefix_of
from ckptfmt.frameworks.tensorflow.reader import read
from ckptfmt.frameworks.tensorflow.state_file import newest
from ckptfmt.tree.paths import display


def value(path: Path) -> float:
    with ckptfmt.read(path) as checkpoint:
        assert checkpoint.format == "tensorflow"
        return float(checkpoint.at(("model", "v")).numpy())  # type: ignore[union-attr] # a tensor


@pytest.fixture
def managed(golden: Path, tmp_path: Path) -> Path:
    """A directory of a CheckpointManager, on a machine that did not write it."""
    return Path(shutil.copytree(golden / "managed", tmp_path / "managed"))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", 2.5),
        ("ckpt-2", 1.5),
        ("ckpt-2.index", 1.5),
        ("ckpt-2.data-00000-of-00001", 1.5),
        ("ckpt-3", 2.5),
    ],
)
def test_prefix_index_data_and_directory_mean_the_same_checkpoint(
    given: str, found: float, managed: Path
) -> None:
    assert value(managed / given) == found


def test_a_saved_model_is_read_by_its_directory(golden: Path) -> None:
    with ckptfmt.read(golden / "saved_model") as checkpoint:
        assert checkpoint.at(("model", "w")).numpy().tolist() == [[1, 2], [3, 4]]  # type: ignore[union-attr] # a tensor


def test_a_directory_with_one_checkpoint_needs_no_state_file(managed: Path) -> None:
    (managed / "checkpoint").unlink()
    with pytest.raises(FormatError, match=r"several checkpoints and no 'checkpoint' file.*ckpt-2\.index"):
        read(managed)
    for path in managed.glob("ckpt-2.*"):
        path.unlink()
    assert value(managed) == 2.5


@pytest.mark.parametrize(
    ("line", "prefix"),
    [
        ('model_checkpoint_path: "ckpt-2"', "ckpt-2"),
        ('model_checkpoint_path: "/data/of/another/machine/ckpt-2"', "ckpt-2"),
        ("model_checkpoint_path: 'C:\\\\\\\\run\\\\\\\\ckpt-2'", "ckpt-2"),
        ('  model_checkpoint_path:"./ckpt-2"  # newest', "ckpt-2"),
        ('model_checkpoint_path: "sub/../ckpt-2"', "ckpt-2"),
        ('model_checkpoint_path: "\\143\\x6bpt\\0552"', "ckpt-2"),
        ('all_model_checkpoint_paths: "ckpt-3"\nmodel_checkpoint_path: "ckpt-2"', "ckpt-2"),
    ],
)
def test_the_newest_is_looked_for_in_the_directory_itself(line: str, prefix: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text(line + "\n")
    assert newest(tmp_path) == tmp_path / prefix


def test_an_absolute_path_below_the_directory_keeps_its_folders(tmp_path: Path) -> None:
    told = os.path.realpath(tmp_path / "run" / "ckpt-1")
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{told}"\n')
    assert newest(tmp_path) == tmp_path / "run" / "ckpt-1"


@pytest.mark.parametrize(
    "content",
    [
        b'model_checkpoint_path: "../ckpt-1"',
        b'model_checkpoint_path: "a/../../ckpt-1"',
        b'model_checkpoint_path: ".."',
        b'model_checkpoint_path: "link/ckpt-1"',
        b'model_checkpoint_path: "\\000"',
        b'model_checkpoint_path: "\\377"',
        b'model_checkpoint_path: ""',
        b'model_checkpoint_path: "ckpt',
        b"model_checkpoint_path: 7",
        b"",
        b"\n" * 100_000 + b" " * 100_000,
    ],
)
def test_a_state_file_that_leads_out_or_tells_nothing_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to(tmp_path)
    (tmp_path / "d" / "checkpoint").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        newest(tmp_path / "d")
    assert caught.value.file == str(tmp_path / "d" / "checkpoint")


def test_what_is_missing_is_named(managed: Path) -> None:
    (managed / "ckpt-3.data-00000-of-00001").unlink()
    with pytest.raises(MissingFileError, match=r"not there: .*rename both .*ckpt-3\.data-00000-of-00001"):
        read(managed)
    (managed / "ckpt-3.index").unlink()
    with pytest.raises(MissingFileError, match=r"newest checkpoint is ckpt-3, .* no ckpt-3\.index"):
        read(managed)
    (managed / "ckpt-2.index").unlink()
    with pytest.raises(MissingFileError, match=r"ckpt-2\.index, which says what is in it, is not there"):
        read(managed / "ckpt-2.data-00000-of-00001")
    with pytest.raises(NotFoundError, match=r"no ckpt-2\.index"):
        read(managed / "ckpt-2")
    (managed / "saved_model.pb").touch()
    with pytest.raises(MissingFileError, match="SavedModel without variables"):
        read(managed)


def test_an_index_of_another_name_is_explained(managed: Path) -> None:
    (managed / "ckpt-2.index").rename(managed / "weights.ckpt")
    assert ckptfmt.detect(managed / "weights.ckpt").name == "tensorflow"
    with pytest.raises(FormatError, match=r"must be called <prefix>\.index"):
        ckptfmt.read(managed / "weights.ckpt")


def test_an_index_that_is_too_short_is_told_as_that(managed: Path) -> None:
    index = managed / "ckpt-2.index"
    index.write_bytes(index.read_bytes()[:20])
    with pytest.raises(TruncatedError, match=r"cut short after 20 bytes.*ckpt-2\.index"):
        ckptfmt.read(index)
    with pytest.raises(TruncatedError):
        read(managed / "ckpt-2")


def test_a_flipped_bit_of_a_tensor_is_told_by_its_name(golden: Path, tmp_path: Path) -> None:
    for path in golden.glob("by_name-3.*"):
        shutil.copy(path, tmp_path)
    data = tmp_path / "by_name-3.data-00000-of-00001"
    changed = bytearray(data.read_bytes())
    changed[-1] ^= 1
    data.write_bytes(changed)
    told = set()
    with ckptfmt.read(tmp_path / "by_name-3") as checkpoint:
        for name, tensor in checkpoint.tensors().items():
            try:
                tensor.numpy()
            except ChecksumError as error:
                told.add((error.tensor, error.file))
                blamed = name
    assert blamed == display((next(iter(told))[0],))
    assert len(told) == 1
    assert {file for _, file in told} == {str(data)}


def test_prefixes_with_odd_names_are_prefixes(tmp_path: Path) -> None:
    for name in ("model.ckpt-10", "a.b.c", "é x", "x.index.index"):
        ckptfmt.write({"w": np.ones(2)}, tmp_path / name, to="tensorflow")
        prefix = name.removesuffix(".index")
        assert prefix_of(tmp_path / f"{prefix}.index") == str(tmp_path / prefix)
        with ckptfmt.read(tmp_path / f"{prefix}.data-00000-of-00001") as checkpoint:
            assert checkpoint["w"].numpy().tolist() == [1, 1]  # type: ignore[union-attr] # a tensor


def test_a_graph_that_is_damaged_is_told_with_its_file(tmp_path: Path) -> None:
    key = "_CHECKPOINTABLE_OBJECT_GRAPH"
    graph = ckptfmt.Strings((), (b"\x0a\xff",))
    write_bundle(tmp_path / "x", [Item(key, graph)])
    with pytest.raises(CkptError) as caught:
        ckptfmt.read(tmp_path / "x")
    assert isinstance(caught.value, FormatError)
    assert (caught.value.tensor, caught.value.file) == (key, str(tmp_path / "x.index"))
