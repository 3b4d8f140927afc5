"""What tests of several folders need: the environments and the real programs that they compare with.

A fixture that cannot give what it promises skips the test with a reason that names what is missing; `make
test` installs all of it and prints every skip.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for `tools`; at the end, so that the installed package is the one that is tested


@pytest.fixture(scope="session")
def examples_data() -> Path:
    """The folder of checkpoints that ship with the examples."""
    return ROOT / "examples" / "data"


@pytest.fixture(scope="session")
def old_safetensors() -> Path:
    """The Python of an environment that holds safetensors 0.4.1 and numpy, and no ckptfmt."""
    python = ROOT / ".venv-safetensors-0.4.1" / "bin" / "python"
    if not python.exists():
        pytest.skip("the environment .venv-safetensors-0.4.1 is not there; `make test` makes it")
    return python


@pytest.fixture(scope="session")
def chainer() -> ModuleType:
    """The real Chainer 7.8.1, made to import with the numpy of today."""
    if not hasattr(np, "sctypes"):
        np.sctypes = _scalar_types()  # type: ignore[attr-defined, unused-ignore]  # noqa: NPY201
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is of 2019 and uses what has been deprecated since
        pytest.importorskip("pkg_resources", reason="Chainer needs setuptools<81; `make test` installs it")
        pytest.importorskip(
            "chainer", reason="Chainer 7.8.1 is not installed; `make test` does, on Python 3.11"
        )
        return importlib.import_module("chainer")


def _scalar_types() -> dict[str, list[type]]:
    """Return what numpy 1 kept as `numpy.sctypes`, which Chainer reads when it is imported."""
    return {
        "int": [np.int8, np.int16, np.int32, np.int64],
        "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
        "float": [np.float16, np.float32, np.float64],
        "complex": [np.complex64, np.complex128],
        "others": [bool, object, bytes, str, np.void],
    }
