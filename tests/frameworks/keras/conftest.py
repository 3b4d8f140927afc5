"""Golden files of Keras and what Keras itself read from them; the real libraries, imported once."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.tree.nodes import Tree

Module: TypeAlias = Any  # modules without types
Described: TypeAlias = "tuple[str, list[int], str]"

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "keras"
FILES = sorted(
    f"{folder.name}/{path.name}"
    for folder in GOLDEN.iterdir()
    for path in folder.iterdir()
    if path.name not in ("MANIFEST.toml", "expected.json") and "sharded_" not in path.name
)


def described(node: Tree) -> Described:
    """Return type, shape and SHA-256 of a tensor, as the golden files record them."""
    assert isinstance(node, Tensor)
    array = node.numpy()
    return str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()


def expected(file: str) -> dict[str, list[list[Any]]]:
    """Return what Keras read from a golden file: ``weights``, ``optimizer`` and perhaps ``variables``."""
    folder, _, name = file.partition("/")
    found: dict[str, list[list[Any]]] = json.loads((GOLDEN / folder / "expected.json").read_text())[name]
    return found


@pytest.fixture(autouse=True)
def _h5py() -> None:
    pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra hdf5)")


def _imported(name: str) -> Module:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns about when it is imported is not ours
        pytest.importorskip("tensorflow", reason="needs TensorFlow (the extra tensorflow)")
        pytest.importorskip(name, reason=f"needs {name}; `make test` installs it")
        return importlib.import_module(name)


@pytest.fixture(params=["keras", "tf_keras"])
def both(request: pytest.FixtureRequest) -> Iterator[Module]:
    """Keras 3, and tf-keras, which is Keras 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their own, about numpy and about .h5 being old
        yield _imported(request.param)


@pytest.fixture
def keras() -> Iterator[Module]:
    """Keras 3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield _imported("keras")
