"""Two trees side by side: each kind of difference has its word, and equal means equal roots."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptfmt
from ckptfmt.format.digests import node_digest
from ckptfmt.testing.strategies import arrays, trees
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import Composite, Opaque, Strings
from ckptfmt.tree.tensor import Tensor
from ckptfmt.verify import comparing
from ckptfmt.verify.comparing import compare

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

FIXED = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
PIECE = 4 << 20


def told(a: object, b: object) -> list[tuple[str, str]]:
    return [(entry.path, entry.status) for entry in compare(a, b).different]


F4 = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"x": 1}, {"x": True}, [("x", "kind")]),
        ({"x": 1}, {"x": 1.0}, [("x", "kind")]),
        ({"x": [1]}, {"x": (1,)}, [("x", "kind")]),
        ({"x": {1}}, {"x": frozenset({1})}, [("x", "kind")]),
        ({"x": F4}, {"x": [0.0]}, [("x", "kind")]),
        ({"x": None}, {"x": {}}, [("x", "kind")]),
        ({"x": F4}, {"x": F4.astype("f8")}, [("x", "type")]),
        ({"x": F4.view("i4")}, {"x": F4}, [("x", "type")]),
        ({"x": F4}, {"x": F4.T}, [("x", "shape")]),
        ({"x": F4}, {"x": F4.reshape(6)}, [("x", "shape")]),
        ({"x": F4}, {"x": F4 + 1}, [("x", "bits")]),
        ({"x": np.zeros((0, 3))}, {"x": np.zeros((3, 0))}, [("x", "shape")]),
        ({"x": 1}, {"x": 2}, [("x", "value")]),
        ({"x": 0.0}, {"x": -0.0}, [("x", "value")]),
        ({"x": "a"}, {"x": "b"}, [("x", "value")]),
        ({"x": {1, 2}}, {"x": {1, 3}}, [("x", "value")]),
        ({"x": Strings((1,), ("a",))}, {"x": Strings((1, 1), ("a",))}, [("x", "value")]),
        ({"x": Opaque("m.A", {})}, {"x": Opaque("m.B", {})}, [("x", "value")]),
        (
            {"x": Composite("a", {}, {"p": Tensor.of(F4)})},
            {"x": Composite("b", {}, {"p": Tensor.of(F4)})},
            [("x", "value")],
        ),
        (
            {"x": Composite("a", {}, {"p": Tensor.of(F4)})},
            {"x": Composite("a", {}, {})},
            [("x/parts/p", "only-a")],
        ),
        ({"x": {}}, {"x": {"k": 1}}, [("x/k", "only-b")]),
        ({"x": 1, "y": 2}, {"x": 1}, [("y", "only-a")]),
        ({"x": 1}, {"x": 1, "z": {"deep": 1}}, [("z", "only-b")]),
        ([1, 2], [1, 2, 3], [("2", "only-b")]),
        ({1: "a"}, {"1": "a"}, [("1", "only-a"), ('"1"', "only-b")]),
        ({True: 1}, {1: 1}, [("bool:01", "only-a"), ("1", "only-b")]),
        (1, 1, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    ],
    ids=repr,
)
def test_each_difference_has_its_word(a: object, b: object, expected: list[tuple[str, str]]) -> None:
    assert told(a, b) == expected


@FIXED
@given(tree=trees(), other=trees())
def test_equal_is_equal_roots(tree: Tree, other: Tree) -> None:
    assert compare([tree], [tree]).equal  # a bare string would be a path
    assert compare([tree], [other]).equal == (node_digest(tree) == node_digest(other))


def test_class_tags_and_ties_are_no_difference() -> None:
    one = np.ones(3)
    assert compare(OrderedDict(a=one, b=one), {"b": one.copy(), "a": one}).equal


@pytest.mark.parametrize(
    "index", [0, 1, PIECE // 4 - 1, PIECE // 4, PIECE // 4 + 1, 2 * (PIECE // 4) + 5, 2_999_999]
)
def test_the_first_difference_is_found_across_pieces(index: int, tmp_path: Path) -> None:
    array = np.zeros((3, 1_000_000), "f4")
    other = array.copy()
    other.reshape(-1)[index] = 1
    other.reshape(-1)[-1] = 2
    ckptfmt.save({"w": array}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        for entry in compare(array, other).entries + compare(checkpoint["w"], other).entries:
            assert entry.status == "bits"
            assert entry.first == divmod(index, 1_000_000)
            assert entry.difference is not None
            assert entry.difference.elements == 3_000_000
            assert entry.difference.count == (1 if index == 2_999_999 else 2)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(5, ml_dtypes.int4),
        np.zeros(5, ml_dtypes.uint2),
        np.zeros(5, ml_dtypes.float4_e2m1fn),
        np.zeros(5, "S3"),
        np.zeros(5, "?"),
        np.zeros(5, "c16"),
        np.zeros(5, ">i4"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_one_element_is_found_in_every_type(array: np.ndarray) -> None:
    other = array.copy()
    other[3] = 1
    (entry,) = compare(array, other).entries
    assert (entry.status, entry.first) == ("bits", (3,))


@FIXED
@given(data=st.data(), name=st.sampled_from([*DTYPE_NAMES, "s3"]))
def test_pieces_tell_what_a_loop_tells(data: st.DataObject, name: str) -> None:
    kind = dtype(name)
    shape = data.draw(st.sampled_from([(37,), (5, 9), (3, 4, 4), ()]))
    a, b = (data.draw(arrays(kind, shape)) for _ in range(2))
    b = np.where(data.draw(arrays(dtype("bool"), shape)), a, b).astype(kind.numpy)
    with mock.patch.object(comparing, "_PIECE", 16):
        (entry,) = compare(a, b).entries
    one, other = (Tensor.of(array)[...] for array in (a, b))
    unequal = [i for i in np.ndindex(shape) if one[i].tobytes() != other[i].tobytes()]
    assert entry.status == ("bits" if unequal else "equal")
    assert entry.first == (unequal[0] if unequal else None)
    if unequal:
        assert entry.difference is not None
        assert (entry.difference.elements, entry.difference.count) == (a.size, len(unequal))


@pytest.mark.parametrize("codec", ["raw", "planes+zstd"])
def test_a_checkpoint_a_file_and_a_live_state_are_compared_alike(codec: str, tmp_path: Path) -> None:
    state = {"w": np.arange(20, dtype="f4").reshape(4, 5), "b": np.ones(3, "i8")}
    other = {"w": state["w"].copy(), "b": state["b"]}
    other["w"][2, 3] = np.nextafter(other["w"][2, 3], np.float32(100))
    places: dict[str, tuple[object, object]] = {"live": (state, other)}
    for name, tree in (("a", state), ("b", other)):
        ckptfmt.save(tree, tmp_path / name, codec=codec)
        np.savez(tmp_path / f"{name}.npz", **tree)
    places["native"] = (tmp_path / "a", tmp_path / "b")
    places["foreign"] = (tmp_path / "a.npz", str(tmp_path / "b.npz"))
    places["mixed"] = (tmp_path / "a", tmp_path / "b.npz")
    places["live and file"] = (state, tmp_path / "b.npz")
    for one, two in places.values():
        assert compare(one, one).equal
        (entry,) = compare(one, two).different
        assert (entry.path, entry.status, entry.first) == ("w", "bits", (2, 3))
        assert entry.difference is not None
        assert entry.difference.max_ulp == 1


def test_claimed_digests_spare_the_reading(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(10)}, tmp_path / "one")
    ckptfmt.save({"w": np.ones(10)}, tmp_path / "two", codec="zstd")
    with ckptfmt.load(tmp_path / "one") as one, ckptfmt.load(tmp_path / "two") as two:
        one.close()
        two.close()  # nothing can be read any more
        assert compare(one, two).equal


def test_damage_is_an_error_not_a_difference(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(10)}, tmp_path / "c")
    shard = tmp_path / "c" / "data-00001-of-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with ckptfmt.load(tmp_path / "c") as checkpoint, pytest.raises(ckptfmt.ChecksumError):
        compare(checkpoint, {"w": np.zeros(10)})


def test_counts_and_progress_cover_every_leaf() -> None:
    seen: list[int] = []
    found = compare(
        {"a": 1, "b": [1, 2], "c": F4}, {"a": 2, "b": [1, 2], "c": F4}, progress=lambda n, _: seen.append(n)
    )
    assert (found.count("equal"), found.count("value"), len(found.entries)) == (3, 1, 4)
    assert seen == [1, 2, 3, 4]
