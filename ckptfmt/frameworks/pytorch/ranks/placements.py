"""Which elements of a global tensor a rank holds, by mesh and placements.

The arithmetic of ``torch/distributed/tensor/placement_types.py``: a dimension is cut as ``torch.chunk`` cuts
it, in the order in which the mesh dimensions come. Pure arithmetic; nothing is read.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.tree.box import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_BOXES", "Split", "held"]

MAX_BOXES = 1 << 16
"""Boxes that a rank may hold of one tensor."""

Runs: TypeAlias = "list[tuple[int, int]]"  # half-open ranges of one dimension, in the order of the shard


@dataclass(frozen=True, slots=True)
class Split:
    """One cut of one dimension.

    Attributes
    ----------
    dim : int
        Of the tensor.
    count : int
        The ranks that share it, one after the other.
    index : int
        Which of them this is.
    factor : int
        For cuts that come after others in meaning and before them in order (``_StridedShard``): into how many
        parts the dimension is cut first, each of which is shared by all.
    """

    dim: int
    count: int
    index: int
    factor: int = 1


def held(shape: Sequence[int], splits: Sequence[Split]) -> tuple[tuple[Box, Box], ...]:
    """Return what a rank holds: boxes of the global tensor, each with its box of the rank's own tensor.

    Parameters
    ----------
    shape : sequence of int
        Of the global tensor.
    splits : sequence of Split
        In the order in which they are made.

    Raises
    ------
    FormatError
        A split is of a dimension that the tensor has not.
    LimitError
        There are more than `MAX_BOXES`.
    """
    dimensions: list[Runs] = [[(0, length)] if length else [] for length in shape]
    for split in splits:
        if not 0 <= split.dim < len(shape):
            raise FormatError(f"a shard along dimension {split.dim} of a tensor of {len(shape)}")
        dimensions[split.dim] = _cut(dimensions[split.dim], split)
    if math.prod(map(len, dimensions)) > MAX_BOXES:
        raise LimitError("a rank's shard lies in too many places")
    placed = [_placed(runs) for runs in dimensions]
    return tuple(
        (
            Box(tuple(start for start, _, _ in parts), tuple(length for _, length, _ in parts)),
            Box(tuple(at for _, _, at in parts), tuple(length for _, length, _ in parts)),
        )
        for parts in itertools.product(*placed)
    )


def _placed(runs: Runs) -> list[tuple[int, int, int]]:
    """Return the start, length and place within the shard of each run."""
    made, at = [], 0
    for start, stop in runs:
        made.append((start, stop - start, at))
        at += stop - start
    return made


def _cut(runs: Runs, split: Split) -> Runs:
    total = sum(stop - start for start, stop in runs)
    step = -(-total // split.factor)
    firsts = range(0, total, step) if step else range(0)
    if len(firsts) * max(1, len(runs)) > MAX_BOXES:
        raise LimitError("a rank's shard lies in too many places")
    made: Runs = []
    for first in firsts:
        length = min(step, total - first)
        each = -(-length // split.count)
        low, high = (min(length, each * index) for index in (split.index, split.index + 1))
        made += _between(runs, first + low, first + high)
    return made


def _between(runs: Runs, low: int, high: int) -> Runs:
    """Return the elements [`low`, `high`) of runs, counted through all of them."""
    made, at = [], 0
    for start, stop in runs:
        first, last = max(low - at, 0), min(high - at, stop - start)
        if first < last:
            made.append((start + first, start + last))
        at += stop - start
    return made
