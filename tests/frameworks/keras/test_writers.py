"""What is written for Keras comes back whole and depends on the tree alone; what is no model is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.nodes import Composite, Strings, Tag, tag_of, tagged
from ckptfmt.tree.tensor import Tensor

from .conftest import FILES, GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

pytestmark = pytest.mark.framework
REASON = 'needs the extra "hdf5"'
pytest.importorskip("h5py", reason=REASON)
leaf_names = pytest.importorskip("ckptfmt.frameworks.keras.legacy", reason=REASON).leaf_names

CONFIG = json.dumps({"class_name": "Sequential", "config": {"name": "m", "layers": []}})


def layer(**arrays: np.ndarray) -> dict[Any, Tree]:
    held: dict[Any, Tree] = {int(key[1:]): Tensor.of(array) for key, array in arrays.items()}
    return {"vars": tagged(held, Tag("keras.group", {"name": "conv"}))}


def target_of(file: str, folder: Path, stem: str = "written") -> Path:
    ending = ".keras" if file.endswith(".keras") else ".weights.h5" if ".weights." in file else ".h5"
    return folder / f"{stem}{ending}"


def kind_of(file: str) -> str:
    return "keras" if file.endswith(".keras") else "keras-weights" if ".weights." in file else "keras-h5"


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_keras_written_again_is_the_same_tree(file: str, tmp_path: Path) -> None:
    """Through our own format, too: names of layers and the order of lists lie in tags, which it keeps."""
    first, second = target_of(file, tmp_path), target_of(file, tmp_path, "again")
    with ckptfmt.read(GOLDEN / file) as source:
        ckptfmt.write(source.tree, first, to=kind_of(file))
        ckptfmt.convert(GOLDEN / file, tmp_path / "native")
        ckptfmt.convert(tmp_path / "native", second, to=kind_of(file))
        assert first.read_bytes() == second.read_bytes()
        with ckptfmt.read(first) as found:
            assert ckptfmt.digest(found).root == ckptfmt.digest(source).root
            assert list(found.tensors()) == list(source.tensors())
            assert _tags(found.tree) == _tags(source.tree)


def _tags(tree: Tree) -> list[tuple[Any, ...]]:
    if not isinstance(tree, dict):
        return []
    tag = tag_of(tree)
    own: list[tuple[Any, ...]] = [] if tag is None else [(tag.attributes,)]
    return own + [(key, *found) for key, node in tree.items() for found in _tags(node)]


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5", "torch", "tensorflow"])
def test_a_file_of_keras_comes_back_from_poorer_containers(kind: str, tmp_path: Path) -> None:
    """The structure note of those keeps the tree and its tags; a pickle keeps Python's own classes."""
    source = GOLDEN / "3.15.1" / "rnn.keras"
    ckptfmt.convert(source, tmp_path / "between", to=kind)
    ckptfmt.convert(tmp_path / "between", tmp_path / "back.keras")
    with ckptfmt.read(source) as one, ckptfmt.read(tmp_path / "back.keras") as other:
        assert ckptfmt.digest(one).root == ckptfmt.digest(other).root
        assert kind == "torch" or _tags(one.tree) == _tags(other.tree)


def test_the_order_of_keys_changes_no_byte_of_a_weights_file(tmp_path: Path) -> None:
    one, other = np.ones((2, 3), "f4"), np.zeros(3, "f4")
    ckptfmt.write({"layers": {"b": layer(_0=one, _1=other), "a": layer(_0=other)}}, tmp_path / "1.weights.h5")
    turned = {"layers": {"a": layer(_0=other), "b": layer(_1=other.copy(), _0=one)}}
    ckptfmt.write(turned, tmp_path / "2.weights.h5")
    assert (tmp_path / "1.weights.h5").read_bytes() == (tmp_path / "2.weights.h5").read_bytes()


