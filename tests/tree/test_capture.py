"""What becomes of Python values: nothing is lost without a word, and what cannot be kept is named."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import enum
from pathlib import PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.errors import LimitError, TreeError
from ckptfmt.format.digests import node_digest
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, tag_of
from ckptfmt.tree.tensor import Tensor

Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - the old kind is what is tested


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


def tree_of(value: object) -> Any:  # noqa: ANN401 - a node of any kind
    return as_tree(value)[0]


@pytest.mark.parametrize(
    ("value", "plain", "tag"),
    [
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}, "collections.OrderedDict"),
        (collections.Counter("aab"), {"a": 2, "b": 1}, "collections.Counter"),
        (collections.defaultdict(int, a=1), {"a": 1}, "collections.defaultdict"),
        (bytearray(b"ab"), b"ab", "builtins.bytearray"),
        (Point(1, 2), (1, 2), f"{__name__}.Point"),
    ],
    ids=repr,
)
def test_special_containers_are_plain_ones_with_a_tag(value: object, plain: object, tag: str) -> None:
    made = tree_of(value)
    assert made == plain
    found = tag_of(made)
    assert found is not None
    assert found.name == tag
    assert node_digest(made) == node_digest(plain)  # type: ignore[arg-type] # trees both


def test_attributes_of_an_ordered_dict_are_kept() -> None:
    value = collections.OrderedDict(a=1)
    value._metadata = {"": {"version": 2}}  # type: ignore[attr-defined] # as PyTorch does
    assert tag_of(tree_of(value)) == Tag("collections.OrderedDict", {"_metadata": {"": {"version": 2}}})


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), ml_dtypes.bfloat16),
        np.zeros(3, ml_dtypes.int4),
        np.zeros(3, ml_dtypes.float8_e4m3fn),
        np.zeros(3, "S5"),
        np.zeros((), "?"),
    ],
    ids=lambda a: str(a.dtype),
)
def test_arrays_of_known_types_are_tensors(array: np.ndarray) -> None:
    made = tree_of(array)
    assert isinstance(made, Tensor)
    assert made.shape == array.shape
    assert made.dtype.numpy == array.dtype


def test_numpy_scalars_are_tensors_without_dimensions() -> None:
    made = tree_of(np.float32(1.5))
    assert isinstance(made, Tensor)
    assert (made.shape, made.dtype.name, tag_of(made)) == ((), "f32", Tag("numpy.scalar"))
    assert made.numpy() == np.float32(1.5)


def test_arrays_of_strings_are_strings() -> None:
    for array in (np.array([["a", "bc"]]), np.array([["a", "bc"]], object)):
        made = tree_of(array)
        assert isinstance(made, Strings)
        assert (made.shape, made.values) == ((1, 2), ("a", "bc"))
    raw = tree_of(np.array([b"a\x00b", b""], object))
    assert isinstance(raw, Strings)
    assert raw.values == (b"a\x00b", b"")


def test_structures_and_times_are_composites() -> None:
    made = tree_of(np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]))
    assert isinstance(made, Composite)
    assert made.name == "numpy.structured"
    assert isinstance(made.parts["y"], Tensor)
    times = tree_of(np.array(["2020-01-01"], "M8[D]"))
    assert isinstance(times, Composite)
    values = times.parts["values"]
    assert isinstance(values, Tensor)
    assert values.numpy().tolist() == [18262]
    assert times.attributes == {"kind": "datetime64", "unit": "1D"}


def test_subclasses_of_plain_values_are_plain() -> None:
    made = tree_of({Text("k"): Text("v")})
    assert made == {"k": "v"}
    assert isinstance(made, dict)
    assert type(made["k"]) is str


@pytest.mark.parametrize(
    "value",
    [
        argparse.Namespace(lr=1),
        PurePosixPath("a/b"),
        Colour.RED,
        dt.date(2020, 1, 1),
        slice(1, 2),
        int,
        len,
    ],
    ids=repr,
)
def test_foreign_objects_are_data_and_told(value: object) -> None:
    made, findings = as_tree({"x": value})
    assert isinstance(made, dict)
    assert isinstance(made["x"], Opaque)
    assert [(finding.kind, finding.path) for finding in findings] == [("opaque", "x")]


@pytest.mark.parametrize(
    "value",
    [
        (i for i in (1, 2)),
        np.array([object()]),
        np.longdouble(1) if np.dtype(np.longdouble).itemsize > 8 else np.array([object()]),
        {float("nan"): 1},
        {"a\ud800": 1},
        "\ud800",
        {object(): 1},
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_kept_is_named_with_its_path(value: object) -> None:
    with pytest.raises(TreeError, match="deep/0"):
        as_tree({"deep": [value]})


def test_shared_containers_stay_shared_and_ties_stay_tied() -> None:
    array = np.arange(4.0)
    inner = [array]
    made = tree_of({"a": inner, "b": inner, "c": array, "view": array[:], "other": array[1:]})
    assert isinstance(made, dict)
    assert made["a"] is made["b"]
    assert made["a"][0] is made["c"]
    assert made["view"].identity == made["c"].identity != made["other"].identity


def test_empty_arrays_are_never_tied() -> None:
    made = tree_of([np.zeros((2, 0)), np.zeros((2, 0))])
    assert isinstance(made, list)
    assert all(isinstance(tensor, Tensor) and tensor.identity is None for tensor in made)


def test_a_container_inside_itself_is_a_cycle() -> None:
    value: dict = {"list": []}
    value["list"].append(value)
    made = tree_of(value)
    assert isinstance(made, dict)
    inner = made["list"][0]
    assert isinstance(inner, Opaque)
    assert (inner.name, inner.parts) == (CYCLE, {"up": 2})


def test_what_a_cycle_means_does_not_depend_on_the_order_of_keys() -> None:
    def twisted(order: str) -> object:
        inner: dict = {}
        outer = dict.fromkeys(order, inner)
        inner["back"] = outer
        return {"deep": {"er": outer}, "inner": inner}

    assert node_digest(tree_of(twisted("ab"))) == node_digest(tree_of(twisted("ba")))


def test_endless_sharing_and_nesting_end_soon() -> None:
    bomb: object = []
    for _ in range(200):
        bomb = (bomb, bomb)
    with pytest.raises(LimitError):
        as_tree(bomb)
    deep: object = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(LimitError):
        as_tree(deep)
