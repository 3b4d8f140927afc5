"""A tensor where numpy expects an array: whole, in part, or refused with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.box import Box
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.source import ArraySource, read_box
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

W = Tensor.of(np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "index", [None, True, np.array([0, 1]), [0], "a", 1.0, (0, None), np.bool_(1)], ids=repr
)
def test_only_integers_slices_and_dots_are_indices(index: object) -> None:
    with pytest.raises(TypeError, match=r"integers, slices and \.\.\."):
        W[index]  # type: ignore[index] # that is the point


@pytest.mark.parametrize(
    "index", [np.int64(1), np.array(1), -1, (1, ...), (..., -3), (slice(-2, None),)], ids=repr
)
def test_what_numpy_takes_for_an_integer_is_one(index: object) -> None:
    assert np.array_equal(W[index], W.numpy()[index])  # type: ignore[index, call-overload] # integers all


def test_numpy_functions_take_a_tensor() -> None:
    assert np.asarray(W).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.asarray(W, dtype="f4").dtype == np.float32
    assert float(np.sum(np.asarray(W))) == 15
    assert len(W) == 2
    assert [W[row].tolist() for row in range(len(W))] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TypeError):
        len(Tensor.of(np.ones(())))


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy 1 has no copy=False of that meaning"
)
def test_no_copy_means_no_copy() -> None:
    assert np.shares_memory(np.array(W, copy=False), W.numpy())
    assert not np.shares_memory(np.array(W, copy=True), W.numpy())
    with pytest.raises(ValueError, match="without a copy"):
        np.array(W, dtype="f4", copy=False)


def test_an_array_that_is_read_only_is_not_filled(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.arange(3), "p": np.ones(3, ml_dtypes.int4)}, tmp_path / "c")
    for name, kind in (("w", np.int64), ("p", ml_dtypes.int4)):
        for array in (np.zeros(3, kind), np.zeros(6, kind)[::2]):
            array.flags.writeable = False
            with pytest.raises(ckptfmt.TreeError, match=f"read-only at {name}"):
                ckptfmt.load(tmp_path / "c", into={name: array})


def test_of_tied_tensors_every_given_array_is_filled(tmp_path: Path) -> None:
    weight = np.arange(4.0)
    ckptfmt.save({"a": weight, "b": weight}, tmp_path / "c")
    a, b = np.zeros(4), np.zeros(4)
    with ckptfmt.load(tmp_path / "c", into={"a": a, "b": b}):
        assert a.tolist() == b.tolist() == [0, 1, 2, 3]


class Spy:
    """Canonical bytes that remember the ranges that were asked for."""

    def __init__(self, array: np.ndarray) -> None:
        self._inner = ArraySource(array, dtype("u8"))
        self.ranges: list[tuple[int, int]] = []

    def view(self, _start: int, _stop: int) -> memoryview | None:
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        self.ranges.append((start, start + len(out)))
        self._inner.readinto(start, out)


CHUNK = 4 << 20


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((3, 3 << 20), Box((0, 0), (2, 1))),
        ((3, 3 << 20), Box((1, (3 << 20) - 1), (2, 1))),
        ((5, 1 << 20), Box((3, 5), (2, 7))),
        ((64, 300, 1000), Box((13, 10, 3), (3, 2, 1))),
        ((2, 5 << 20), Box((0, 4 << 20), (2, 3))),
        ((4, 2, 1 << 20), Box((1, 1, 0), (2, 1, 4))),
        ((9 << 20,), Box((4 << 20,), (1,))),
    ],
    ids=str,
)
def test_a_box_touches_only_the_chunks_it_crosses(shape: tuple[int, ...], box: Box) -> None:
    array = np.zeros(shape, np.uint8)
    inside = array[tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))]
    inside[...] = np.arange(1, inside.size + 1).reshape(inside.shape) % 255
    spy = Spy(array)
    assert np.array_equal(read_box(spy, dtype("u8"), shape, box), inside)
    touched = {
        chunk for start, stop in spy.ranges for chunk in range(start // CHUNK, (stop - 1) // CHUNK + 1)
    }
    crossed = np.unique(np.flatnonzero(array) // CHUNK)
    assert touched == set(crossed.tolist())