def test_lists_of_names_of_any_length_are_split(tmp_path: Path) -> None:
    """5,000 layers of 80 characters: no attribute passes what an object header holds."""
    h5py = pytest.importorskip("h5py")
    names = [f"{number:05d}".rjust(80, "n") for number in range(5000)]
    layers: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    layers[names[7]] = {name: np.full(1, 3.0) for name in names[:1000]}
    tree = {"model_weights": layers}
    ckptfmt.write(tree, tmp_path / "many.h5", to="keras-h5")
    with h5py.File(tmp_path / "many.h5") as file:
        parts = [file.attrs[f"layer_names{part}"] for part in range(len(file.attrs) - 2)]
        assert [name.decode() for part in parts for name in part] == names
        assert max(part.nbytes for part in parts) <= 64_512
    with ckptfmt.read(tmp_path / "many.h5") as found:
        assert found.format == "keras-h5"
        assert ckptfmt.digest(found).root == ckptfmt.digest(tree).root
        assert list(found["model_weights"]) == names  # type: ignore[arg-type]


def test_lists_that_do_not_follow_the_groups_keep_their_order(tmp_path: Path) -> None:
    x, y, z = (Tensor.of(np.full(1, float(value))) for value in range(3))
    weights: Tree = {"a": {"x": x, "z": z}, "b": {"y": y}}
    listed: list[Tree] = ["a/x", "b/y", "a/z"]
    tree = {"model_weights": {"layer": tagged(weights, Tag("keras.group", {"weight_names": listed}))}}
    ckptfmt.write(tree, tmp_path / "model.h5", to="keras-h5")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "model.h5") as file:
        assert [name.decode() for name in file["layer"].attrs["weight_names"]] == listed
    with ckptfmt.read(tmp_path / "model.h5") as found:
        assert tag_of(found.at(("model_weights", "layer"))).attributes["weight_names"] == listed  # type: ignore[union-attr]


def _optimizer_file(target: Path) -> None:
    """Write slots as tf_keras lists them: those of one parameter side by side."""
    slots: Tree = {name: {key: Tensor.of(np.full(2, at)) for key in "ab"} for at, name in enumerate("mv")}
    weights: Tree = {"step": Tensor.of(np.ones(())), "Adam": slots}
    listed: list[Tree] = ["step", "Adam/m/a", "Adam/v/a", "Adam/m/b", "Adam/v/b"]
    tagged_weights = tagged(weights, Tag("keras.group", {"weight_names": listed}))
    tree = {"model_weights": {}, "model_config": CONFIG, "optimizer_weights": tagged_weights}
    assert not ckptfmt.write(tree, target, to="keras-h5")


def test_an_order_that_was_lost_on_the_way_is_told(tmp_path: Path) -> None:
    """A pickle keeps no tags; Keras would put the slots of one kind into those of another without a word."""
    _optimizer_file(tmp_path / "model.h5")
    report = ckptfmt.convert(tmp_path / "model.h5", tmp_path / "between.pt")
    assert ["weight_names" in loss.message for loss in report.losses if loss.path == "optimizer_weights"] == [
        True
    ]
    report = ckptfmt.convert(tmp_path / "between.pt", tmp_path / "back.h5", to="keras-h5")
    assert [(loss.kind, "optimizer_weights" in loss.message) for loss in report.losses] == [
        ("order-guessed", True)
    ]
    with pytest.raises(ckptfmt.LossyError, match="order"):
        ckptfmt.convert(tmp_path / "between.pt", tmp_path / "strict.h5", to="keras-h5", strict=True)
    assert not (tmp_path / "strict.h5").exists()


def test_an_order_that_the_groups_allow_is_kept_where_others_are_possible(tmp_path: Path) -> None:
    """So that a list that follows the groups is told from one that was lost."""
    weights = {"d": {"kernel": np.ones(2), "bias": np.ones(1)}, "bn": {"gamma": np.ones(3)}}
    one = {"kernel": np.ones(2), "bias": np.ones(1)}
    tree = {"model_weights": {"inner": weights, "one": {"one": one}}}
    told = ckptfmt.write(tree, tmp_path / "a.h5", to="keras-h5")
    assert [(f.kind, "model_weights/inner" in f.message) for f in told] == [("order-guessed", True)]
    for way in ("native", "npz"):
        ckptfmt.convert(tmp_path / "a.h5", tmp_path / way, to="ckptfmt" if way == "native" else way)
        assert not ckptfmt.convert(tmp_path / way, tmp_path / f"{way}.h5", to="keras-h5").losses


