"""Directories that real ranks of PyTorch 2.13 saved, read without it: what its own readers made of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import ckptfmt
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.tree.nodes import Opaque
from ckptfmt.tree.tensor import Tensor

Foreign: TypeAlias = Any  # an object of a library without types
GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "dcp" / "2.13.0"
EXPECTED: dict = json.loads((GOLDEN / "expected.json").read_text())
WHOLE = [name for name in EXPECTED if not name.startswith("alone")]


def described(value: object) -> object:
    """Say of a tree what the tool that made the files said of PyTorch's own objects."""
    if isinstance(value, Tensor):
        digest = hashlib.sha256(bytes(value.bytes())).hexdigest()
        return ["tensor", keys.BY_DTYPE[value.dtype.name].name, list(value.shape), digest]
    if isinstance(value, dict):
        return ["dict", [[key, described(child)] for key, child in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [described(child) for child in value]]
    if isinstance(value, Opaque):
        return ["dtype", value.name]
    return [type(value).__name__, repr(value)]


@pytest.mark.parametrize("name", WHOLE)
def test_a_directory_holds_what_pytorch_reads_of_it(name: str) -> None:
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        found = described(checkpoint.tree)
        assert checkpoint.format == ("safetensors" if name.startswith("hf") else "dcp")
    if name.startswith("hf"):  # these have no order of names
        assert isinstance(found, list)
        found[1] = sorted(found[1])
        EXPECTED[name][1].sort()
    assert found == EXPECTED[name]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_saved_alone_is_read_by_its_metadata(rank: int) -> None:
    with ckptfmt.read(GOLDEN / "alone-2" / f"__{rank}.metadata") as checkpoint:
        assert described(checkpoint.tree) == EXPECTED["alone-2"][rank]
    with pytest.raises(
        ckptfmt.UnknownFormatError, match=r"metadata of one rank: __0\.metadata, __1\.metadata"
    ):
        ckptfmt.read(GOLDEN / "alone-2")


@pytest.mark.parametrize("name", ["fsdp2-4", "grid-4", "plain-1", "items-2"])
def test_what_was_read_is_written_and_read_again_with_the_same_root(name: str, tmp_path: Path) -> None:
    for to in ("ckptfmt", "dcp", "torch", "safetensors"):
        report = ckptfmt.convert(GOLDEN / name, tmp_path / to, to=to)
        assert report.same_root, to


def test_a_file_of_items_is_told_and_its_directory_asked_for() -> None:
    with pytest.raises(ckptfmt.UnknownFormatError, match=r"distcp files of a torch.* Give their directory"):
        ckptfmt.detect(GOLDEN / "fsdp2-2" / "__1_0.distcp")


def test_one_digest_whatever_the_ranks() -> None:
    bags = []
    for name in ("fsdp2-2", "fsdp2-4"):
        with ckptfmt.read(GOLDEN / name) as checkpoint:
            tensors = ckptfmt.digest(checkpoint.tree["model"]).tensors  # type: ignore[index, call-overload]
        bags.append(tensors)
    assert bags[0] == bags[1]


def test_a_box_reads_the_chunks_that_it_crosses_alone() -> None:
    with ckptfmt.read(GOLDEN / "grid-4") as checkpoint:
        for tensor in checkpoint.tensors().values():
            if tensor.shape == (5, 3):
                assert tensor[2:5, 1].tolist() == tensor.numpy()[2:5, 1].tolist()
                assert tensor[3].tolist() == [9, 10, 11]


def test_requires_grad_is_kept() -> None:
    with ckptfmt.read(GOLDEN / "plain-1") as checkpoint:
        tags = {path: tensor.tag for path, tensor in checkpoint.tensors().items() if tensor.tag is not None}
    assert {path: (tag.name, tag.attributes) for path, tag in tags.items()} == {
        "parameter": ("torch.Tensor", {"requires_grad": True})
    }


def test_a_part_is_converted_by_its_path_and_missing_files_are_named(tmp_path: Path) -> None:
    """What public reports of directories of ranks ask for: the model alone, and no silence about files."""
    report = ckptfmt.convert(GOLDEN / "fsdp2-4", tmp_path / "model.pt", include="model")
    assert report.same_root
    assert (report.tensors, len(report.dropped)) == (5, 33)
    shutil.copytree(GOLDEN / "fsdp2-4", tmp_path / "a")
    (tmp_path / "a" / "__1_0.distcp").unlink()
    with pytest.raises(ckptfmt.MissingFileError, match=r"__1_0\.distcp \(17 items, .* among them\)"):
        ckptfmt.read(tmp_path / "a")


@pytest.mark.framework
def test_pytorch_loads_what_was_converted(dcp: Foreign, tmp_path: Path) -> None:
    """FSDP2 and Adam on four ranks, to one directory without ranks: PyTorch reads the same of both."""
    ckptfmt.convert(GOLDEN / "fsdp2-4", tmp_path / "a", to="dcp")
    found, wanted = dcp.everything(tmp_path / "a"), dcp.everything(GOLDEN / "fsdp2-4", tmp_path)
    assert found["optim"]["param_groups"] == wanted["optim"]["param_groups"]
    for name, tensor in wanted["model"].items():
        assert dcp.torch.equal(found["model"][name], tensor)
        for kind, state in wanted["optim"]["state"][name].items():
            assert dcp.torch.equal(found["optim"]["state"][name][kind], state)
