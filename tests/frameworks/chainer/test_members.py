"""Names are split and joined exactly; notes are believed only where everything beside them agrees."""

from __future__ import annotations

import io
import os
import zipfile
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

import ckptfmt
from ckptfmt.frameworks.chainer.hierarchy import joined, nested, parts_of
from ckptfmt.tree.walk import MAX_DEPTH

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

NAMES = (
    "a",
    "a/b",
    "a/b/c",
    "a/b/d/e",
    "b//c",
    "/lead",
    "trail/",
    "optimizer:main//l1/W/m",
    "(0)/W",
    "0/1/2",
    "",
    "/".join(["x"] * 100),
    "c/.",
)


def flat_of(names: tuple[str, ...]) -> dict[str, Tree]:
    return dict.fromkeys(names)


def test_every_name_comes_back_from_the_path_it_was_split_into() -> None:
    for name in NAMES:
        parts = parts_of(name, set(NAMES))
        assert "/".join(parts) == name
        assert len(parts) <= MAX_DEPTH
    assert joined(cast("Tree", nested(flat_of(NAMES)))) == flat_of(NAMES)


@pytest.mark.parametrize(
    ("name", "parts"), [("a/b", ("a/b",)), ("a/b/d/e", ("a/b/d", "e")), ("c/.", ("c", "."))]
)
def test_what_is_a_name_itself_is_no_mapping(name: str, parts: tuple[str, ...]) -> None:
    assert parts_of(name, set(NAMES)) == parts


@pytest.mark.parametrize(
    "tree",
    [{"a/b": None}, {"a": {}}, {"a": {1: None}}, {"a": [None]}, [None], {"a": {"b": None}, "a/b": None}],
)
def test_a_tree_that_names_would_not_give_back_is_not_joined(tree: Tree) -> None:
    assert joined(tree) is None


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def npy(value: object) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(value))
    return out.getvalue()


SHARED = np.arange(3, dtype="f4")
TREE = {"n": 7, "none": None, "text": "abc", "a": SHARED, "b": SHARED, "list": [1.5, {"x": True}], "t": (1,)}
MEMBERS = {"n", "none", "text", "a", "b", "list/0", "list/1/x", "ckptfmt.tree", "ckptfmt.chainer"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ckptfmt.write(TREE, tmp_path / "file.npz", to="chainer-npz", strict=True)
    return tmp_path / "file.npz"


def test_beside_a_note_stand_the_members_that_chainer_looks_for(path: Path) -> None:
    with np.load(path, allow_pickle=True) as found:
        assert set(found.files) == MEMBERS
        assert found["n"].dtype == np.int64
        assert found["list/1/x"].dtype == bool
        assert found["text"].dtype.str == "<U3"
        assert found["none"][()] is None
        assert found["b"].tobytes() == SHARED.tobytes()
    with ckptfmt.read(path) as checkpoint:
        assert checkpoint.findings == ()
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(TREE).root


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("n", npy(8)),
        ("n", npy(7.0)),
        ("n", npy([7])),
        ("none", npy(0)),
        ("text", npy("abd")),
        ("b", npy(SHARED + 1)),
        ("b", npy(SHARED.astype("f8"))),
        ("a", npy(SHARED[:2])),
        ("list/0", None),
        ("a", None),
        ("more", npy(1)),
    ],
)
def test_a_note_is_ignored_where_anything_beside_it_is_otherwise(
    name: str, data: bytes | None, path: Path
) -> None:
    contents = {**members(path), f"{name}.npy": data}
    rewritten(path, {key: value for key, value in contents.items() if value is not None})
    with ckptfmt.read(path) as checkpoint:
        (told,) = checkpoint.findings
        assert (told.kind, told.severity) == ("note-mismatch", ckptfmt.Severity.LOSS)
        assert isinstance(checkpoint["list"], dict)


def test_names_without_end_are_refused_and_in_a_file_make_its_note_worthless(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared containers let a small tree have many names."""
    monkeypatch.setattr("ckptfmt.frameworks.chainer.members._MAX_NODES", 5)
    with pytest.raises(ckptfmt.LimitError, match="more than 5 names"):
        ckptfmt.write(TREE, tmp_path / "other.npz", to="chainer-npz")
    with ckptfmt.read(path) as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["note-mismatch"]


def test_a_file_without_the_mark_has_no_note(path: Path) -> None:
    contents = members(path)
    del contents["ckptfmt.chainer.npy"]
    rewritten(path, contents)
    with ckptfmt.read(path, format="chainer-npz") as checkpoint:
        assert isinstance(checkpoint["ckptfmt.tree"], ckptfmt.Tensor)


def test_names_that_chainer_never_uses_are_kept(tmp_path: Path) -> None:
    tree = {
        name: np.full(2, at) for at, name in enumerate((*NAMES, "ckptfmt.tree", "ckptfmt.chainer", "n\0l"))
    }
    tree["list"] = cast("np.ndarray", [np.ones(1)])
    for place, target in ((tree, "flat"), ({"a": tree, "a/b": np.ones(2)}, "deep")):
        ckptfmt.write(place, tmp_path / target, to="chainer-npz", strict=True)
        with ckptfmt.read(tmp_path / target, format="chainer-npz") as checkpoint:
            assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(place).root


class Evil:
    """What runs a command where it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.sentinel}",)


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_array_of_objects_is_refused_by_name_and_nothing_runs(tmp_path: Path, *, snapshot: bool) -> None:
    sentinel = tmp_path / "sentinel"
    evil = np.empty((), object)
    evil[()] = Evil(sentinel)
    more = {"updater/iteration": np.asarray(1), "updater/model:main/W": np.ones(1)} if snapshot else {}
    arrays = {"extensions/Evil/state": evil, "ok": np.array(None), **more}
    np.savez(tmp_path / "evil.npz", **arrays)  # type: ignore[arg-type] # no name is an option's
    for kind in ("chainer-npz", None):
        with pytest.raises(
            ckptfmt.FormatError, match=r"extensions/Evil/state.*other than None|other than None.*Evil"
        ):
            ckptfmt.read(tmp_path / "evil.npz", format=kind)
    assert not sentinel.exists()
    with np.load(tmp_path / "evil.npz", allow_pickle=True) as judge:
        judge["extensions/Evil/state"]
    assert sentinel.exists()  # it would have run


def test_shapes_are_never_broadcast(tmp_path: Path) -> None:
    """Chainer would fill a (2, 2) parameter from (1, 1) without a word."""
    np.savez(tmp_path / "a.npz", **{"a/W": np.ones((1, 1))})  # type: ignore[arg-type] # no name is an option's
    with ckptfmt.read(tmp_path / "a.npz", format="chainer-npz") as checkpoint:
        tensor = cast("dict[str, ckptfmt.Tensor]", checkpoint["a"])["W"]
        with pytest.raises(ckptfmt.TreeError, match="broadcast"):
            tensor.into(np.zeros((2, 2)))
