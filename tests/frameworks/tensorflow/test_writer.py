"""What is written comes back, by name, by the graph it came with, or by one of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pytest

import ckptfmt
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.frameworks.tensorflow.graph import GRAPH_KEY, Attribute, Node, decode_graph, encode_graph
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.nodes import Tag

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

Nodes: TypeAlias = "dict[Any, Any]"
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def keys(prefix: Path) -> list[str]:
    with read_bundle(prefix) as bundle:
        return list(bundle.entries)


def back(tree: Tree, prefix: Path) -> ckptfmt.Checkpoint:
    """Write, and read again; the roots are the same."""
    ckptfmt.write(tree, prefix, to="tensorflow")
    checkpoint = ckptfmt.read(prefix)
    assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root
    assert checkpoint.findings == ()
    return checkpoint


def copied(path: Path) -> Nodes:
    """Return the tree of a file that stays open, with mappings of its own."""
    tree = cast("Nodes", ckptfmt.read(path).tree)
    return {key: dict(part) if isinstance(part, dict) else part for key, part in tree.items()}


def test_a_flat_mapping_keeps_its_names_and_gets_no_note(tmp_path: Path) -> None:
    names = ["layer/kernel", "a.b", "é", "global_step", "x" * 300]
    words = ckptfmt.Strings((2,), (b"a", b"\xff"))
    arrays = {name: np.arange(4) for name in names}
    back(as_tree({**arrays, "words": words})[0], tmp_path / "x").close()
    assert keys(tmp_path / "x") == sorted([*names, "words"], key=str.encode)


@pytest.mark.parametrize(
    "tree",
    [
        {"w": np.ones(2), "step": 3},
        {"w": np.ones(2), "words": np.array(["a", "é"])},
        {"w": np.ones(2), GRAPH_KEY: np.ones(3), "ckptfmt.tree": np.zeros(1)},
        {GRAPH_KEY: ckptfmt.Strings((), (b"x",)), "w": np.ones(2)},
        {"": np.ones(2), "\0x": np.ones(1)},
        {"bytes": np.array([b"abc", b"d"])},
        {},
        [np.ones(2), {"a": np.ones(1)}],
        {"a": {"b/c": np.ones(1), "b.Sc": np.zeros(1)}, "save_counter": 3},
        {"a": {1: np.ones(1), "1": np.zeros(1), "w": {"words": np.array(["x"])}}},
        {"a": {"save_counter": np.ones(1)}, "save_counter": np.array(7)},
        {"object_graph": b"no graph", "model": {"w": np.ones(1)}},
        {"object_graph": b"", "model": {"w": np.ones(1)}},
    ],
    ids=str,
)
def test_what_a_bundle_cannot_tell_is_in_the_note(tree: object, tmp_path: Path) -> None:
    back(as_tree(tree)[0], tmp_path / "x").close()


def test_nested_mappings_get_keys_as_tensorflow_spells_them_and_a_counter(tmp_path: Path) -> None:
    tied = np.ones(2)
    back(as_tree({"m": {"a/b": tied, "c.d": [tied, np.zeros(1)]}})[0], tmp_path / "x").close()
    assert keys(tmp_path / "x") == sorted(
        [GRAPH_KEY, "ckptfmt.tree", *(p + SUFFIX for p in ("m/a.Sb", "m/c..d/1", "save_counter"))]
    )
    with read_bundle(tmp_path / "x") as bundle:
        graph = decode_graph(cast("ckptfmt.Strings", bundle.entries[GRAPH_KEY].node).values[0])  # type: ignore[arg-type] # bytes
    assert graph[0].children == (("m", 1), ("save_counter", 5))
    assert graph[1].children == (("a/b", 2), ("c.d", 3))
    assert graph[3].children == (("0", 2), ("1", 4))


def test_without_its_note_a_nested_tree_is_what_its_graph_tells(tmp_path: Path) -> None:
    ckptfmt.write({"m": {"w": np.ones(2)}, "n": 1}, tmp_path / "x", to="tensorflow")
    with read_bundle(tmp_path / "x") as bundle:
        items = [Item(name, entry.node) for name, entry in bundle.entries.items()]  # type: ignore[arg-type] # of a bundle
        changed = [item for item in items if item.name != "m/w" + SUFFIX]
        changed.append(Item("m/w" + SUFFIX, as_tree(np.ones(3))[0]))  # type: ignore[arg-type] # a tensor
        write_bundle(tmp_path / "y", changed)
    with ckptfmt.read(tmp_path / "y") as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["note-mismatch"]
        assert set(checkpoint.tensors()) == {
            'model/"m/w"',
            "save_counter",
            'object_paths/"m/w"',
            "object_paths/save_counter",
        }


def test_a_value_that_was_changed_is_what_is_written(golden: Path, tmp_path: Path) -> None:
    """The model is where values are taken from; their other names follow."""
    tree = copied(golden / "keras3-1")
    name, changed = "sequential/d1/bias", as_tree(np.full(4, 7, "f4"))[0]
    tree["model"][name] = changed
    for path, node in tree["object_paths"].items():
        if node.identity == cast("Nodes", ckptfmt.read(golden / "keras3-1").tree)["model"][name].identity:
            tree["object_paths"][path] = changed
    tree["object_paths"]["optimizer/_trainable_variables/1"] = changed
    ckptfmt.write(tree, tmp_path / "x", to="tensorflow")
    with read_bundle(tmp_path / "x") as bundle:
        written = bundle.entries["optimizer/_trainable_variables/1" + SUFFIX].node
        assert cast("ckptfmt.Tensor", written).numpy().tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("prefix", ["keras3-1", "tf_keras_legacy-1", "module-1"])
def test_more_and_less_than_the_graph_knows_comes_back(prefix: str, golden: Path, tmp_path: Path) -> None:
    tree = copied(golden / prefix)
    tree["epoch"] = 3
    tree["model"]["extra"] = as_tree(np.arange(3))[0]
    back(tree, tmp_path / "more").close()
    assert "extra" in keys(tmp_path / "more")
    for part in ("optimizer", "optimizer_slots", "object_paths", "save_counter"):
        tree.pop(part, None)
    back(tree, tmp_path / "less").close()
    known = {one.key for node in _graph(tmp_path / "less") for one in node.attributes}
    held = set(keys(tmp_path / "less"))
    assert all(key in held or key + "-keys" in held for key in known)


def _graph(prefix: Path) -> tuple[Any, ...]:
    with read_bundle(prefix) as bundle:
        return decode_graph(cast("ckptfmt.Strings", bundle.entries[GRAPH_KEY].node).values[0])  # type: ignore[arg-type] # bytes


def test_no_value_changes_its_key_where_names_are_alike(tmp_path: Path) -> None:
    """A key without an object that is called as a variable calls itself; one of two such is not there."""
    variables = {"a": "raw", "b": "twice", "c": "twice", "d": "d"}
    graph = encode_graph(
        (
            Node(children=tuple((name, at) for at, name in enumerate(variables, 1))),
            *(
                Node(attributes=(Attribute("VARIABLE_VALUE", full_name, name + SUFFIX),))
                for name, full_name in variables.items()
            ),
        )
    )
    held = ["a" + SUFFIX, "b" + SUFFIX, "d" + SUFFIX, "raw"]
    items = [Item(name, cast("ckptfmt.Tensor", as_tree(np.full(2, at))[0])) for at, name in enumerate(held)]
    write_bundle(tmp_path / "x", [*items, Item(GRAPH_KEY, ckptfmt.Strings((), (graph,)))])
    ckptfmt.convert(tmp_path / "x", tmp_path / "native")
    assert ckptfmt.convert(tmp_path / "native", tmp_path / "y.index").same_root
    with read_bundle(tmp_path / "y") as bundle:
        found = {name: cast("ckptfmt.Tensor", bundle.entries[name].node).numpy().tolist() for name in held}
    assert found == {name: [at, at] for at, name in enumerate(held)}


def test_optimizers_are_left_out_by_name(golden: Path, tmp_path: Path) -> None:
    report = ckptfmt.convert(golden / "keras3-1", tmp_path / "model.npz", include="model")
    assert {path.split("/")[0] for path in report.dropped} >= {"optimizer", "object_graph"}
    with np.load(tmp_path / "model.npz") as arrays:
        assert "model/sequential/d1/kernel" in arrays


def test_quantised_types_keep_their_name(tmp_path: Path) -> None:
    plain = as_tree(np.arange(4, dtype="i1"))[0]
    assert isinstance(plain, ckptfmt.Tensor)
    plain.tag = Tag("tensorflow.qint8")
    back({"w": plain}, tmp_path / "flat").close()
    assert keys(tmp_path / "flat") == ["w"]
    with back({"a": {"w": plain}}, tmp_path / "nested") as checkpoint:
        assert cast("ckptfmt.Tensor", checkpoint.at(("a", "w"))).tag == plain.tag


def test_shards_are_closed_at_the_size_that_was_asked_for(tmp_path: Path) -> None:
    tree = {f"w{at}": np.full(100, at) for at in range(5)}
    ckptfmt.write(tree, tmp_path / "x.index", shard_size=1700)
    assert len(list(tmp_path.glob("x.data-*-of-00003"))) == 3
    with ckptfmt.read(tmp_path / "x") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root


def test_the_state_file_of_a_directory_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "old"\n')
    ckptfmt.write({"w": np.ones(1)}, tmp_path / "new.index")
    assert (tmp_path / "checkpoint").read_text() == 'model_checkpoint_path: "old"\n'


def test_shared_containers_stay_shared_in_graph_and_tree(tmp_path: Path) -> None:
    shared = {"w": np.ones(2)}
    tree = as_tree({"a": shared, "b": [shared]})[0]
    with back(tree, tmp_path / "x") as checkpoint:
        assert len(checkpoint.tensors()) == 2
    assert [key for key in keys(tmp_path / "x") if key.startswith(("a", "b"))] == ["a/w" + SUFFIX]
