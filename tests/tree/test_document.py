"""A tree and its JSON: what is read is what was written, bit for bit, sharing and tags included."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ckptfmt.errors import FormatError, LimitError, TreeError
from ckptfmt.format.digests import node_digest
from ckptfmt.testing.strategies import trees
from ckptfmt.tree.canonical import dumps, loads
from ckptfmt.tree.document import decode_tree, encode_tree
from ckptfmt.tree.nodes import Opaque, Tag, tag_of, tagged
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree

FIXED = settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def table_of(tree: Tree) -> list[Tensor]:
    found: dict[int, Tensor] = {id(tensor): tensor for _, tensor in tensors(tree)}
    return list(found.values())


@FIXED
@given(tree=trees())
def test_a_tree_comes_back_from_its_json(tree: Tree) -> None:
    table = table_of(tree)
    rows = {id(tensor): row for row, tensor in enumerate(table)}
    text = dumps(encode_tree(tree, lambda tensor: rows[id(tensor)]))
    back = decode_tree(loads(text), table)
    assert node_digest(back) == node_digest(tree)
    assert dumps(encode_tree(back, lambda tensor: rows[id(tensor)])) == text


def test_sharing_ties_tags_and_key_order_come_back() -> None:
    weight = Tensor.of(np.zeros(2))
    inner: Tree = {"z": weight, "a": weight}
    tree: Tree = {"one": inner, "two": inner, "own": tagged([1], Tag("some.List", {"x": {"y": None}}))}
    back = decode_tree(loads(dumps(encode_tree(tree, lambda _: 0))), [weight])
    assert isinstance(back, dict)
    one = back["one"]
    assert isinstance(one, dict)
    assert one is back["two"]
    assert list(one) == ["z", "a"]
    assert one["z"] is one["a"] is weight
    assert tag_of(back["own"]) == Tag("some.List", {"x": {"y": None}})


def test_nan_payloads_and_signs_of_zero_come_back() -> None:
    odd = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    back = decode_tree(loads(dumps(encode_tree([odd, -0.0], lambda _: 0))), [])
    assert isinstance(back, list)
    assert [struct.pack("<d", value).hex() for value in back] == ["010000000000f8ff", "0000000000000080"]


@pytest.mark.parametrize(
    ("document", "rule"),
    [
        ({}, "R-020"),
        ([], "R-020"),
        (["nonsense", 1], "R-020"),
        (["tensor", 1], "R-023"),
        (["tensor", -1], "R-023"),
        (["tensor", True], "R-020"),
        (["map", [["a", 1], ["a", 2]]], "R-021"),
        (["map", [[1, 1], [True, 2]]], "R-021"),
        (["map", [[["float", "000000000000f87f"], 1]]], "R-021"),
        (["shared", 0], "R-022"),
        (["list", [["shared", 0]]], "R-022"),
        (["int", "5"], "R-024"),
        (["int", "0x5"], "R-024"),
        (["float", "00"], "R-020"),
        (["float", "000000000000F87F"], "R-020"),
        (["set", [2, 1]], "R-024"),
        (["set", [["tensor", 0]]], "R-021"),
        (["opaque", "cycle", [["up", 1]]], "R-026"),
        (["list", [["opaque", "cycle", [["up", 2]]]]], "R-026"),
        (["tagged", "t", [["a", ["tensor", 0]]], ["list", []]], "R-020"),
        (["tagged", "t", [], 5], "R-020"),
        (["strings", [2], "str", ["a"]], "R-020"),
        (["strings", [0], "bytes", []], "R-024"),
    ],
    ids=str,
)
def test_what_is_no_tree_is_refused_by_its_rule(document: object, rule: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_tree(document, [Tensor.of(np.zeros(1))])  # type: ignore[arg-type] # that is the point
    assert caught.value.rule == rule


def nested(levels: int) -> Tree:
    tree: Tree = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def test_sixty_four_levels_are_kept_and_sixty_five_refused() -> None:
    assert decode_tree(encode_tree(nested(64), lambda _: 0), []) == nested(64)
    with pytest.raises(LimitError):
        encode_tree(nested(65), lambda _: 0)
    document: object = 1
    for _ in range(65):
        document = ["list", [document]]
    with pytest.raises(LimitError):
        decode_tree(document, [])  # type: ignore[arg-type] # a deep list


def test_a_set_with_a_tensor_is_refused() -> None:
    with pytest.raises(TreeError, match="set"):
        encode_tree({Tensor.of(np.zeros(1))}, lambda _: 0)


def test_an_opaque_node_keeps_its_parts() -> None:
    node = Opaque("a.B", {"args": (1, "x"), "state": {"k": b"v"}})
    back = decode_tree(loads(dumps(encode_tree(node, lambda _: 0))), [])
    assert isinstance(back, Opaque)
    assert (back.name, back.parts) == (node.name, node.parts)
