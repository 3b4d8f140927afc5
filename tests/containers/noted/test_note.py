"""The structure note: used when it matches its container exactly, ignored with a finding when not."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, decode_note, tree_of
from ckptfmt.errors import FormatError
from ckptfmt.tree.canonical import dumps, loads
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

W = Entry("w", "F32", (2,), Tensor.of(np.ones(2, "f4")))
RAW = Entry("b", "U8", (4,), Tensor.of(np.arange(4, dtype="u1")))
GOOD: dict = {
    NOTE: [1, 0],
    "entries": [["w", "f32", [2], "F32", [2]], ["b", "bf16", [2, 1], "U8", [4]]],
    "tree": ["map", [["x", ["list", [["tensor", 0], ["tensor", 1], 7]]]]],
}


def test_a_note_that_matches_gives_the_tree() -> None:
    tree = decode_note(dumps(GOOD), [W, RAW])
    assert isinstance(tree, dict)
    items = tree["x"]
    assert isinstance(items, list)
    first, second, number = items
    assert isinstance(second, Tensor)
    assert (second.dtype.name, second.shape, bytes(second.bytes())) == ("bf16", (2, 1), bytes(range(4)))
    assert isinstance(first, Tensor)
    assert number == 7


def test_the_bytes_of_a_note_are_as_the_specification_says() -> None:
    assert dumps(GOOD) == (
        b'{"ckptfmt.tree":[1,0],"entries":[["w","f32",[2],"F32",[2]],["b","bf16",[2,1],"U8",[4]]],'
        b'"tree":["map",[["x",["list",[["tensor",0],["tensor",1],7]]]]]}'
    )


def changed(change: Callable[[dict], object]) -> bytes:
    note = copy.deepcopy(GOOD)
    change(note)
    return dumps(note)


def at(row: int, column: int, value: object) -> Callable[[dict], object]:
    return lambda note: note["entries"][row].__setitem__(column, value)


MISMATCHES: dict[str, bytes] = {
    "no JSON": b"garbage",
    "empty": b"",
    "not canonical": dumps(GOOD).replace(b",", b", "),
    "deep": b"[" * 100_000,
    "another value": b"7",
    "another version": changed(lambda note: note.update({NOTE: [2, 0]})),
    "a member missing": changed(lambda note: note.pop("tree")),
    "a member more": changed(lambda note: note.update(more=1)),
    "rows an object": changed(lambda note: note.update(entries={})),
    "a row missing": changed(lambda note: note["entries"].pop()),
    "a row twice": changed(lambda note: note["entries"].append(note["entries"][0])),
    "a row of a ghost": changed(lambda note: note["entries"].append(["g", "u8", [0], "U8", [0]])),
    "a row too short": changed(lambda note: note["entries"][0].pop()),
    "a row a number": changed(lambda note: note["entries"].__setitem__(0, 1)),
    "a name a number": changed(at(0, 0, 1)),
    "another container type": changed(at(0, 3, "I32")),
    "another container shape": changed(at(0, 4, [1, 2])),
    "a type that the entry has not": changed(at(0, 1, "i32")),
    "a shape that the entry has not": changed(at(0, 2, [1, 2])),
    "an unknown type": changed(at(1, 1, "f9")),
    "a type of another width": changed(at(1, 1, "f32")),
    "a type a number": changed(at(1, 1, 1)),
    "a shape of another size": changed(at(1, 2, [3])),
    "a negative shape": changed(at(1, 2, [-2, -1])),
    "a shape of true": changed(at(1, 2, [2, True])),
    "a shape of 2^60": changed(at(1, 2, [0, 2**53 + 1])),
    "a shape of 65": changed(at(1, 2, [1] * 65)),
    "a width of a gigabyte": changed(at(1, 1, "s1000000000")),
    "a tensor that is not there": changed(lambda note: note.update(tree=["tensor", 2])),
    "a tensor that is not used": changed(lambda note: note.update(tree=["tensor", 0])),
    "a tree that is none": changed(lambda note: note.update(tree={})),
}


def wide() -> bytes:
    """A tree of 30 levels, each of which holds the one below ten times."""
    inner: object = ["list", [["tensor", 0], ["tensor", 1]]]
    for level in range(30):
        inner = ["list", [inner, *([["shared", 30 - level]] * 9)]]
    return changed(lambda note: note.update(tree=inner))


def deep() -> bytes:
    """A list of a hundred lists, each of which holds the one before under forty levels."""
    items: list[object] = [["list", [["tensor", 0], ["tensor", 1]]]]
    for turn in range(100):
        inner: object = ["shared", 1 + turn]
        for _ in range(40):
            inner = ["tuple", [inner]]
        items.append(["list", [inner]])
    return changed(lambda note: note.update(tree=["list", items]))


MISMATCHES |= {"a tree that grows wide": wide(), "a tree that grows deep": deep()}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_note_that_does_not_match_is_ignored_with_a_finding(case: str) -> None:
    note = MISMATCHES[case]
    tree, findings = tree_of([W, RAW], lambda: note, file="f")
    assert tree == {"w": W.node, "b": RAW.node}
    assert [(finding.kind, finding.severity, finding.file) for finding in findings] == [
        ("note-mismatch", Severity.LOSS, "f")
    ]


def test_no_note_is_no_finding() -> None:
    assert tree_of([W], None, file="f") == ({"w": W.node}, ())


def test_a_note_that_knows_less_than_the_container_is_refused() -> None:
    with pytest.raises(FormatError, match="does not know 'extra'"):
        decode_note(dumps(GOOD), [W, RAW, Entry("extra", "U8", (0,), Tensor.of(np.zeros(0, "u1")))])


def test_a_note_is_canonical_json() -> None:
    assert loads(dumps(GOOD)) == GOOD
