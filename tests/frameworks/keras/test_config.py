"""The configuration of a Keras model: what it says of layers, and that it is never more than data."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.frameworks.keras.config import layers, optimizer_of, parse, snake_case, unique_name

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "keras"


def config_of(path: Path) -> dict[str, object]:
    with zipfile.ZipFile(path) as archive:
        return parse(archive.read("config.json").decode(), file="config.json")  # type: ignore[return-value]


@pytest.mark.parametrize("version", ["3.15.1", "tf-keras-2.21"])
def test_layers_have_the_groups_and_names_of_the_file(version: str) -> None:
    """Nested layers stand after their model; the input of a sequential model is none of its layers."""
    found = layers(config_of(GOLDEN / version / "rnn.keras"))  # type: ignore[arg-type]
    assert [("/".join(layer.path), layer.name) for layer in found] == [
        ("layers/input_layer", "tokens"),
        ("layers/bidirectional", "bi"),
        ("layers/multi_head_attention", "mha"),
        ("layers/batch_normalization", "bn"),
        ("layers/sequential", "inner"),
        ("layers/sequential/layers/dense", "in1"),
        ("layers/sequential/layers/dropout", "drop"),
        ("layers/gru", "gru"),
        ("layers/dense", "out"),
    ]


@pytest.mark.parametrize("version", ["3.15.1", "tf-keras-2.21"])
def test_the_type_of_a_layer_is_that_of_its_policy(version: str) -> None:
    found = layers(config_of(GOLDEN / version / "half.keras"))  # type: ignore[arg-type]
    assert [layer.dtype for layer in found] == ["bfloat16", "bfloat16"]
    mixed = {
        "class_name": "Sequential",
        "config": [{"class_name": "Dense", "config": {"dtype": "mixed_bfloat16"}}],
    }
    assert [layer.dtype for layer in layers(mixed)] == ["float32"]  # type: ignore[arg-type]


def test_the_optimizer_is_told_by_class_and_settings() -> None:
    new = optimizer_of(config_of(GOLDEN / "3.15.1" / "rnn.keras"))  # type: ignore[arg-type]
    assert new is not None
    assert new[0] == "Adam"
    assert new[1]["amsgrad"] is False
    assert optimizer_of(config_of(GOLDEN / "tf-keras-2.21" / "rnn.keras")) == ("adam", {})  # type: ignore[arg-type]
    assert optimizer_of({}) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Dense", "dense"),
        ("GRU", "gru"),
        ("MultiHeadAttention", "multi_head_attention"),
        ("Conv2D", "conv2d"),
    ],
)
def test_groups_are_called_as_keras_calls_them(name: str, expected: str) -> None:
    assert snake_case(name) == expected


def test_names_are_counted() -> None:
    used: dict[str, int] = {}
    assert [unique_name("dense", used) for _ in range(3)] == ["dense", "dense_1", "dense_2"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "null", '{"a": }', "\ud800"])
def test_what_is_no_configuration_is_refused_by_name(text: str) -> None:
    with pytest.raises(FormatError, match=r"config\.json"):
        parse(text, file="config.json")


def test_a_configuration_without_measure_is_refused() -> None:
    depth = 200_000
    with pytest.raises(LimitError):
        parse('{"a":' + "[" * depth + "]" * depth + "}", file="config.json")
    model: dict[str, object] = {"class_name": "Dense", "config": {}}
    for _ in range(100):
        model = {"class_name": "Sequential", "config": {"layers": [model]}}
    with pytest.raises(LimitError):
        layers(model)  # type: ignore[arg-type]


HOSTILE = {
    "module": "os",
    "class_name": "system",
    "config": {
        "command": "touch executed",
        "layers": [{"class_name": "Lambda", "config": {"function": "e30="}}],
    },
    "registered_name": "os>system",
}


def test_modules_and_functions_of_a_configuration_are_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CVE-2025-1550 and CVE-2025-9905 were about: nothing is imported, nothing is called."""
    monkeypatch.chdir(tmp_path)
    hostile = HOSTILE | {"module": "antigravity"}
    found = layers(parse(json.dumps(hostile), file="config.json"))
    assert [layer.kind for layer in found] == ["Lambda"]
    assert "antigravity" not in sys.modules
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "config",
    [
        {"config": {"layers": [1, None, "x", {"class_name": 3, "config": []}, {"config": {"name": {}}}]}},
        {"class_name": "Sequential", "config": 3},
        {"class_name": "Sequential", "config": {"layers": {"a": 1}}},
        {},
    ],
)
def test_a_configuration_of_another_shape_names_what_it_names(config: dict[str, object]) -> None:
    assert all(layer.name == "" for layer in layers(config))  # type: ignore[arg-type]
