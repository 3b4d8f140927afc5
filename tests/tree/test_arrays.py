"""What numpy can hold and a tensor cannot: kept whole as another kind, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import TreeError
from ckptfmt.tree.arrays import numpy_node
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import Composite, Strings, Tag
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path


def parts(array: np.ndarray) -> dict[str, Tensor | Strings]:
    node = numpy_node(array)
    assert isinstance(node, Composite)
    assert all(isinstance(part, Tensor | Strings) for part in node.parts.values())
    return node.parts  # type: ignore[return-value] # checked above


def test_a_mask_is_kept_beside_its_values() -> None:
    array = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]], fill_value=9)
    found = parts(array)
    assert {name: part.numpy().tolist() for name, part in found.items() if isinstance(part, Tensor)} == {
        "values": [[1, 2], [3, 4]],
        "mask": [[False, True], [False, False]],
        "fill_value": 9,
    }
    assert parts(np.ma.array([1.0, 2.0]))["mask"].shape == (2,)  # one that is not there is all False


@pytest.mark.parametrize(
    "make", [lambda a: a.view(np.matrix), np.asfortranarray, lambda a: a.view(np.recarray)]
)
def test_subclasses_of_arrays_are_stored_as_arrays(make: object, tmp_path: Path) -> None:
    array = make(np.arange(6.0).reshape(2, 3))  # type: ignore[operator] # a function
    ckptfmt.save({"w": array}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        assert checkpoint["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]  # type: ignore[union-attr]


def test_a_memory_map_is_read_where_it_lies(tmp_path: Path) -> None:
    np.arange(100, dtype=">i4").tofile(tmp_path / "raw")
    mapped = np.memmap(tmp_path / "raw", ">i4", "r")
    node = numpy_node(mapped)
    assert isinstance(node, Tensor)
    assert np.shares_memory(node.source.array, mapped)  # type: ignore[attr-defined] # an ArraySource
    assert node.numpy().tolist() == list(range(100))


def test_types_of_one_width_in_one_memory_are_not_tied(tmp_path: Path) -> None:
    memory = np.arange(16, dtype=np.uint8)
    names = [name for name in DTYPE_NAMES if dtype(name).numpy.itemsize == 1 and dtype(name).bits == 8]
    state = {name: memory.view(dtype(name).numpy) for name in names}
    state |= {name: memory[:2].view(dtype(name).numpy) for name in ("i4", "u4", "i2", "u2", "f4_e2m1fn")}
    receipt = ckptfmt.save(state, tmp_path / "c")
    assert receipt.tensors == len(state)
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        assert {name: tensor.dtype.name for name, tensor in checkpoint.tensors().items()} == {
            name: name for name in state
        }


def test_byte_orders_in_one_memory_are_not_tied() -> None:
    memory = np.arange(4, dtype="<i2")
    one, other = numpy_node(memory), numpy_node(memory.view(">i2"))
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    assert one.identity != other.identity


def test_structures_are_their_fields(tmp_path: Path) -> None:
    inner = np.dtype([("x", ">i2"), ("s", "U3")])
    array = np.zeros((2, 3), np.dtype([("a", "f4", (2,)), ("b", inner)], align=True))
    array["b"]["x"] = 7
    node = numpy_node(array)
    assert isinstance(node, Composite)
    assert node.parts["a"].shape == (2, 3, 2)  # type: ignore[union-attr] # a tensor
    nested = node.parts["b"]
    assert isinstance(nested, Composite)
    assert nested.parts["x"].numpy().tolist() == [[7] * 3] * 2  # type: ignore[union-attr] # a tensor
    assert isinstance(nested.parts["s"], Strings)
    empty = numpy_node(np.zeros((2, 3), np.dtype([])))
    assert isinstance(empty, Composite)
    assert empty.attributes["shape"] == (2, 3)
    assert ckptfmt.save({"s": array, "e": np.zeros(4, np.dtype([]))}, tmp_path / "c").tensors == 2


@pytest.mark.parametrize("kind", ["M8[D]", ">M8[25s]", "m8[ns]", "m8"])
def test_times_keep_unit_and_count(kind: str) -> None:
    array = np.array([1, -5, np.iinfo("i8").min], "i8").astype(kind)
    node = numpy_node(array[::-1])
    assert isinstance(node, Composite)
    values = node.parts["values"]
    assert isinstance(values, Tensor)
    assert values.numpy().tolist() == [np.iinfo("i8").min, -5, 1]
    unit, count = np.datetime_data(array.dtype)
    assert node.attributes == {"kind": array.dtype.name.partition("[")[0], "unit": f"{count}{unit}"}


def test_void_is_its_bytes() -> None:
    array = np.array([b"abc", b"d"], "V3")[::-1]
    raw = parts(array)["bytes"]
    assert isinstance(raw, Tensor)
    assert raw.numpy().tobytes() == b"d\0\0abc"
    assert raw.shape == (2, 3)


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 has no strings of variable length")
def test_strings_of_variable_length_are_strings() -> None:
    node = numpy_node(np.array([["a", "long" * 9]], np.dtypes.StringDType()))  # type: ignore[attr-defined, unused-ignore]
    assert isinstance(node, Strings)
    assert (node.shape, node.values) == ((1, 2), ("a", "long" * 9))


@pytest.mark.parametrize("array", [np.array(["\ud800"]), np.array(["a", "\ud800"], object)], ids=["U", "O"])
def test_strings_that_are_not_unicode_are_refused_with_their_path(array: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="not valid Unicode at deep/0"):
        ckptfmt.save({"deep": [array]}, tmp_path / "c")
    fields = np.zeros(1, [("f", "U3")])
    fields["f"] = "\ud800"
    with pytest.raises(TreeError, match="at x"):
        ckptfmt.save({"x": fields}, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_bytes_of_bool_are_kept_as_they_are(tmp_path: Path) -> None:
    array = np.array([0, 2, 255, 1], np.uint8).view("?")
    state = {"c": array, "r": array[::-1], "s": array[::2]}
    ckptfmt.save(state, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        found = {name: bytes(tensor.bytes()) for name, tensor in checkpoint.tensors().items()}
    assert found == {"c": b"\0\2\xff\1", "r": b"\1\xff\2\0", "s": b"\0\xff"}


@pytest.mark.parametrize(
    ("value", "shape", "tagged"),
    [
        (np.float32(1), (), True),
        (np.bool_(1), (), True),
        (ml_dtypes.bfloat16(2), (), True),
        (np.array(1.0), (), False),
    ],
    ids=repr,
)
def test_scalars_are_told_from_arrays_without_dimensions(value: object, shape: tuple, tagged: bool) -> None:  # noqa: FBT001
    node = numpy_node(value)  # type: ignore[arg-type] # arrays and scalars
    assert isinstance(node, Tensor)
    assert (node.shape, node.tag) == (shape, Tag("numpy.scalar") if tagged else None)


def test_numpys_strings_are_plain_ones() -> None:
    assert [type(numpy_node(value)) for value in (np.str_("a"), np.bytes_(b"a"))] == [str, bytes]