def test_paths_are_told_in_the_order_of_keys() -> None:
    tree: dict[Any, Tree] = {"b": {"y": None, "x": None}, "a": None, "c": {}}
    assert list(leaf_names(tree)) == [("b", "y"), ("b", "x"), ("a",)]


@pytest.mark.parametrize("to", ["keras", "keras-h5", "keras-weights"])
@pytest.mark.parametrize(
    "tree",
    [
        {"w": np.ones(2)},
        {"model": {"w": np.ones(2)}},
        {"layers": {"dense": {"vars": {0: np.ones(2)}, "stray": np.ones(2)}}, "step": 7},
        {"vars": {"0": np.ones(2)}},
        {"vars": {-1: np.ones(2)}},
        {"vars": {"a/b": np.ones(2)}},
        {"vars": {"": np.ones(2)}},
        {"layers": {1: {}}},
        {"vars": {0: 7}},
        {"vars": {0: [np.ones(2)]}},
        np.ones(2),
        [np.ones(2)],
        {"model_weights": {"dense": {"w": "text"}}},
        {"model_weights": {"dense": np.ones(2)}},
        {"model_weights": {3: {"w": np.ones(2)}}},
        {"model_weights": {"dense": {4: np.ones(2)}}},
        {"model_weights": {"a//b": {}}},
        {"model_weights": {}, "model_config": {"a": 1}},
        {"model_weights": [], "optimizer_weights": {}},
        {"config.json": 5, "model.weights.h5": {}},
        {"config.json": CONFIG, "model.weights.h5": {"w": np.ones(2)}},
        {"config.json": CONFIG, "model.weights.h5": {}, "more": 1},
        {"config.json": CONFIG, "model.weights.h5": {}, "assets": {"a": np.ones(2)}},
        {"config.json": CONFIG, "model.weights.h5": {}, "assets": {"..": np.ones(2, "u1")}},
    ],
)
def test_what_is_no_model_of_keras_is_refused_with_a_way_out(tree: object, to: str, tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.ConversionError, match=r"--to hdf5|keras-weights"):
        ckptfmt.write(tree, tmp_path / "target", to=to)
    assert not list(tmp_path.iterdir())


def test_weights_of_an_archive_are_not_written_where_keras_would_not_find_them(tmp_path: Path) -> None:
    """Which `--include model.weights.h5` would do, for nothing is renamed."""
    source = GOLDEN / "3.15.1" / "rnn.keras"
    target = tmp_path / "x.weights.h5"
    for include in ((), "model.weights.h5"):
        with pytest.raises(ckptfmt.ConversionError, match=r"checkpoint\.tree\['model\.weights\.h5'\]"):
            ckptfmt.convert(source, target, include=include)
    assert not target.exists()
    with ckptfmt.read(source) as checkpoint:
        ckptfmt.write(checkpoint.tree["model.weights.h5"], target)  # type: ignore[call-overload, index] # a dict
        with ckptfmt.read(target) as found:
            assert ckptfmt.digest(found).bag == ckptfmt.digest(checkpoint).bag


