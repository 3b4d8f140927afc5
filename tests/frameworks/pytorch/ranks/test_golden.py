"""Files that real ranks of PyTorch 2.13 saved, joined without it: what PyTorch gathers from the ranks."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import FormatError, MissingFileError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.ranks.joining import PER_RANK, RankTree, join_ranks
from ckptfmt.frameworks.pytorch.ranks.reader import read, read_files
from ckptfmt.tree.nodes import Composite, Opaque
from ckptfmt.tree.tensor import Tensor

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "torch" / "2.13.0-special"
EXPECTED: dict = json.loads((GOLDEN / "expected.json").read_text())
SETS = ("fsdp2-4", "grid-4", "pipeline-4", "fsdp1-2")


def described(tensor: Tensor) -> list[object]:
    """Return type, shape and digest, as the tool that made the files did."""
    digest = hashlib.sha256(bytes(tensor.bytes())).hexdigest()
    return [keys.BY_DTYPE[tensor.dtype.name].name, list(tensor.shape), digest]


def without(name: str, target: Path, *left_out: str) -> Path:
    """Copy a set, some files left out."""
    shutil.copytree(GOLDEN / name, target, ignore=lambda *_: left_out)
    return target


@pytest.mark.parametrize("name", SETS)
def test_distributed_tensors_are_what_pytorch_gathers(name: str) -> None:
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        assert checkpoint.format == "torch-ranks"
        found = checkpoint.tensors()
        for path, expected in EXPECTED[name].items():
            assert described(found[path]) == expected, path
        assert not any(finding.severity is not ckptfmt.Severity.INFO for finding in checkpoint.findings)


@pytest.mark.parametrize("name", SETS)
def test_nothing_of_a_distributed_tensor_is_left_as_it_was(name: str) -> None:
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        nodes = [checkpoint.tree]
        while nodes:
            node = nodes.pop()
            assert not isinstance(node, Opaque), node
            children = (
                node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()
            )
            nodes += children


@pytest.mark.parametrize("name", SETS)
def test_any_box_of_a_joined_tensor_is_that_of_the_whole(name: str) -> None:
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        for path, tensor in checkpoint.tensors().items():
            whole = tensor.numpy()
            for index in np.ndindex(*tensor.shape):
                assert tensor[index].tobytes() == whole[index].tobytes(), path


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_converted_to_any_format(name: str, tmp_path: Path) -> None:
    for to in ("ckptfmt", "torch", "safetensors"):
        report = ckptfmt.convert(GOLDEN / name, tmp_path / to, to=to)
        assert report.source_format == "torch-ranks"
        assert ckptfmt.digest(tmp_path / to).bag == ckptfmt.digest(GOLDEN / name).bag


def test_ties_of_sharded_tensors_are_kept() -> None:
    with ckptfmt.read(GOLDEN / "fsdp2-4") as checkpoint:
        tensors = checkpoint.tensors()
        last, tied = (tensors[f"model/{name}.weight"] for name in ("last", "tied"))
        assert last.identity == tied.identity
        assert last.identity is not None
        assert last.identity != tensors["model/first.weight"].identity


def test_what_differs_between_ranks_is_kept_of_each() -> None:
    with ckptfmt.read(GOLDEN / "fsdp2-4") as checkpoint:
        tree = checkpoint.tree
        assert isinstance(tree, dict)
        assert tree["epoch"] == 3
        rank, mine = tree["rank"], tree["mine"]
        assert isinstance(rank, Composite)
        assert isinstance(mine, Composite)
        assert (rank.name, rank.attributes) == (PER_RANK, {"ranks": (0, 1, 2, 3)})
        assert rank.parts == {"0": 0, "1": 1, "2": 2, "3": 3}
        values = [np.asarray(part).tolist() for part in mine.parts.values()]
        assert values == [[rank] * 2 for rank in range(4)]
        (finding,) = [each for each in checkpoint.findings if each.kind == "per-rank"]
        assert finding.severity is ckptfmt.Severity.INFO


def test_what_some_ranks_have_is_there_once() -> None:
    with ckptfmt.read(GOLDEN / "pipeline-4") as checkpoint:
        assert isinstance(checkpoint.tree, dict)
        assert list(checkpoint.tree) == ["stage0", "step", "stage1"]
        assert {finding.kind for finding in checkpoint.findings} == {"some-ranks"}


@pytest.mark.parametrize("left_out", [("model_rank2.pt",), ("model_rank0.pt", "model_rank3.pt")])
def test_missing_ranks_are_named_with_what_is_not_complete(left_out: tuple[str, ...], tmp_path: Path) -> None:
    numbers = ", ".join(name[10] for name in left_out)
    with pytest.raises(MissingFileError, match=f"no file of rank {numbers}: pieces are missing") as caught:
        read(without("fsdp2-4", tmp_path / "set", *left_out))
    assert caught.value.tensor == "model/first.weight"


def test_a_missing_rank_whose_pieces_others_have_is_a_loss_that_is_told() -> None:
    files = [ckptfmt.read(GOLDEN / "grid-4" / f"rank_{rank}.pt") for rank in (0, 1)]
    trees = [
        RankTree(rank, f"rank_{rank}.pt", file.at(("grid", "columns"))) for rank, file in enumerate(files)
    ]
    tensor, (finding,) = join_ranks(trees)
    assert isinstance(tensor, Tensor)
    assert described(tensor) == EXPECTED["grid-4"]["grid/columns"]
    assert (finding.kind, finding.severity) == ("missing-ranks", ckptfmt.Severity.LOSS)
    assert "no file of rank 2, 3" in finding.message
    for file in files:
        file.close()


def test_replicas_of_ranks_that_differ_are_refused_by_their_names() -> None:
    big = np.zeros(1 << 15, "f4")
    other = big.copy()
    other[-1] = 1
    trees = [RankTree(rank, "x", Tensor.of(each)) for rank, each in ((0, big), (3, other))]
    tensor, findings = join_ranks(trees)
    assert isinstance(tensor, Tensor)
    assert findings == ()
    with pytest.raises(FormatError, match="replicas differ: rank 3 has other bytes than rank 0"):
        tensor.numpy()


def test_files_of_some_ranks_can_be_given_one_by_one() -> None:
    paths = {rank: GOLDEN / "pipeline-4" / f"mp_rank_{rank:02}.pt" for rank in (0, 1)}
    with read_files(paths) as checkpoint:  # the mesh of a stage knows its own ranks only
        assert list(checkpoint.tensors()) == ["stage0"]


def test_the_last_rank_of_a_set_whose_names_tell_how_many_is_missed(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no file of rank 1"):
        read(without("fsdp1-2", tmp_path / "set", "shard-1-of-2.pt"))


def test_ranks_are_told_by_content_where_it_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for rank in range(4):
        shutil.copy(GOLDEN / "fsdp2-4" / f"model_rank{rank}.pt", folder / f"model_rank{3 - rank}.pt")
    with read(folder) as moved, read(GOLDEN / "fsdp2-4") as straight:
        assert ckptfmt.compare(moved, straight).equal
        told = [finding for finding in moved.findings if finding.kind == "rank-by-content"]
        assert len(told) == 4


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    folder = without("fsdp2-4", tmp_path / "set", "model_rank3.pt")
    shutil.copy(folder / "model_rank0.pt", folder / "model_rank3.pt")
    with pytest.raises(FormatError, match=r"both of rank 0"):
        read(folder)


def test_partial_sums_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedVersionError, match="is Partial") as caught:
        ckptfmt.read(GOLDEN / "partial-2")
    assert caught.value.tensor == "sum"


def test_the_file_of_one_rank_alone_says_that_it_is_a_shard() -> None:
    with ckptfmt.read(GOLDEN / "fsdp2-4" / "model_rank1.pt") as checkpoint:
        (finding,) = [each for each in checkpoint.findings if each.kind == "local-shard"]
        assert finding.path == "model/first.weight"
        assert "shards of one rank (DTensor)" in finding.message
        assert "model/first.weight/state/1/_local_tensor" in checkpoint.tensors()


@pytest.mark.framework
def test_a_joined_set_loads_into_the_unsharded_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    ckptfmt.convert(GOLDEN / "fsdp2-4", tmp_path / "whole.pt")
    state = torch.load(tmp_path / "whole.pt", weights_only=True)
    shapes = [tuple(value.shape) for name, value in state["model"].items() if "running" not in name]
    assert shapes[:4] == [(5, 3), (5,), (5,), (5,)]
    shapes = [(5, 3), (5,), (5,), (5,), (1, 5)]
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])
    optimizer.load_state_dict(state["optim"])
    moments = [entry["exp_avg"] for entry in optimizer.state.values()]
    assert [described(Tensor.of(each.numpy())) for each in moments] == [
        EXPECTED["fsdp2-4"][f"optim/state/{number}/exp_avg"] for number in range(5)
    ]
