from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import ConversionError, MissingExtraError, UnknownFormatError
from ckptfmt.registry import adapt, read_foreign, write_foreign

if TYPE_CHECKING:
    from pathlib import Path


class OfTorch:
    """Stands for a tensor of a torch that is not there."""

    __module__ = "torch._fake"


class Derived(OfTorch):
    __module__ = "users_own"


@pytest.mark.parametrize("value", [1, "text", np.ones(2), object(), {}, OfTorch])
def test_values_of_no_framework_are_left_alone(value: object) -> None:
    assert adapt(value) is NotImplemented


@pytest.mark.parametrize("kind", [OfTorch, Derived])
def test_an_object_of_a_framework_that_is_not_installed_names_the_extra(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "ckptfmt.frameworks.pytorch.live", raising=False)
    with pytest.raises(MissingExtraError, match=r"ckptfmt\[torch\]"):
        adapt(kind())


@pytest.mark.framework
def test_a_real_torch_tensor_becomes_a_tensor() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    made = adapt(torch.arange(3, dtype=torch.int16))
    assert np.asarray(made).tolist() == [0, 1, 2]
    parameter = torch.nn.Parameter(torch.ones(2))
    assert np.asarray(adapt(parameter)).tolist() == [1.0, 1.0]


def test_our_own_format_is_not_a_foreign_one(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="load and save"):
        read_foreign(tmp_path, "ckptfmt")
    with pytest.raises(ConversionError, match="load and save"):
        write_foreign({}, tmp_path / "x", "ckptfmt")


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="'gguf'"):
        read_foreign(tmp_path, "gguf")


def test_options_that_a_format_has_not_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "x.npz"
    with pytest.raises(ConversionError, match="'zstd'"):
        write_foreign({}, target, "npz", codec="zstd")
    with pytest.raises(ConversionError, match="one file"):
        write_foreign({}, target, "npz", shard_size=10)
    with pytest.raises(ConversionError, match="cannot have 0 bytes"):
        write_foreign({}, target, "safetensors", shard_size=0)
    assert list(tmp_path.iterdir()) == []
