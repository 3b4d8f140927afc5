"""Keys and paths: one encoding each, and no two that look alike."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfmt.errors import TreeError
from ckptfmt.testing.strategies import keys
from ckptfmt.tree.paths import display, dotted, encode_key, encode_path, glob_matcher, int_payload

FIXED = settings(max_examples=300, derandomize=True, deadline=None)


@FIXED
@given(one=st.lists(keys(), max_size=3).map(tuple), other=st.lists(keys(), max_size=3).map(tuple))
def test_two_paths_never_look_alike(one: tuple, other: tuple) -> None:
    assert (display(one) == display(other)) == (encode_path(one) == encode_path(other))


@pytest.mark.parametrize(
    ("path", "shown", "name"),
    [
        (("model", 0, "w"), "model/0/w", "model.0.w"),
        (("0",), '"0"', "0"),
        ((0,), "0", "0"),
        (("a/b",), '"a/b"', "a/b"),
        (("a.b",), "a.b", "a.b"),
        (("",), '""', ""),
        ((True,), "bool:01", "bool:01"),
        ((None,), "none:", "none:"),
        (("none:",), '"none:"', "none:"),
        ((0.5,), "float:000000000000e03f", "float:000000000000e03f"),
        ((b"\x01",), "bytes:01", "bytes:01"),
        (("é\n",), '"\\u00e9\\n"', "é\n"),
        ((-3,), "-3", "-3"),
        ((), "", ""),
    ],
)
def test_paths_are_shown_and_named_as_the_specification_says(path: tuple, shown: str, name: str) -> None:
    assert display(path) == shown
    assert dotted(path) == name


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        ("w", "0300000000000000 737472 0100000000000000 77"),
        (0, "0300000000000000 696e74 0100000000000000 30"),
        (True, "0400000000000000 626f6f6c 0100000000000000 01"),
        (None, "0400000000000000 6e6f6e65 0000000000000000"),
    ],
)
def test_keys_are_encoded_as_the_specification_says(key: object, encoded: str) -> None:
    assert encode_key(key).hex() == encoded.replace(" ", "")  # type: ignore[arg-type] # keys all


@pytest.mark.parametrize("key", [float("nan"), (1, float("nan")), "\ud800", [], {1}, object()], ids=repr)
def test_what_is_no_key_is_refused(key: object) -> None:
    with pytest.raises(TreeError):
        encode_key(key)  # type: ignore[arg-type] # that is the point


def test_integers_are_hexadecimal_without_leading_zeros() -> None:
    assert [int_payload(n) for n in (0, 255, -26, 2**64)] == [b"0", b"ff", b"-1a", b"1" + b"0" * 16]


def test_globs_match_a_whole_path_or_a_sub_tree() -> None:
    matches = glob_matcher(["model", "opt*/lr"])
    assert [matches(p) for p in ("model", "model/w", "model2", "a/model", "optimizer/0/lr", "lr")] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
