"""The real TensorFlow and both Keras, imported once, without what they say about themselves."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

Module: TypeAlias = Any  # modules without types


def _imported(name: str, extra: str) -> Module:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns about when it is imported is not ours
        pytest.importorskip(name, reason=f"needs {extra}")
        return importlib.import_module(name)


@pytest.fixture(scope="session")
def tf() -> Module:
    return _imported("tensorflow", "TensorFlow (the extra `tensorflow`)")


@pytest.fixture
def keras(tf: Module) -> Iterator[Module]:
    module = _imported("keras", "Keras 3 (the extra `tensorflow`)")
    if module.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, about numpy and about models without a loss
        module.utils.clear_session()
        yield module
    assert tf is not None


@pytest.fixture
def tf_keras(tf: Module) -> Iterator[Module]:
    module = _imported("tf_keras", "tf-keras; `make test` installs it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.backend.clear_session()
        yield module
    assert tf is not None


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden checkpoints of objects and of variables by name."""
    return Path(__file__).resolve().parents[2] / "golden" / "tensorflow" / "2.21" / "objects"
