"""Files of several ranks are one checkpoint; what is missing or does not fit together is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.frameworks.chainer.multinode import of_rank
from tests.frameworks.chainer.test_golden import EXPECTED, GOLDEN, at, described

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {"ranks-checkpointer": "run.{rank}.{iteration}", "ranks-snapshot": "snapshot_iter_{iteration}.{rank}"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Path:
    """A copy of what two ranks wrote at iterations 2 and 4."""
    return Path(shutil.copytree(GOLDEN / kind, tmp_path / "ranks"))


def name(kind: str, rank: int, iteration: int) -> str:
    return KINDS[kind].format(rank=rank, iteration=iteration)


def kinds(checkpoint: ckptfmt.Checkpoint) -> set[str]:
    return {finding.kind for finding in checkpoint.findings}


def test_every_array_of_every_rank_is_there_once(kind: str) -> None:
    assert ckptfmt.detect(GOLDEN / kind).name == "chainermn"
    with ckptfmt.read(GOLDEN / kind) as checkpoint:
        assert checkpoint.step == 4
        for rank in range(2):
            expected = EXPECTED[f"{kind}/{name(kind, rank, 4)}"]
            for key, wanted in expected.items():
                found = None
                for part in ("shared", rank):
                    tree = checkpoint["shared"] if part == "shared" else checkpoint.at(("ranks", rank))
                    try:
                        found = described(at(tree, key))
                    except (KeyError, AssertionError):
                        continue
                    break
                else:
                    pytest.fail(f"{key} of rank {rank} is nowhere")
                assert found == wanted


def test_models_are_shared_and_orders_and_statistics_are_each_ranks_own(kind: str) -> None:
    with ckptfmt.read(GOLDEN / kind) as checkpoint:
        weight = "updater/model:main/predictor/conv/W"
        assert isinstance(at(checkpoint["shared"], weight), ckptfmt.Tensor)
        for rank in range(2):
            own = checkpoint.at(("ranks", rank))
            assert isinstance(at(own, "updater/iterator:main/order"), ckptfmt.Tensor)
            assert isinstance(at(own, "updater/model:main/predictor/norm/avg_mean"), ckptfmt.Tensor)
        assert {"per-rank", "other-iteration"} <= kinds(checkpoint)
        assert "ranks-differ" not in kinds(checkpoint)


def test_any_file_of_a_set_stands_for_its_set(kind: str) -> None:
    for rank in range(2):
        path = GOLDEN / kind / name(kind, rank, 2)
        with ckptfmt.read(path, format="chainermn") as checkpoint:
            assert checkpoint.step == 2
        with ckptfmt.read(path) as alone:
            assert alone.format == "chainer-npz"
            assert "one-rank" in kinds(alone)


def test_the_newest_complete_iteration_is_read_and_the_others_are_told(kind: str, place: Path) -> None:
    (place / name(kind, 1, 4)).unlink()
    with ckptfmt.read(place) as checkpoint:
        assert checkpoint.step == 2
        (told,) = [finding for finding in checkpoint.findings if finding.kind == "other-iteration"]
        assert "4 (without rank 1)" in told.message
    with pytest.raises(ckptfmt.FormatError, match=r"iteration 4 .*missing: 1"):
        ckptfmt.read(place / name(kind, 0, 4), format="chainermn")


def test_missing_ranks_are_named_where_nothing_is_complete(kind: str, place: Path) -> None:
    (place / name(kind, 1, 4)).unlink()
    (place / name(kind, 0, 2)).unlink()
    with pytest.raises(ckptfmt.FormatError, match=r"iteration 4 .*missing: 1"):
        ckptfmt.read(place)


def test_files_that_were_never_finished_are_named_and_not_read(place: Path) -> None:
    (place / "tmp-run.1.6abcd").write_bytes(b"PK\x03\x04")
    with ckptfmt.read(place) as checkpoint:
        (told,) = [finding for finding in checkpoint.findings if finding.kind == "leftover"]
        assert "tmp-run.1.6abcd" in told.message


def test_a_replica_set_without_a_file_is_told_for_snapshots(tmp_path: Path) -> None:
    for rank, other in ((0, 0), (1, 3)):
        source = GOLDEN / "ranks-snapshot" / f"snapshot_iter_4.{rank}"
        shutil.copy(source, tmp_path / f"snapshot_iter_4.{other}")
    with ckptfmt.read(tmp_path) as checkpoint:
        (told,) = [finding for finding in checkpoint.findings if finding.kind == "rank-absent"]
        assert "1, 2" in told.message
        assert told.severity is ckptfmt.Severity.PROBLEM


def test_a_checkpointers_set_with_a_gap_is_not_complete(tmp_path: Path) -> None:
    for rank, other in ((0, 0), (1, 2)):
        shutil.copy(GOLDEN / "ranks-checkpointer" / f"run.{rank}.4", tmp_path / f"run.{other}.4")
    with pytest.raises(ckptfmt.FormatError, match="missing: 1"):
        ckptfmt.read(tmp_path)


def test_ranks_of_different_iterations_are_refused(kind: str, place: Path) -> None:
    (place / name(kind, 1, 4)).unlink()
    (place / name(kind, 1, 2)).rename(place / name(kind, 1, 4))
    with pytest.raises(ckptfmt.FormatError, match="rank 0 of 4, rank 1 of 2"):
        ckptfmt.read(place)


def test_a_set_whose_names_say_another_iteration_is_told(kind: str, place: Path) -> None:
    for rank in range(2):
        (place / name(kind, rank, 4)).rename(place / name(kind, rank, 8))
    with ckptfmt.read(place) as checkpoint:
        assert "iteration-name" in kinds(checkpoint)


def test_files_of_two_runs_are_refused_unless_one_is_given(place: Path, kind: str) -> None:
    for path in list(place.iterdir()):
        shutil.copy(path, place / f"other_{path.name}")
    with pytest.raises(ckptfmt.FormatError, match="several runs"):
        ckptfmt.read(place)
    with ckptfmt.read(place / name(kind, 0, 4), format="chainermn") as checkpoint:
        assert checkpoint.step == 4


def rank_file(path: Path, arrays: Mapping[str, object]) -> None:
    """Write what a rank of one trainer could have written."""
    common = {"updater/iteration": 5, "updater/model:main/W": np.ones(3, "f4")}
    members = {**common, **arrays}
    arrays = {key: np.asarray(value) for key, value in members.items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type] # no name is an option's


def test_arrays_that_should_be_alike_and_are_not_stay_per_rank(tmp_path: Path) -> None:
    rank_file(tmp_path / "run.0.5", {"updater/model:main/b": np.zeros(2), "updater/model:main/only": 1})
    rank_file(tmp_path / "run.1.5", {"updater/model:main/b": np.ones(2)})
    with ckptfmt.read(tmp_path) as checkpoint:
        told = {finding.kind: finding for finding in checkpoint.findings}
        assert told["ranks-differ"].path == "updater/model:main/b"
        assert told["ranks-differ"].severity is ckptfmt.Severity.PROBLEM
        assert told["only-some-ranks"].path == "updater/model:main/only"
        values = [at(checkpoint.at(("ranks", rank)), "updater/model:main/b") for rank in range(2)]
        assert [value.numpy().tolist() for value in values if isinstance(value, ckptfmt.Tensor)] == [
            [0, 0],
            [1, 1],
        ]


def test_a_name_that_can_be_taken_two_ways_is_settled_by_what_the_file_records(tmp_path: Path) -> None:
    for rank in range(2):
        rank_file(tmp_path / f"model.5.{rank}", {})
    with ckptfmt.read(tmp_path) as checkpoint:
        assert checkpoint.step == 5
        assert checkpoint["ranks"] == {0: {}, 1: {}}


def test_a_damaged_file_of_one_rank_is_named(kind: str, place: Path) -> None:
    path = place / name(kind, 1, 4)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ckptfmt.FormatError, match=name(kind, 1, 4).replace(".", r"\.")):
        ckptfmt.read(place)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_snapshot_of_one_rank_is_written_again_as_it_was(kind: str, rank: int, tmp_path: Path) -> None:
    with ckptfmt.read(GOLDEN / kind) as checkpoint:
        ckptfmt.write(of_rank(checkpoint.tree, rank), tmp_path / "one", to="chainer-npz", strict=True)
        with pytest.raises(ckptfmt.TreeError, match="rank 2"):
            of_rank(checkpoint.tree, 2)
    with ckptfmt.read(tmp_path / "one") as one, ckptfmt.read(GOLDEN / kind / name(kind, rank, 4)) as own:
        assert one.format == own.format == "chainer-npz"
        assert ckptfmt.digest(one).root == ckptfmt.digest(own).root


def test_what_is_named_like_a_rank_and_is_no_file_is_refused(kind: str, place: Path) -> None:
    (place / name(kind, 1, 6)).mkdir()
    (place / name(kind, 0, 6)).symlink_to("nowhere")
    with pytest.raises(ckptfmt.CkptError):
        ckptfmt.read(place)
    with pytest.raises(ckptfmt.NotFoundError):
        ckptfmt.read(place / name(kind, 0, 7), format="chainermn")
    with pytest.raises(ckptfmt.FormatError, match="not named"):
        ckptfmt.read(GOLDEN / "model.npz", format="chainermn")


def test_a_set_is_converted_and_cannot_be_written(tmp_path: Path) -> None:
    source = GOLDEN / "ranks-checkpointer"
    report = ckptfmt.convert(source, tmp_path / "native")
    assert report.same_root is True
    assert report.step == 4
    with pytest.raises(ckptfmt.ConversionError, match="chainer-npz"):
        ckptfmt.convert(tmp_path / "native", tmp_path / "again", to="chainermn")
