"""Tensors joined from pieces: against numpy, for every way of cutting; holes, overlaps and replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.testing.strategies import boxes
from ckptfmt.tree.box import Box
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.pieces import AgreeingSource, JoinedSource
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

FIXED = settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
F32 = dtype("f32")


def numbered(shape: tuple[int, ...], name: str = "f32") -> np.ndarray:
    """Return an array whose elements differ, as far as its type allows."""
    kind = dtype(name).numpy
    return (np.arange(np.prod(shape, dtype=int)) % 16).astype(np.uint8).astype(kind).reshape(shape)


def piece(whole: np.ndarray, *ranges: tuple[int, int]) -> tuple[Box, Tensor]:
    """Return a box of an array with what lies in it."""
    box = Box(tuple(start for start, _ in ranges), tuple(stop - start for start, stop in ranges))
    return box, Tensor.of(whole[tuple(slice(*each) for each in ranges)].copy())


def joined(whole: np.ndarray, pieces: list[tuple[Box, Tensor]]) -> Tensor:
    """Return the tensor that pieces of an array make."""
    kind = Tensor.of(whole).dtype
    return Tensor(kind, whole.shape, JoinedSource(kind, whole.shape, pieces))


@st.composite
def cuttings(draw: st.DrawFn) -> tuple[np.ndarray, list[tuple[Box, Tensor]]]:
    """Draw an array and boxes that cover it: each is cut in two, again and again, anywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=4)))
    whole = numbered(shape, draw(st.sampled_from(["f32", "u8", "bf16", "u4", "i2", "c128"])))
    found = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        box = found.pop(draw(st.integers(0, len(found) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, box.shape[axis]))
        shift = tuple(cut if at == axis else 0 for at in range(len(shape)))
        first = tuple(cut if at == axis else length for at, length in enumerate(box.shape))
        second = tuple(length - step for length, step in zip(box.shape, shift, strict=True))
        found += [
            Box(box.offset, first),
            Box(tuple(at + step for at, step in zip(box.offset, shift, strict=True)), second),
        ]
    pieces = [
        piece(whole, *((at, at + length) for at, length in zip(box.offset, box.shape, strict=True)))
        for box in draw(st.permutations(found))
    ]
    return whole, pieces


@FIXED
@given(cuttings(), st.data())
def test_any_cutting_gives_the_whole_and_any_range_and_box_of_it(
    cutting: tuple[np.ndarray, list[tuple[Box, Tensor]]], data: st.DataObject
) -> None:
    whole, pieces = cutting
    tensor = joined(whole, pieces)
    expected = bytes(Tensor.of(whole).bytes())
    assert bytes(tensor.bytes()) == expected
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    out = bytearray(stop - start)
    tensor.source.readinto(start, memoryview(out))
    assert out == expected[start:stop]
    box = data.draw(boxes(whole.shape))
    part = whole[tuple(slice(at, at + length) for at, length in zip(box.offset, box.shape, strict=True))]
    assert Tensor.of(tensor.read(box)).bytes() == Tensor.of(part).bytes()


def test_reading_more_than_a_slab_gives_the_same_bytes() -> None:
    whole = np.arange(3 << 20, dtype=np.uint32).reshape(1536, 2048)
    tensor = joined(whole, [piece(whole, (0, 1536), (0, 700)), piece(whole, (0, 1536), (700, 2048))])
    assert tensor.numpy().tobytes() == whole.tobytes()


def test_a_range_within_one_piece_is_a_view_of_it() -> None:
    whole = numbered((8, 3))
    tensor = joined(whole, [piece(whole, (0, 4), (0, 3)), piece(whole, (4, 8), (0, 3))])
    found = tensor.source.view(48, 96)
    assert found is not None
    assert bytes(found) == whole[4:].tobytes()
    assert tensor.source.view(44, 52) is None


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_a_tensor_without_elements_needs_no_piece(shape: tuple[int, ...]) -> None:
    assert Tensor(F32, shape, JoinedSource(F32, shape, [])).numpy().shape == shape


def test_empty_pieces_are_of_no_account() -> None:
    whole = numbered((3,))
    tensor = joined(whole, [piece(whole, (0, 3)), piece(whole, (3, 3)), piece(whole, (1, 1))])
    assert tensor.numpy().tolist() == whole.tolist()


def test_missing_pieces_are_counted_and_the_first_place_is_named() -> None:
    whole = numbered((4, 4))
    pieces = [piece(whole, (0, 2), (0, 4)), piece(whole, (2, 4), (0, 2)), piece(whole, (3, 4), (2, 4))]
    with pytest.raises(FormatError, match=r"2 of 16 elements lie in none, the first at \[2, 2\]"):
        joined(whole, pieces)
    with pytest.raises(FormatError, match=r"16 of 16 elements lie in none, the first at \[0, 0\]"):
        joined(whole, [])


@pytest.mark.parametrize("second", [((1, 3), (0, 4)), ((0, 4), (3, 4)), ((0, 4), (0, 4)), ((1, 2), (1, 2))])
def test_pieces_that_overlap_are_refused(second: tuple[tuple[int, int], ...]) -> None:
    whole = numbered((4, 4))
    with pytest.raises(FormatError, match="overlap"):
        joined(whole, [piece(whole, (0, 2), (0, 4)), piece(whole, *second), piece(whole, (2, 4), (0, 4))])


def test_pieces_that_do_not_fit_are_refused() -> None:
    whole = numbered((4,))
    box, tensor = piece(whole, (0, 4))
    for wrong, words in (
        ((Box((1,), (4,)), tensor), "does not lie inside"),
        ((Box((-1,), (4,)), tensor), "does not lie inside"),
        ((Box((0, 0), (4, 1)), tensor), "does not lie inside"),
        ((Box((0,), (3,)), tensor), "has the shape"),
        ((box, Tensor.of(whole.astype("f8"))), "is of f64, the whole of f32"),
    ):
        with pytest.raises(FormatError, match=words):
            JoinedSource(F32, (4,), [wrong])


def test_replicas_must_be_equal_when_they_are_read() -> None:
    whole = numbered((6,))
    other = whole.copy()
    other[5] = -1
    assert joined(whole, [piece(whole, (0, 6)), piece(whole, (0, 6))]).numpy().tolist() == whole.tolist()
    tensor = joined(whole, [piece(whole, (0, 6)), piece(other, (0, 6))])
    assert tensor[:5].tolist() == whole[:5].tolist()
    with pytest.raises(FormatError, match="replicas differ: number 2 has other bytes"):
        tensor.numpy()


def test_replicas_are_called_by_their_names() -> None:
    sources = [BytesSource(memoryview(data)) for data in (b"abcd", b"abcd", b"abcx")]
    source = AgreeingSource(sources, ("rank 0", "rank 1", "rank 2"))
    with pytest.raises(FormatError, match="rank 2 has other bytes than rank 0"):
        source.readinto(0, memoryview(bytearray(4)))


def test_thousands_of_pieces_are_joined_in_a_grid_and_in_a_row() -> None:
    whole = numbered((4096,), "u8")
    row = [piece(whole, (at, at + 1)) for at in range(4096)]
    assert joined(whole, row).numpy().tobytes() == whole.tobytes()
    grid = whole.reshape(64, 64)
    cells = [piece(grid, (i, i + 1), (j, j + 1)) for i in range(64) for j in range(64)]
    assert joined(grid, cells).numpy().tobytes() == grid.tobytes()


def test_a_layout_that_would_take_forever_to_compare_is_refused() -> None:
    count = 20_000
    wide = np.zeros((count, 1), np.uint8)
    pieces = [(Box((at, 0), (count - at, 1)), Tensor.of(wide[at:])) for at in range(count)]
    with pytest.raises(LimitError, match="compared"):
        JoinedSource(dtype("u8"), (count, 1), pieces)
