"""NPZ files of the real Chainer 7.8.1 are read as they are, and it reads ours."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.framework


@pytest.fixture(autouse=True)
def _old_numpy_idioms() -> object:
    """Chainer is of 2019; what it warns about is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def chain(chainer: ModuleType, seed: int) -> object:
    """A chain with a trained batch normalisation and a layer that was never called, so that W is None."""
    links = chainer.links
    np.random.seed(seed)  # noqa: NPY002 - Chainer's initialisers use it
    model = chainer.Chain()
    with model.init_scope():
        model.conv = links.Convolution2D(3, 4, 3)
        model.norm = links.BatchNormalization(4)
        model.fresh = links.Linear(None, 5)
    model.norm(model.conv(np.ones((2, 3, 8, 8), "f4")))
    return model


@pytest.mark.parametrize("compression", [True, False])
def test_what_chainer_saved_is_read_bit_for_bit(
    tmp_path: Path, chainer: ModuleType, *, compression: bool
) -> None:
    model = chain(chainer, 0)
    chainer.serializers.save_npz(tmp_path / "m.npz", model, compression=compression)
    with np.load(tmp_path / "m.npz", allow_pickle=True) as judge, ckptfmt.read(tmp_path / "m.npz") as found:
        assert isinstance(found.tree, dict)
        assert set(found.tree) == set(judge.files)
        tensors = found.tensors()
        for name in judge.files:
            if judge[name].dtype == object:
                assert judge[name][()] is None
                assert found[name] is None
            else:
                tensor = found[name]
                assert isinstance(tensor, ckptfmt.Tensor)
                assert tensor.numpy().dtype == judge[name].dtype
                assert tensor.numpy().tobytes() == judge[name].tobytes()
        assert len(tensors) + sum(judge[name].dtype == object for name in judge.files) == len(judge.files)
        assert found["fresh/W"] is None


def test_chainer_loads_what_went_through_our_format(tmp_path: Path, chainer: ModuleType) -> None:
    chainer.serializers.save_npz(tmp_path / "m.npz", chain(chainer, 0))
    ckptfmt.convert(tmp_path / "m.npz", tmp_path / "c", to="ckptfmt")
    ckptfmt.convert(tmp_path / "c", tmp_path / "back.npz")
    other = chain(chainer, 1)
    # Not strict: what was None has no member of its own in an archive that we write.
    chainer.serializers.load_npz(tmp_path / "back.npz", other, strict=False)
    chainer.serializers.save_npz(tmp_path / "again.npz", other)
    with ckptfmt.read(tmp_path / "m.npz") as one, ckptfmt.read(tmp_path / "again.npz") as two:
        assert ckptfmt.compare(one, two).equal
