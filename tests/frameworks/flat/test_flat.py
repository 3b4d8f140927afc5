"""What holds for every container of named arrays: trees come back, bytes depend on the tree alone."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfmt.errors import ExistsError, FormatError, TreeError
from ckptfmt.format.digests import digest_tensor, node_digest
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.nodes import Composite, Opaque, Strings, TaggedDict
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

from .conftest import KINDS, SHAPES, Container, make_tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree


def captured(value: object) -> Tree:
    return as_tree(value)[0]


def files(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        return {entry.name: entry.read_bytes() for entry in path.iterdir()}
    return {"": path.read_bytes()}


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).random(shape, np.float32)


class Failing:
    """A source that says that it is damaged."""

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - the protocol
        return None

    def readinto(self, start: int, out: memoryview) -> None:
        raise FormatError(f"damaged at {start + len(out)}")


@pytest.mark.parametrize("nested", [False, True])
def test_every_type_and_shape_comes_back(container: Container, tmp_path: Path, nested: bool) -> None:  # noqa: FBT001
    flat: dict = {f"{kind}{shape}": make_tensor(kind, shape) for kind in KINDS for shape in SHAPES}
    tree = {"model": flat} if nested else flat
    findings = container.write(tree, tmp_path / "f")
    with container.read(tmp_path / "f") as found:
        assert node_digest(found.tree) == node_digest(tree)
        assert not found.findings
    assert all(finding.severity is Severity.INFO for finding in findings)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::2, 1:],
        lambda a: a[::-1, ::-2],
        np.asfortranarray,
        lambda a: a.astype(">f4"),
        lambda a: np.asfortranarray(a.astype(">c16")),
        lambda a: np.broadcast_to(a[0], (4, *a[0].shape)),
        lambda a: a.astype(ml_dtypes.bfloat16).T,
        lambda a: (a * 8).astype(ml_dtypes.int4)[::2],
    ],
)
def test_strides_and_byte_order_do_not_matter(container: Container, tmp_path: Path, view: object) -> None:
    made = view(array(6, 5))  # type: ignore[operator]
    container.write({"w": Tensor.of(made)}, tmp_path / "a")
    container.write({"w": Tensor.of(np.ascontiguousarray(made))}, tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    with container.read(tmp_path / "a") as found:
        tensor = found.tree["w"]  # type: ignore[index, call-overload]
        assert isinstance(tensor, Tensor)
        assert digest_tensor(tensor) == digest_tensor(Tensor.of(made))


TREES: dict[str, object] = {
    "a tensor": array(2, 3),
    "a number": 7,
    "nothing": None,
    "an empty dict": {},
    "an empty list": [],
    "scalars": {"i": 2**70, "f": -0.0, "nan": float("nan"), "c": 1 + 2j, "b": b"\0", "t": True, "n": None},
    "keys of every kind": {1: array(1), "1": array(2), None: array(3), 2.5: array(4), (1, "a"): array(5)},
    "keys that flatten alike": {"a.b": array(1), "a": {"b": array(2)}, "a/b": array(3)},
    "indices and names": [{"0": array(1)}, {0: array(2)}, (array(3), [array(4)])],
    "the note's own name": {"ckptfmt.tree": array(2), "__metadata__": array(3)},
    "names like numbers after #": {
        "a": {"b": array(1)},
        "a.b": array(2),
        "a.b#1": array(1),
        "a/b#1": array(3),
    },
    "empty containers beside tensors": {"a": array(2), "d": {}, "l": [], "t": ()},
    "sets": {"s": {1, "a", (2, None)}, "f": frozenset({b"x"}), "w": array(1)},
    "tagged": OrderedDict(a=array(2), c=Counter({25: 1, "25": 2})),
    "strings of bytes": {"s": Strings((2,), (b"a", b"bc\0")), "w": array(1)},
    "strings and structure": {"s": np.array(["a", "b"]), "w": [array(1)]},
    "trailing NUL": {"s": Strings((2,), ("a\0", "b")), "w": array(1)},
    "a composite": {"c": Composite("sparse_coo", {"shape": (2, 2)}, {"values": Tensor.of(array(3))})},
    "an opaque node": {"o": Opaque("a.B", {"args": (1, Tensor.of(array(3))), "state": None})},
    "a deep one": {"a": {"b": {"c": [[[({"d": array(1)},)]]]}}},
    "names to escape": {'"\\\n\0': array(1), "": array(2), "é\U0001f600": array(3), "../../x": array(4)},
    "an empty name deep": {"": {"": array(1)}},
    "a numpy scalar": {"x": np.float32(1.5), "w": array(1)},
}


@pytest.mark.parametrize("case", TREES)
def test_a_tree_comes_back_whole(container: Container, tmp_path: Path, case: str) -> None:
    tree = captured(TREES[case])
    container.write(tree, tmp_path / "f")
    with container.read(tmp_path / "f") as found:
        assert node_digest(found.tree) == node_digest(tree)
        assert type(found.tree) is type(tree)
        assert not found.findings


def test_key_order_and_tags_come_back_with_the_note(container: Container, tmp_path: Path) -> None:
    tree = captured(OrderedDict(z=array(1), a={"y": 1, "b": 2}))
    container.write(tree, tmp_path / "f")
    with container.read(tmp_path / "f") as found:
        assert isinstance(found.tree, TaggedDict)
        assert list(found.tree) == ["z", "a"]
        assert list(found.tree["a"]) == ["y", "b"]  # type: ignore[arg-type]


def test_ties_are_written_once_and_come_back_tied(container: Container, tmp_path: Path) -> None:
    weight = array(50, 50)
    tree = captured(
        {"head": {"w": weight}, "emb": weight, "view": weight[1:], "e1": array(0), "e2": array(0)}
    )
    findings = container.write(tree, tmp_path / "f")
    assert "tie-noted" in {finding.kind for finding in findings}
    if container.name != "npz-compressed":
        assert sum(map(len, files(tmp_path / "f").values())) < 2 * weight.nbytes + 8000
    with container.read(tmp_path / "f") as found:
        assert node_digest(found.tree) == node_digest(tree)
        named = {path[-1]: tensor for path, tensor in tensors(found.tree)}
        assert named["w"].identity == named["emb"].identity is not None
        assert named["view"].identity != named["emb"].identity
        container.write(found.tree, tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "f")


def test_shared_containers_stay_shared(container: Container, tmp_path: Path) -> None:
    inner = {"w": array(3)}
    container.write(captured({"a": inner, "b": inner}), tmp_path / "f")
    with container.read(tmp_path / "f") as found:
        assert found.tree["a"] is found.tree["b"]  # type: ignore[index, call-overload]


def test_bytes_do_not_depend_on_key_order(container: Container, tmp_path: Path) -> None:
    names = [f"layer.{k}" for k in range(20)]
    made = {name: make_tensor(KINDS[k % 8], (k + 1, 3)) for k, name in enumerate(names)}
    for target, order in (("a", names), ("b", names[::-1])):
        container.write({name: made[name] for name in order}, tmp_path / target)
    assert files(tmp_path / "a") == files(tmp_path / "b")


_PROGRAM = """
import sys, numpy as np
from ckptfmt.frameworks.flat import npz, safetensors
from ckptfmt.tree.capture import as_tree
value = {name: np.arange(n + 1.0) for n, name in enumerate({"a", "b", "c", "d"} and "abcd")}
tree, _ = as_tree({"s": {"x", "y", "z", "w"}, "m": value, "step": 3})
npz.write(tree, sys.argv[1] + ".npz")
npz.write(tree, sys.argv[1] + ".z.npz", compressed=True)
safetensors.write(tree, sys.argv[1] + ".safetensors")
"""


def test_two_processes_with_two_hash_seeds_write_the_same(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        command = [sys.executable, "-c", _PROGRAM, str(tmp_path / seed)]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed})
    for ending in (".npz", ".z.npz", ".safetensors"):
        assert (tmp_path / f"1{ending}").read_bytes() == (tmp_path / f"2{ending}").read_bytes()


def test_a_flat_mapping_needs_no_note(container: Container, tmp_path: Path) -> None:
    tree = captured({"a.b": array(2), "c/d": array(3), "x": np.array(1)})
    assert container.write(tree, tmp_path / "f") == ()
    assert not any(b"ckptfmt" in data for data in files(tmp_path / "f").values())


def test_what_only_the_note_holds_is_told(container: Container, tmp_path: Path) -> None:
    kinds = {finding.kind for finding in container.write(captured({"a": [array(1)]}), tmp_path / "f")}
    assert kinds == {"structure-note"}


def test_a_type_without_a_name_is_told_once(container: Container, tmp_path: Path) -> None:
    tree: Tree = {f"w{k}": make_tensor("u4", (3, k)) for k in range(5)}
    findings = [f for f in container.write(tree, tmp_path / "f") if f.kind == "stored-raw"]
    assert [finding.severity for finding in findings] == [Severity.INFO]
    assert "5 tensors" in findings[0].message


def test_an_open_file_keeps_its_bytes_when_it_is_overwritten(container: Container, tmp_path: Path) -> None:
    old = captured({"w": array(300, 300), "v": array(10)})
    container.write(old, tmp_path / "f")
    with container.read(tmp_path / "f") as found:
        changed: dict = dict(found.tree)  # type: ignore[arg-type]
        changed["v"] = Tensor.of(array(11))
        container.write(changed, tmp_path / "f", overwrite=True)
        assert node_digest(found.tree) == node_digest(old)
        expected = node_digest(changed)
    with container.read(tmp_path / "f") as found:
        assert node_digest(found.tree) == expected


def test_a_target_that_is_there_is_kept(container: Container, tmp_path: Path) -> None:
    container.write({"w": Tensor.of(array(3))}, tmp_path / "f")
    before = files(tmp_path / "f")
    with pytest.raises(ExistsError):
        container.write({"w": Tensor.of(array(4))}, tmp_path / "f")
    assert files(tmp_path / "f") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_failing_source_leaves_the_target_as_it_was(container: Container, tmp_path: Path) -> None:
    container.write({"w": Tensor.of(array(3))}, tmp_path / "f")
    before = files(tmp_path / "f")
    with pytest.raises(FormatError, match="damaged"):
        container.write({"w": Tensor(dtype("u8"), (1 << 20,), Failing())}, tmp_path / "f", overwrite=True)
    assert files(tmp_path / "f") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_lone_surrogates_are_refused(container: Container, tmp_path: Path) -> None:
    bad: list[Tree] = [{"\ud800": Tensor.of(array(1))}, {"s": "\ud800"}, {"s": Strings((1,), ("\ud800",))}]
    for tree in bad:
        with pytest.raises(TreeError):
            container.write(tree, tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_large_tensors_are_streamed(container: Container, tmp_path: Path) -> None:
    big = np.zeros((64, 1 << 18), "<f4").T  # 64 MiB, no contiguous view of its canonical bytes
    tree: Tree = {"w": Tensor.of(big), "x": [1]}
    tracemalloc.start()
    container.write(tree, tmp_path / "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for name in ("npz", "safetensors"):
        container = Container(name)
        target = tmp_path / name
        container.write(captured({"a": [array(2), 1], "b": make_tensor("bf16", (3,))}), target)
        data = target.read_bytes()
        for length in range(len(data)):
            target.write_bytes(data[:length])
            with pytest.raises(FormatError):
                container.read(target)


keys = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.integers() | st.booleans() | st.none()
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    | st.binary(max_size=3)
    | st.builds(make_tensor, st.sampled_from(KINDS), st.sampled_from(SHAPES), st.integers(0, 3))
)


trees = st.recursive(
    leaves,
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(keys, below, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tree=trees)
def test_any_tree_comes_back(container: Container, tmp_path: Path, tree: Tree) -> None:
    target = tmp_path / "f"
    container.write(tree, target, overwrite=target.exists())
    with container.read(target) as found:
        assert node_digest(found.tree) == node_digest(tree)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_flip_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["npz", "npz-compressed", "safetensors"]))
    container, target = Container(name), tmp_path / name
    if not target.exists():
        tree = captured({"a": [array(2), 1, {"x"}], "b": make_tensor("bf16", (3,)), "c": np.array(["x"])})
        container.write(tree, target)
    changed = bytearray(target.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    broken = tmp_path / "broken"
    broken.write_bytes(changed)
    try:
        with container.read(broken) as found:
            node_digest(found.tree)
    except (FormatError, TreeError):
        return
