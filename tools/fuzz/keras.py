"""Targets of fuzzing for files of Keras: lists of names, groups, configurations, and the index of a set.

The HDF5 library itself is not the target here: a JSON document says what groups, attributes and arrays a file
has, h5py writes it, and our readers must make a tree of it or refuse it. What was read is written again.
"""

from __future__ import annotations

import contextlib
import json
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

import ckptfmt
from ckptfmt.frameworks.keras.config import layers, optimizer_of, parse
from ckptfmt.registry import read_foreign, write_foreign
from ckptfmt.tree.tensor import Tensor
from tools.fuzz.oracles import reads_alike
from tools.fuzz.target import Target, as_json

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

__all__ = ["KERAS"]

_MOST = 200
_SIZE = 64


def _layout_seeds(_: Path) -> list[bytes]:
    model = {
        "class_name": "Sequential",
        "config": {"layers": [_dense("d", "bfloat16"), _dense("e", "float32")]},
    }
    legacy = {
        "@": {"model_config": json.dumps(model), "keras_version": "3.0.0"},
        "model_weights": {
            "@": {"layer_names0": ["d"], "layer_names1": ["e"]},
            "d": {
                "@": {"weight_names": ["d/kernel:0", "d/bias:0"]},
                "d": {"kernel:0": [2, 3], "bias:0": "V2"},
            },
            "e": {"@": {"weight_names": []}},
            "top_level_model_weights": {"@": {"weight_names": ["x"]}, "x": []},
        },
        "optimizer_weights": {
            "@": {"weight_names": ["Adam/iter:0", "Adam/d/kernel/m:0"]},
            "Adam": {"iter:0": [], "d": {"kernel": {"m:0": [2, 3]}}},
        },
    }
    weights = {
        "layers": {
            "dense": {"vars": {"@": {"name": "d"}, "0": [2, 3], "1": "V2", "10": [1]}},
            "lstm": {
                "cell": {"vars": {"@": {"name": "c", "n": 3}, "0": [4]}},
                "vars": {"@": {"name": "lstm"}},
            },
        },
        "optimizer": {"vars": {"@": {"name": "adam"}, "0": [], "1": [], "2": [2, 3], "3": [2, 3]}},
        "vars": {"@": {"name": "model"}},
    }
    return [json.dumps(document).encode() for document in (legacy, weights)]


def _dense(name: str, dtype: str) -> dict[str, object]:
    return {"class_name": "Dense", "config": {"name": name, "dtype": dtype, "trainable": True}}


def _layout(data: bytes, place: Path) -> None:
    path = place / "input.h5"
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    _build(document, path)
    kind = "keras-h5" if b"_names" in data else "keras-weights"
    if zlib.crc32(data) % 4:
        reads_alike(lambda: read_foreign(path, kind), place, data)
    else:
        _written_alike(path, kind, place / "again.h5")


def _written_alike(path: Path, kind: str, again: Path) -> None:
    """Read a file and write what it holds; a tree that is refused then is one that no model has."""
    with read_foreign(path, kind) as checkpoint, contextlib.suppress(ckptfmt.ConversionError):
        write_foreign(checkpoint.tree, again, kind, overwrite=True)
        with read_foreign(again, kind) as other:
            if ckptfmt.digest(other).root != ckptfmt.digest(checkpoint).root:
                raise AssertionError("a tree that was read is not the same when written")


def _build(document: object, path: Path) -> None:
    """Write a file of groups (objects), attributes (in ``@``) and arrays (a list of extents, or a type)."""
    import h5py

    left = _MOST
    with h5py.File(path, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pending: list[tuple[Any, object]] = [(file, document)]
        while pending and left:
            group, node = pending.pop()
            for name, value in node.items() if isinstance(node, dict) else ():
                left = max(0, left - 1)
                try:
                    if name == "@":
                        _set_attributes(group, value)
                    elif isinstance(value, dict):
                        pending.append((group.require_group(name), value))
                    else:
                        group[name] = _array(value)
                except (ValueError, TypeError, KeyError, OSError, RuntimeError, UnicodeError, OverflowError):
                    continue  # h5py cannot write it


def _set_attributes(group: Any, attributes: object) -> None:  # noqa: ANN401 - of h5py
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        group.attrs[name] = np.array([item.encode() for item in value]) if texts else value


def _array(value: object) -> np.ndarray:
    if isinstance(value, str):
        return np.zeros(3, value if value in ("V1", "V2", "S3", "f8", "?", ">i4") else "i8")
    extents = value if isinstance(value, list) else []
    shape = tuple(extent % _SIZE for extent in extents if isinstance(extent, int))[:4]
    return np.ones(shape, "f4")


def _config_seeds(_: Path) -> list[bytes]:
    nested = {"class_name": "Functional", "config": {"name": "m", "layers": [_dense("a", "float32")]}}
    outer = {
        "module": "keras",
        "class_name": "Functional",
        "config": {"layers": [nested, _dense("b", "mixed_bfloat16"), {"module": "keras.src.ops.numpy"}]},
        "compile_config": {"optimizer": {"class_name": "Custom>Adam", "config": {"amsgrad": True}}},
    }
    return [json.dumps(document).encode() for document in (nested, outer)]


def _config(data: bytes, _: Path) -> None:
    config = parse(data.decode("utf-8", "replace"), file="config.json")
    found = layers(config)
    if len({layer.path for layer in found}) != len(found):
        raise AssertionError("two layers in one place")
    for layer in found:
        if layer.dtype is not None and not isinstance(layer.dtype, str):
            raise AssertionError(layer)
    optimizer_of(config)


def _set_seeds(place: Path) -> list[bytes]:
    _set(place)
    groups = {"/a/vars": ["s_00000.weights.h5", "s_00001.weights.h5"], "/vars": "s_00000.weights.h5"}
    return [json.dumps({"metadata": {"total_size": 1.0}, "weight_map": groups}).encode()]


def _set(place: Path) -> Path:
    """Return a folder of two files, made once."""
    folder = place / "set"
    if not folder.exists():
        folder.mkdir()
        one, two = Tensor.of(np.ones(2, "f4")), Tensor.of(np.zeros(3, "f4"))
        first: Tree = {"vars": {0: one}, "a": {"vars": {0: two}}}
        write_foreign(first, folder / "s_00000.weights.h5", "keras-weights")
        write_foreign({"a": {"vars": {1: two}}}, folder / "s_00001.weights.h5", "keras-weights")
    return folder


def _set_index(data: bytes, place: Path) -> None:
    path = _set(place) / "s.weights.json"
    path.write_bytes(data)
    reads_alike(lambda: read_foreign(path, "keras-weights"), place, data)


KERAS = (
    Target("keras-config", _config_seeds, _config, as_json(b"")),
    Target("keras-index", _set_seeds, _set_index, as_json(b""), needs="h5py"),
    Target("keras-layout", _layout_seeds, _layout, as_json(b""), needs="h5py"),
)