def test_types_that_keras_cannot_load_are_kept_and_told(tmp_path: Path) -> None:
    """Every type comes back bit for bit; Keras loads bfloat16 from weights files, from no legacy one."""
    arrays = {
        f"_{at}": np.zeros((2, 3), dtype(name).numpy) for at, name in enumerate(("bf16", "f8_e5m2", "i4"))
    }
    arrays["_3"], arrays["_4"] = np.ones((2, 2), "c8"), np.array([True, False])
    tree: dict[str, Tree] = {"a": layer(**arrays)}
    findings = ckptfmt.write(tree, tmp_path / "a.weights.h5")
    assert [(f.kind, f.path) for f in findings] == [("stored-raw", "a/vars/1"), ("stored-raw", "a/vars/2")]
    with ckptfmt.read(tmp_path / "a.weights.h5") as found:
        assert ckptfmt.digest(found).root == ckptfmt.digest(tree).root
    legacy = {"model_weights": {"a": {"kernel": Tensor.of(arrays["_0"])}}}
    findings = ckptfmt.write(legacy, tmp_path / "a.h5", to="keras-h5")
    assert [(f.kind, f.path) for f in findings] == [("stored-raw", "model_weights/a/kernel")]
    with ckptfmt.read(tmp_path / "a.h5") as found:
        assert ckptfmt.digest(found).root == ckptfmt.digest(legacy).root


def test_raw_bytes_without_a_type_are_written_as_they_were(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    raw = Composite("numpy.void", {}, {"bytes": Tensor.of(np.arange(12, dtype="u1").reshape(3, 2, 2))})
    tree: dict[str, Tree] = {"a": {"vars": {0: raw}}}
    ckptfmt.write(tree, tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5") as file:
        found = file["a/vars/0"]
        assert (found.dtype.str, found.shape, dict(found.attrs)) == ("|V2", (3, 2), {})
    with ckptfmt.read(tmp_path / "a.weights.h5") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root


def test_ties_and_foreign_tags_are_told(tmp_path: Path) -> None:
    weight = np.ones(3, "f4")
    tree = {"a": layer(_0=weight), "b": tagged({**layer(_0=weight)}, Tag("collections.OrderedDict", {}))}
    findings = ckptfmt.write(tree, tmp_path / "a.weights.h5")
    assert {(f.kind, f.path, str(f.severity)) for f in findings} == {
        ("class-dropped", "b", "info"),
        ("tie-broken", "b/vars/0", "info"),
    }


def test_attributes_of_groups_come_back(tmp_path: Path) -> None:
    attributes: dict[Any, Tree] = {
        "name": "é",
        "n": 3,
        "x": 0.5,
        "on": True,
        "list": ["a", "b"],
        "none": None,
    }
    tree = {
        "a": {"vars": tagged({0: Tensor.of(np.ones(1))}, Tag("keras.group", {**attributes, "bad": {"a": 1}}))}
    }
    findings = ckptfmt.write(tree, tmp_path / "a.weights.h5")
    assert [(f.kind, f.path, str(f.severity)) for f in findings] == [("attribute-lost", "a/vars", "loss")]
    with ckptfmt.read(tmp_path / "a.weights.h5") as found:
        tag = tag_of(found.at(("a", "vars")))
        assert tag is not None
        assert tag.attributes == attributes


def test_assets_and_texts_of_a_model_come_back(tmp_path: Path) -> None:
    words, none = Tensor.of(np.frombuffer(b"a\nb", "u1")), Tensor.of(np.zeros(0, "u1"))
    assets: dict[Any, Tree] = {"layers": {"lookup": {"words.txt": words, "none": none}}}
    tree = {"metadata.json": "{}", "config.json": CONFIG, "model.weights.h5": {}, "assets": assets}
    ckptfmt.write(tree, tmp_path / "a.keras")
    with ckptfmt.read(tmp_path / "a.keras") as found:
        assert ckptfmt.digest(found).root == ckptfmt.digest(tree).root
        assert bytes(found.at(("assets", "layers", "lookup", "words.txt")).numpy()) == b"a\nb"  # type: ignore[union-attr]


def test_texts_and_empty_arrays_are_kept(tmp_path: Path) -> None:
    tree: dict[str, Tree] = {
        "a": {"vars": {"words": Strings((2,), ("x", "é")), "n": None, 0: Tensor.of(np.ones(1))}}
    }
    ckptfmt.write(tree, tmp_path / "a.weights.h5")
    with ckptfmt.read(tmp_path / "a.weights.h5") as found:
        assert ckptfmt.digest(found).root == ckptfmt.digest(tree).root
