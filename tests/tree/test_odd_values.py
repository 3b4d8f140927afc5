"""Values of classes that lie about themselves, and what sets, keys and tags cannot hold."""

from __future__ import annotations

import collections
import enum
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import LimitError, TreeError
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.nodes import Strings, Tag, tag_of, tagged
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path


class Kind(str, enum.Enum):
    WEIGHT = "weight"


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class Number(int):
    def __int__(self) -> int:
        return 98

    def __index__(self) -> int:
        return 97


class Real(float):
    __slots__ = ()

    def __float__(self) -> float:
        return 96.0


class Raw(bytes):
    def __bytes__(self) -> bytes:
        return b"another"


class Alone(str):
    """Equal to nothing but itself."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@pytest.mark.parametrize(
    ("value", "plain"),
    [(Text("a"), "a"), (Number(3), 3), (Real(2.5), 2.5), (Real("-0.0"), -0.0), (Raw(b"x"), b"x")],
)
def test_a_value_of_a_subclass_is_what_it_holds_not_what_it_converts_to(value: object, plain: object) -> None:
    made, _ = as_tree({"v": value, ("k", value): 0})
    assert isinstance(made, dict)
    assert (type(made["v"]), repr(made["v"])) == (type(plain), repr(plain))
    assert repr(list(made)[1]) == repr(("k", plain))


def test_a_key_of_an_enum_of_strings_is_its_string() -> None:
    assert as_tree({Kind.WEIGHT: 1})[0] == {"weight": 1}


def test_keys_that_become_alike_are_refused() -> None:
    with pytest.raises(TreeError, match="alike: in/a"):
        as_tree({"in": {Alone("a"): 1, Alone("a"): 2}})


@pytest.mark.parametrize("depth", [0, 30])
def test_keys_of_tuples_are_as_deep_as_a_reader_takes(depth: int, tmp_path: Path) -> None:
    def nested(levels: int) -> dict:
        key: tuple = ()
        for _ in range(levels - 1):
            key = (key,)
        value: dict = {key: 1}
        for _ in range(depth):
            value = {"d": value}
        return value

    ckptfmt.save(nested(64 - depth), tmp_path / "c")
    ckptfmt.load(tmp_path / "c", verify="full").close()
    with pytest.raises(LimitError):
        ckptfmt.save(nested(65 - depth), tmp_path / "d")


@pytest.mark.parametrize("levels", [64, 65])
@pytest.mark.parametrize("kind", ["map", "list", "tuple", "tag", "set"])
def test_paths_are_as_long_as_a_reader_takes(kind: str, levels: int, tmp_path: Path) -> None:
    value: object = {"map": 5, "list": np.ones(1), "tuple": (), "tag": [], "set": frozenset()}[kind]
    for _ in range(levels):
        if kind == "map":
            value = {"k": value}
        elif kind == "tag":
            value = tagged({}, Tag("c", {"a": value}))  # type: ignore[dict-item] # a tree
        elif kind == "set":
            value = frozenset({value})
        else:
            value = [value] if kind == "list" else (value,)
    if levels == 64:
        ckptfmt.save(value, tmp_path / "c")
        ckptfmt.load(tmp_path / "c", verify="full").close()
        return
    with pytest.raises(LimitError):
        ckptfmt.save(value, tmp_path / "c")


@pytest.mark.parametrize(
    "value",
    [
        {float("nan"), float("nan")},
        {(1, float("nan")), (1, float("nan"))},
        {complex(float("nan"), 0), complex(float("nan"), 0)},
        {Tensor.of(np.ones(2))},
        frozenset({(1, slice)}),
        {Strings},
    ],
    ids=repr,
)
def test_what_a_set_cannot_hold_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(TreeError, match="at deep/0"):
        as_tree({"deep": [value]})


def test_a_set_may_hold_one_nan(tmp_path: Path) -> None:
    ckptfmt.save({float("nan"), 1, "a", (2, None), frozenset({b"x"})}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        assert len(checkpoint.tree) == 5  # type: ignore[arg-type] # a set


@pytest.mark.parametrize(("shape", "values"), [((3,), ("a",)), ((2,), ("a", b"b")), ((1,), (1,))], ids=repr)
def test_strings_that_do_not_fill_their_shape_are_refused_with_their_path(
    shape: tuple[int, ...], values: tuple
) -> None:
    with pytest.raises(TreeError, match="at x"):
        as_tree({"x": Strings(shape, values)})


def test_an_attribute_that_holds_tensors_is_a_loss(tmp_path: Path) -> None:
    shared = [np.arange(3)]
    value = collections.OrderedDict(a=1)
    value.kept, value.array, value.deep = {"version": 1}, np.ones(2), {"x": shared}  # type: ignore[attr-defined]
    receipt = ckptfmt.save({"0": shared, "o": value}, tmp_path / "c")
    lost = [finding for finding in receipt.findings if finding.severity is Severity.LOSS]
    assert [(finding.kind, finding.path) for finding in lost] == [
        ("attribute", "o/array"),
        ("attribute", "o/deep"),
    ]
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        assert tag_of(checkpoint["o"]) == Tag("collections.OrderedDict", {"kept": {"version": 1}})


def test_a_tag_with_a_tensor_has_no_document() -> None:
    node = tagged({}, Tag("c", {"t": Tensor.of(np.ones(2))}))
    with pytest.raises(TreeError, match="tag c holds a tensor"):
        encode_tree(node, lambda _: 0)


class Settings(dict):
    pass


def test_a_class_that_is_not_kept_is_told() -> None:
    made, findings = as_tree({"s": Settings(a=1)})
    assert made == {"s": {"a": 1}}
    assert [(f.kind, f.path, f.severity) for f in findings] == [("class", "s", Severity.INFO)]


@pytest.mark.parametrize(
    "extra",
    [{"a": 2**60}, {1: 2}, {"a": {2: 3}}, {"a": (1, 2)}, {"a": float("inf")}, {"a": "\ud800"}],
    ids=repr,
)
def test_extra_that_is_no_canonical_json_is_refused(extra: dict, tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.OptionError):
        ckptfmt.save({}, tmp_path / "c", extra=extra)


@pytest.mark.parametrize("depth", [511, 512, 100_000])
def test_extra_is_as_deep_as_a_reader_takes(depth: int, tmp_path: Path) -> None:
    value: list = []
    for _ in range(depth - 2):
        value = [value]
    if depth == 511:
        ckptfmt.save({}, tmp_path / "c", extra={"a": value})
        ckptfmt.load(tmp_path / "c").close()
        return
    with pytest.raises(ckptfmt.OptionError):
        ckptfmt.save({}, tmp_path / "c", extra={"a": value})
