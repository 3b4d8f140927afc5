"""What a writer would find, without the data: a conversion's findings before anything is at the target.

Large tensors are stood in for by small ones of the same kind, and the writer works in a temporary folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.registry import write_foreign
from ckptfmt.registry.table import NATIVE
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import replaced

if TYPE_CHECKING:
    from ckptfmt.conversion.targets import Options
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["rehearse"]

_STAND_IN = 1 << 16


def rehearse(tree: Tree, options: Options) -> tuple[Finding, ...]:
    """Return what a writer finds, without the data: large tensors are stood in for by small ones.

    A stand-in has the type, the number of dimensions, the ties, and in each dimension a length that is zero,
    odd or even as the original's; writers judge by nothing else. Of several tensors with one finding, another
    may be named.
    """
    if options.to.name == NATIVE:
        return ()
    with tempfile.TemporaryDirectory(prefix="ckptfmt-") as folder:
        return write_foreign(
            replaced(tree, _stand_in),
            Path(folder, "rehearsal"),
            options.to.name,
            codec=options.codec,
            shard_size=options.shard_size,
        )


def _stand_in(tensor: Tensor) -> Tensor:
    if tensor.nbytes <= _STAND_IN:
        return tensor
    shape = tuple(extent if extent < 3 else 2 - extent % 2 for extent in tensor.shape)
    made = Tensor(tensor.dtype, shape, _Zeros(), tag=tensor.tag, identity=tensor.identity)
    return made if made.nbytes <= _STAND_IN else tensor


class _Zeros:
    """Canonical bytes that are all zero."""

    def view(self, start: int, stop: int) -> memoryview | None:
        return memoryview(bytearray(stop - start))

    def readinto(self, start: int, out: memoryview) -> None:
        del start
        out[:] = bytes(len(out))
