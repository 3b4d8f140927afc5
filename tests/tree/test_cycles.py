"""Containers inside themselves: what a path shows depends on the path alone, and no knot takes long."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptfmt
from ckptfmt.errors import LimitError, TreeError
from ckptfmt.format.digests import node_digest
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.nodes import CYCLE, Opaque, Tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIXED = settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

Edges = list[list[int]]


def knot(edges: Edges, order: int) -> dict:
    """Return containers that hold each other, their keys in an order that a number chooses."""
    nodes: list[dict] = [{} for _ in edges]
    for node, targets in zip(nodes, edges, strict=True):
        keys = list(enumerate(targets))
        random.Random(order).shuffle(keys)  # noqa: S311 - any order will do
        node |= {f"k{key}": nodes[target] for key, target in keys}
    return nodes[0]


def expanded(value: dict, around: tuple[int, ...] = ()) -> Tree:
    """Follow every path to its end, remembering nothing: what capturing must give."""
    if id(value) in around:
        return Opaque(CYCLE, {"up": len(around) - around.index(id(value))})
    return {key: expanded(child, (*around, id(value))) for key, child in value.items()}


def graphs() -> st.SearchStrategy[Edges]:
    count = 5
    return st.lists(st.lists(st.integers(0, count - 1), max_size=3), min_size=count, max_size=count)


@FIXED
@given(edges=graphs(), order=st.integers(0, 3))
def test_what_a_path_shows_depends_on_the_path_alone(edges: Edges, order: int) -> None:
    value = knot(edges, order)
    assert node_digest(as_tree(value)[0]) == node_digest(expanded(value))


@settings(FIXED, max_examples=25)
@given(edges=graphs())
def test_a_knot_is_saved_loaded_and_saved_again_with_one_root(
    edges: Edges, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("knot")
    one = ckptfmt.save(knot(edges, 0), place / "one")
    with ckptfmt.load(place / "one", verify="full") as checkpoint:
        two = ckptfmt.save(checkpoint, place / "two")
    assert one.root == two.root
    assert (place / "one" / "manifest.json").read_bytes() == (place / "two" / "manifest.json").read_bytes()


def back_to_the_root() -> object:
    root: list = []
    inner: list = [root]
    for _ in range(40):
        inner = [root, inner, inner]
    root.append(inner)
    return root


def back_to_each() -> object:
    root: list = []
    inner: list = [root]
    for _ in range(40):
        outer: list = [root]
        outer += [outer, inner, inner]
        inner = outer
    root.append(inner)
    return root


def shared_lists() -> object:
    inner: object = []
    for _ in range(64):
        inner = [inner, inner]
    return inner


def shared_tuples_of_one_list() -> object:
    inner: object = [1]
    for _ in range(60):
        inner = (inner, inner)
    return inner


@pytest.mark.timeout(30)  # else it would be minutes, or for ever
@pytest.mark.parametrize("make", [back_to_the_root, back_to_each, shared_lists, shared_tuples_of_one_list])
def test_what_expands_without_end_is_refused_at_once(make: Callable[[], object], tmp_path: Path) -> None:
    value = make()
    with pytest.raises(LimitError):
        ckptfmt.save(value, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "parts", [{"up": 2}, {"up": 0}, {"up": True}, {"up": 1, "x": 2}, {}, {"up": "1"}], ids=repr
)
def test_a_cycle_that_leads_nowhere_is_refused_with_its_path(parts: dict, tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="leads out of the tree at back"):
        ckptfmt.save({"back": Opaque(CYCLE, parts)}, tmp_path / "c")


def test_a_part_that_refers_to_what_is_around_it_cannot_be_saved_alone(tmp_path: Path) -> None:
    root: dict = {}
    root["part"] = {"back": root}
    ckptfmt.save(root, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint, pytest.raises(TreeError, match="leads out of the tree"):
        ckptfmt.save(checkpoint["part"], tmp_path / "part")
