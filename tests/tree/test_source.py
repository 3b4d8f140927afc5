"""Canonical bytes of any array, any range of them, and boxes: against numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfmt.errors import TreeError
from ckptfmt.testing.strategies import arrays, boxes, dtypes, shapes
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.source import BytesSource, ZeroPadded, pack, read_box, unpack
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.dtypes import DType

FIXED = settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def canonical(array: np.ndarray, kind: DType) -> bytes:
    """Return canonical bytes, element by element."""
    if not kind.packed:
        data: bytes = np.ascontiguousarray(array).astype(kind.numpy).tobytes()
        return data
    codes = np.ascontiguousarray(array).view(np.uint8).reshape(-1).tolist()
    value = sum((code & ((1 << kind.bits) - 1)) << (i * kind.bits) for i, code in enumerate(codes))
    return int(value).to_bytes(kind.nbytes(array.shape), "little")


def variants(array: np.ndarray) -> list[np.ndarray]:
    """Return arrays of equal elements and other strides or byte order."""
    made = [array, np.asfortranarray(array), array[::-1].copy()[::-1] if array.ndim else array]
    if array.dtype.kind in "iufc" and array.dtype.itemsize > 1:
        made.append(array.astype(array.dtype.newbyteorder(">")))
    if array.ndim:
        made.append(np.repeat(array, 2, axis=array.ndim - 1)[..., ::2])
    return made


@FIXED
@given(data=st.data())
def test_any_range_of_any_array_is_canonical(data: st.DataObject) -> None:
    kind, shape = data.draw(dtypes()), data.draw(shapes())
    array = data.draw(arrays(kind, shape))
    expected = canonical(array, kind)
    for variant in variants(array):
        tensor = Tensor.of(variant)
        assert bytes(tensor.bytes()) == expected
        start = data.draw(st.integers(0, len(expected)))
        stop = data.draw(st.integers(start, len(expected)))
        out = bytearray(stop - start)
        if out:
            tensor.source.readinto(start, memoryview(out))
        assert out == expected[start:stop]


@FIXED
@given(data=st.data())
def test_a_box_is_what_numpy_slices(data: st.DataObject) -> None:
    kind, shape = data.draw(dtypes()), data.draw(shapes())
    array = data.draw(arrays(kind, shape))
    box = data.draw(boxes(shape))
    slices = [slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True)]
    index: tuple[Any, ...] = (*slices, ...)
    source = BytesSource(memoryview(bytearray(canonical(array, kind))))
    found = read_box(source, kind, shape, box)
    assert found.dtype == kind.numpy
    assert found.shape == box.shape
    assert found.tobytes() == np.ascontiguousarray(array[index]).tobytes()


def test_slabs_of_large_boxes_are_put_together() -> None:
    array = np.arange(3 * 1500 * 1000, dtype="f4").reshape(3, 1500, 1000)
    tensor = Tensor.of(array)
    assert np.array_equal(tensor[1:3, 5:1400, 10:990], array[1:3, 5:1400, 10:990])
    assert np.array_equal(tensor[..., 7], array[..., 7])


@pytest.mark.parametrize("name", ["i4", "u4", "i2", "u2", "f4_e2m1fn"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9])
def test_packed_elements_lie_lowest_bits_first(name: str, count: int) -> None:
    kind = dtype(name)
    codes = (np.arange(count) * 7 % (1 << kind.bits)).astype(np.uint8)
    packed = pack(codes, kind.bits)
    assert packed.size == kind.nbytes((count,))
    for i, code in enumerate(codes.tolist()):
        bit = i * kind.bits
        assert packed[bit // 8] >> (bit % 8) & ((1 << kind.bits) - 1) == code
    assert (unpack(packed, count, kind).view(np.uint8) & ((1 << kind.bits) - 1)).tolist() == codes.tolist()


def test_an_even_element_of_four_bits_is_the_low_nibble() -> None:
    tensor = Tensor.of(np.array([1, 2, -1], dtype=ml_dtypes.int4))
    assert bytes(tensor.bytes()) == b"\x21\x0f"


def test_padding_of_a_foreign_source_is_read_as_zero() -> None:
    tensor = Tensor(dtype("i4"), (3,), BytesSource(memoryview(bytearray(b"\x21\xff"))))
    assert isinstance(tensor.source, ZeroPadded)
    assert bytes(tensor.bytes()) == b"\x21\x0f"
    assert tensor.numpy().astype(int).tolist() == [1, 2, -1]


@pytest.mark.parametrize("name", [*DTYPE_NAMES, "s3"])
def test_filling_an_array_changes_no_bit_and_casts_nothing(name: str) -> None:
    kind = dtype(name)
    source = np.zeros((3, 4), kind.numpy)
    source.view(np.uint8)[:] = 1
    tensor = Tensor.of(source)
    for out in (
        np.empty((3, 4), kind.numpy),
        np.empty((4, 3), kind.numpy).T,
        np.empty((3, 8), kind.numpy)[:, ::2],
    ):
        tensor.into(out)
        assert np.ascontiguousarray(out).tobytes() == source.tobytes()
    other = np.empty((3, 4), "f4" if name != "f32" else "f8")
    with pytest.raises(TreeError, match="cast"):
        tensor.into(other)
    with pytest.raises(TreeError, match="broadcast"):
        tensor.into(np.empty((2, 3, 4), kind.numpy))


@pytest.mark.parametrize("index", [(0, 0, 0), (5,), (slice(None, None, 2),), (..., ...)], ids=str)
def test_indices_that_are_no_box_are_refused(index: tuple) -> None:
    with pytest.raises((IndexError, ValueError)):
        Tensor.of(np.zeros((2, 3)))[index]
