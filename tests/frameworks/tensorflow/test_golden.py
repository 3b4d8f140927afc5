"""What the real TensorFlow 2.21 wrote is read without it, value for value, under the objects' own names."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

import ckptfmt
from ckptfmt.cli.app import invoke
from ckptfmt.tree.nodes import Strings

FOLDER = Path(__file__).resolve().parents[2] / "golden" / "tensorflow" / "2.21" / "objects"
PREFIXES = (
    *("keras3-1", "tf_keras-1", "tf_keras_legacy-1", "module-1", "by_name-3"),
    *("managed/ckpt-2", "managed/ckpt-3", "saved_model/variables/variables"),
)
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


RATES = {
    "tf_keras-1": {"learning_rate"},
    "tf_keras_legacy-1": {"Adam/beta_1", "Adam/beta_2", "Adam/decay", "Adam/learning_rate"},
}
"""What optimizers of tf_keras save and do not count among their variables."""
Nodes: TypeAlias = "dict[str, Any]"


@cache
def expected() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((FOLDER / "expected.json").read_text()))


def digest(tensor: ckptfmt.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def below(checkpoint: ckptfmt.Checkpoint, *path: str) -> Nodes:
    return cast("Nodes", checkpoint.at(path))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_key_holds_what_tensorflow_reads(prefix: str) -> None:
    with ckptfmt.read(FOLDER / prefix) as checkpoint:
        assert checkpoint.format == "tensorflow"
        assert checkpoint.findings == ()
        whole = below(checkpoint)
        by_key = whole["model"] | whole["object_paths"] if "object_paths" in whole else whole
        for key, (kind, shape, content) in expected()[prefix]["keys"].items():
            if key == "_CHECKPOINTABLE_OBJECT_GRAPH":
                assert [whole["object_graph"].hex()] == content
                continue
            node = by_key[key.removesuffix(SUFFIX)]
            assert list(node.shape) == shape
            if kind == "string":
                assert isinstance(node, Strings)
                assert [cast("bytes", one).hex() for one in node.values] == content
            else:
                assert digest(node) == content


@pytest.mark.parametrize("prefix", ["keras3-1", "tf_keras-1", "tf_keras_legacy-1"])
def test_variables_are_found_by_the_names_that_the_objects_gave_them(prefix: str) -> None:
    """Keras 3 has its weights under the optimizer's keys: only the graph tells."""
    with ckptfmt.read(FOLDER / prefix) as checkpoint:
        for group, names in expected()[prefix]["names"].items():
            assert {name: digest(below(checkpoint, group)[name]) for name in names} == names
            told = set(names) | (RATES.get(prefix, set()) if group == "optimizer" else set())
            assert set(below(checkpoint, group)) == told


def test_names_of_variables_by_name_stay_as_they_are_with_slots_and_averages() -> None:
    """Moving averages stand beside what they are of: whoever picks one names it."""
    with ckptfmt.read(FOLDER / "by_name-3") as checkpoint:
        names = expected()["by_name-3"]["names"][""]
        assert {key: digest(node) for key, node in below(checkpoint).items()} == names
        wanted = {"layer/kernel", "layer/kernel/Adam", "layer/kernel/Adam_1", "layer/kernel/Momentum"}
        assert wanted | {"layer/kernel/ExponentialMovingAverage", "beta2_power"} <= set(names)
        assert checkpoint.step == int(below(checkpoint)["global_step"].numpy())


def test_moving_averages_are_taken_or_left_by_name(tmp_path: Path) -> None:
    average = "*ExponentialMovingAverage*"
    ckptfmt.convert(FOLDER / "by_name-3", tmp_path / "without.index", exclude=average)
    ckptfmt.convert(FOLDER / "by_name-3", tmp_path / "alone.index", include=average)
    with ckptfmt.read(tmp_path / "without") as rest, ckptfmt.read(tmp_path / "alone") as averages:
        names = {*below(rest), *below(averages)}
        assert names == set(expected()["by_name-3"]["names"][""])
        assert set(below(averages)) == {
            f"layer/{name}/ExponentialMovingAverage" for name in ("kernel", "bias")
        }


def test_a_listing_shows_full_names_and_paths_of_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["info", str(FOLDER / "keras3-1"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["table"]
    same_as = {row["path"]: row.get("same_as") for row in rows}
    name = 'model/"sequential/d1/kernel"'
    assert same_as[name] is None
    assert same_as['object_paths/"optimizer/_trainable_variables/0"'] == name
    assert same_as['object_paths/"model/_functional/_operations/1/_kernel"'] == name


@pytest.mark.parametrize(
    ("prefix", "parameter", "slots"),
    [
        ("keras3-1", "sequential/bn/gamma", {"_momentums": "adam/sequential_bn_gamma_momentum"}),
        ("keras3-1", "sequential/out/bias", {"_velocities": "adam/sequential_out_bias_velocity"}),
        ("tf_keras-1", "d1/kernel", {"_momentums": "Adam/m/d1/kernel", "_velocities": "Adam/v/d1/kernel"}),
        ("tf_keras_legacy-1", "d1/bias", {"m": "Adam/d1/bias/m", "v": "Adam/d1/bias/v"}),
    ],
)
def test_slots_are_tied_to_the_optimizers_variables_by_parameter(
    prefix: str, parameter: str, slots: dict[str, str]
) -> None:
    with ckptfmt.read(FOLDER / prefix) as checkpoint:
        found = below(checkpoint, "optimizer_slots", parameter)
        for slot, name in slots.items():
            assert found[slot].identity == below(checkpoint, "optimizer")[name].identity is not None


def test_aliases_are_ties_of_one_tensor() -> None:
    with ckptfmt.read(FOLDER / "keras3-1") as checkpoint:
        paths = below(checkpoint, "object_paths")
        kernel = below(checkpoint, "model")["sequential/d1/kernel"]
        for path in ("optimizer/_trainable_variables/0", "model/_functional/_operations/1/_kernel"):
            assert paths[path].identity == kernel.identity is not None
    with ckptfmt.read(FOLDER / "module-1") as checkpoint:
        paths = below(checkpoint, "object_paths")
        assert paths["net/odd/c..d"].identity == paths["net/w"].identity is not None
        assert paths["net/odd/a.Sb"].numpy() == 1.5


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_is_written_again_is_the_same_checkpoint(prefix: str, tmp_path: Path) -> None:
    """Through our own format and back: the same keys, the same graph, the same values, and no note."""
    ckptfmt.convert(FOLDER / prefix, tmp_path / "native")
    report = ckptfmt.convert(tmp_path / "native", tmp_path / "again.index", strict=True)
    assert report.same_root
    assert report.findings == ()
    with ckptfmt.read(FOLDER / prefix) as one, ckptfmt.read(tmp_path / "again") as other:
        assert ckptfmt.digest(one).root == ckptfmt.digest(other).root
    before = (FOLDER / f"{prefix}.index").stat().st_size
    assert abs((tmp_path / "again.index").stat().st_size - before) < 16  # offsets may take a byte more


@pytest.mark.parametrize("prefix", ["keras3-1", "module-1"])
def test_objects_keep_their_graph_through_pt_files(prefix: str, tmp_path: Path) -> None:
    ckptfmt.convert(FOLDER / prefix, tmp_path / "x.pt")
    report = ckptfmt.convert(tmp_path / "x.pt", tmp_path / "again.index")
    with ckptfmt.read(FOLDER / prefix) as one, ckptfmt.read(tmp_path / "again") as other:
        assert one["object_graph"] == other["object_graph"]
        assert below(one, "model").keys() == below(other, "model").keys()
    assert report.tensors
