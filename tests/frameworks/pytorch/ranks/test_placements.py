"""Which elements a rank holds: against cutting an array; meshes of every age; hostile numbers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.rank_names import rank_names
from ckptfmt.errors import FormatError, LimitError
from ckptfmt.frameworks.pytorch.ranks.mesh import mesh_of
from ckptfmt.frameworks.pytorch.ranks.placements import Split, held
from ckptfmt.tree.nodes import Opaque, Tree
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.paths import Key


def chunks(array: np.ndarray, count: int, axis: int) -> list[np.ndarray]:
    """Cut as `torch.chunk` does, empty ones at the end."""
    step = max(1, -(-array.shape[axis] // count))
    cuts = [min(step * at, array.shape[axis]) for at in range(1, count)]
    return np.split(array, cuts, axis)


def cut(array: np.ndarray, split: Split) -> np.ndarray:
    """Return what a rank gets of an array."""
    firsts = chunks(array, split.factor, split.dim)
    return np.concatenate([chunks(each, split.count, split.dim)[split.index] for each in firsts], split.dim)


@pytest.mark.parametrize("shape", [(5,), (8, 3), (1, 7), (0, 4), (6, 5)])
@pytest.mark.parametrize("counts", [(2, 2), (4, 2), (3, 2)])
def test_what_a_rank_holds_is_what_cutting_leaves(shape: tuple[int, ...], counts: tuple[int, int]) -> None:
    whole = np.arange(np.prod(shape)).reshape(shape)
    last = len(shape) - 1
    for dims, factors in itertools.product(((0, 0), (0, last), (last, 0)), ((1, 1), (2, 1), (3, 1))):
        for indices in itertools.product(*map(range, counts)):
            splits = [Split(*each) for each in zip(dims, counts, indices, factors, strict=True)]
            expected = whole
            for split in splits:
                expected = cut(expected, split)
            found = np.full(expected.shape, -1)
            for box, inside in held(shape, splits):
                place = tuple(slice(at, at + n) for at, n in zip(inside.offset, inside.shape, strict=True))
                found[place] = whole[
                    tuple(slice(at, at + n) for at, n in zip(box.offset, box.shape, strict=True))
                ]
            assert found.tolist() == expected.tolist()


def test_splits_of_hostile_numbers_are_refused_at_once() -> None:
    with pytest.raises(FormatError, match="dimension 2 of a tensor of 2"):
        held((2, 2), [Split(2, 2, 0)])
    with pytest.raises(LimitError, match="too many places"):
        held((1 << 40,), [Split(0, 2, 0, 1 << 30)])
    with pytest.raises(LimitError, match="too many places"):
        held((1 << 10, 1 << 10), [Split(0, 2, 0, 1 << 9), Split(1, 2, 0, 1 << 9)])
    ((box, _),) = held((1 << 60,), [Split(0, 1 << 40, 5)])
    assert box.offset == (5 << 20,)


def mesh(**state: Tree) -> Opaque:
    """Return a device mesh as a file has it."""
    return object_of(**state)


def object_of(**state: Tree) -> Opaque:
    """Return an object with a state."""
    made: dict[Key, Tree] = dict(state.items())
    return Opaque("x", {"args": (), "state": made})


GRID = Tensor.of(np.arange(4, dtype="i4").reshape(2, 2))
FLAT = Tensor.of(np.arange(4, dtype="i4"))
OLD = mesh(mesh=GRID, _coordinate_on_dim=[1, 0])
MIDDLE = mesh(
    _layout=object_of(shape=(2, 2), stride=(2, 1)), _rank_map=FLAT, _coordinate_on_dim=[1, 0], _rank=2
)
AXES = (object_of(shape=(2,), stride=(2,)), object_of(shape=(2,), stride=(1,)))
NEW = mesh(_layout=object_of(axes=AXES), _flatten_rank_map=(0, 1, 2, 3), _coordinate_on_dim=(1, 0), _rank=2)


@pytest.mark.parametrize("node", [OLD, MIDDLE, NEW])
def test_meshes_of_every_age_tell_rank_and_ranks(node: Opaque) -> None:
    found = mesh_of(node)
    assert (found.shape, found.coordinate, found.rank, found.ranks) == ((2, 2), (1, 0), 2, (0, 1, 2, 3))


def test_a_part_of_a_mesh_knows_its_own_ranks() -> None:
    node = mesh(_layout=object_of(axes=AXES[:1]), _rank_map=FLAT, _coordinate_on_dim=(1,), _rank=3)
    assert mesh_of(node).ranks == (1, 3)


@pytest.mark.parametrize(
    ("node", "error"),
    [
        (None, FormatError),
        (mesh(), FormatError),
        (mesh(_layout=object_of()), FormatError),
        (mesh(_layout=object_of(axes=(1,))), FormatError),
        (mesh(mesh=GRID, _coordinate_on_dim=[2, 0]), FormatError),
        (mesh(mesh=Tensor.of(np.zeros((2, 2)))), FormatError),
        (mesh(_layout=object_of(shape=(1 << 20, 1 << 20), stride=(1, 1))), LimitError),
        (mesh(_layout=object_of(axes=AXES), _rank_map=FLAT, _coordinate_on_dim=(0, 0), _rank=3), FormatError),
    ],
)
def test_meshes_that_are_none_are_refused(node: Tree, error: type[Exception]) -> None:
    with pytest.raises(error):
        mesh_of(node)


@pytest.mark.parametrize(
    ("names", "ranks", "world"),
    [
        (["model_rank0.pt", "model_rank1.pt", "x.json"], {0: "model_rank0.pt", 1: "model_rank1.pt"}, None),
        (["rank_1.pt", "rank_10.pt"], {1: "rank_1.pt", 10: "rank_10.pt"}, None),
        (["shard-0-of-2.pt", "shard-1-of-2.pt"], {0: "shard-0-of-2.pt", 1: "shard-1-of-2.pt"}, 2),
        (
            ["m-00001-of-00002.bin", "m-00002-of-00002.bin"],
            {0: "m-00001-of-00002.bin", 1: "m-00002-of-00002.bin"},
            2,
        ),
        (["mp_rank_00.pt"], {0: "mp_rank_00.pt"}, None),
    ],
)
def test_names_of_ranks_are_told(names: list[str], ranks: dict[int, str], world: int | None) -> None:
    found = rank_names(names)
    assert found is not None
    assert (dict(found.files), found.world) == (ranks, world)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["checkpoint_1.pt", "checkpoint_2.pt"],
        ["a_rank0.pt", "b_rank0.pt"],
        ["rank0.pt", "best.pt"],
        ["rank1.pt", "rank01.pt"],
        ["franks.pt"],
    ],
)
def test_other_names_are_no_ranks(names: list[str]) -> None:
    assert rank_names(names) is None
