"""Trees for both containers, and the two containers behind one name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.frameworks.flat import npz, safetensors
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (2, 0), (0, 3), (1,), (3,), (2, 4), (2, 3, 4))
KINDS = (*DTYPE_NAMES, "s1", "s5")


def make_tensor(kind: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Return a tensor of random bits, of any type and shape."""
    found = dtype(kind)
    nbytes = found.nbytes(shape)
    data = np.random.default_rng([seed, len(shape), nbytes]).integers(0, 256, nbytes, np.uint8)
    if kind == "bool":
        data &= 1
    spare = nbytes * 8 - int(np.prod(shape, dtype=object)) * found.bits
    if spare:
        data[-1] &= (1 << (8 - spare)) - 1
    return Tensor(found, shape, BytesSource(data.data))


@dataclass(frozen=True)
class Container:
    name: str

    def write(self, tree: Tree, target: Path, *, overwrite: bool = False) -> tuple[Finding, ...]:
        if self.name == "npz":
            return npz.write(tree, target, overwrite=overwrite)
        if self.name == "npz-compressed":
            return npz.write(tree, target, overwrite=overwrite, compressed=True)
        if self.name == "safetensors":
            return safetensors.write(tree, target, overwrite=overwrite)
        return safetensors.write(tree, target, overwrite=overwrite, shard_size=64)

    def read(self, path: Path) -> Checkpoint:
        return npz.read(path) if self.name.startswith("npz") else safetensors.read(path)


@pytest.fixture(params=["npz", "npz-compressed", "safetensors", "safetensors-shards"])
def container(request: pytest.FixtureRequest) -> Container:
    return Container(request.param)
