"""A DeviceMesh as its pickle has it: a grid of ranks, and which of them wrote the file.

Three forms are understood: a tensor of ranks (``mesh``, before 2.9), and a layout over the ranks of the whole
job, with one shape and stride (2.9) or with axes (2.13). Facts from ``torch/distributed/device_mesh.py``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.tree.nodes import Opaque, Tree
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Mesh", "mesh_of"]

_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mesh:
    """A grid of ranks.

    Attributes
    ----------
    shape : tuple of int
        One length for each dimension of the mesh.
    coordinate : tuple of int or None
        Where the writing rank is; None if it is not in it.
    rank : int or None
        The writing rank, where the mesh tells.
    ranks : tuple of int
        All ranks of the mesh, sorted; those of the writer's part where there are several of its kind.
    """

    shape: tuple[int, ...]
    coordinate: tuple[int, ...] | None
    rank: int | None
    ranks: tuple[int, ...]


def mesh_of(node: Tree) -> Mesh:
    """Return the mesh that a node describes.

    Raises
    ------
    FormatError
        It describes none.
    LimitError
        It has more than 2^20 ranks.
    """
    state = node.parts.get("state") if isinstance(node, Opaque) else None
    if not isinstance(state, dict):
        raise FormatError("a device mesh without a state")
    coordinate = _ints(state.get("_coordinate_on_dim"))
    rank = state.get("_rank")
    grid = state.get("mesh")
    if isinstance(grid, Tensor):
        mesh = _from_grid(_numbers(grid), coordinate)
    else:
        mesh = _from_layout(_axes(state.get("_layout")), state, coordinate)
    if coordinate is not None and not _inside(coordinate, mesh.shape):
        raise FormatError(f"coordinate {coordinate} lies outside of a mesh of shape {mesh.shape}")
    if type(rank) is int and mesh.rank is None:
        return Mesh(mesh.shape, mesh.coordinate, rank, mesh.ranks)
    return mesh


def _from_grid(grid: np.ndarray, coordinate: tuple[int, ...] | None) -> Mesh:
    ranks = tuple(sorted(grid.reshape(-1).tolist()))
    own = None
    if coordinate is not None and _inside(coordinate, grid.shape):
        own = int(grid[coordinate])
    return Mesh(grid.shape, coordinate, own, ranks)


_Axis = tuple[tuple[int, ...], tuple[int, ...]]


def _from_layout(axes: list[_Axis], state: dict, coordinate: tuple[int, ...] | None) -> Mesh:
    shape = tuple(math.prod(lengths) for lengths, _ in axes)
    if math.prod(shape) > _MOST_RANKS:
        raise LimitError(f"a device mesh of shape {shape}")
    ranks = _rank_map(state)
    rank = state.get("_rank")
    own = rank if type(rank) is int else None
    if coordinate is None or not _inside(coordinate, shape) or ranks is None or own not in ranks:
        return Mesh(shape, coordinate, own, () if own is None else (own,))
    steps = [_offsets(axis) for axis in axes]
    base = ranks.index(own) - sum(step[at] for step, at in zip(steps, coordinate, strict=True))
    places = [base + sum(parts) for parts in itertools.product(*steps)]
    if not all(0 <= place < len(ranks) for place in places):
        raise FormatError("a device mesh that reaches beyond its ranks")
    return Mesh(shape, coordinate, own, tuple(sorted(ranks[place] for place in places)))


def _offsets(axis: _Axis) -> list[int]:
    """Return how far each coordinate along an axis is from the first, in ranks of the whole job."""
    lengths, strides = axis
    steps = [[at * stride for at in range(length)] for length, stride in zip(lengths, strides, strict=True)]
    return [sum(parts) for parts in itertools.product(*steps)]


def _axes(layout: Tree) -> list[_Axis]:
    state = layout.parts.get("state") if isinstance(layout, Opaque) else None
    if not isinstance(state, dict):
        raise FormatError("a device mesh without a grid of ranks")
    nodes = state.get("axes")
    if isinstance(nodes, tuple | list):
        return [_axis(_state(node)) for node in nodes]
    lengths, strides = state.get("shape"), state.get("stride")
    if isinstance(lengths, int) and isinstance(strides, int):
        lengths, strides = (lengths,), (strides,)
    if not isinstance(lengths, tuple) or not isinstance(strides, tuple):
        raise FormatError("a layout of a device mesh without shape and stride")
    pairs = zip(lengths, strides, strict=False)
    return [_axis({"shape": length, "stride": stride}) for length, stride in pairs]


def _state(node: Tree) -> Tree:
    return node.parts.get("state") if isinstance(node, Opaque) else None


def _axis(state: Tree) -> _Axis:
    if isinstance(state, dict):
        lengths, strides = (_ints(_as_tuple(state.get(name))) for name in ("shape", "stride"))
        if lengths is not None and strides is not None and len(lengths) == len(strides):
            if math.prod(lengths) > _MOST_RANKS:
                raise LimitError(f"a device mesh with an axis of {lengths}")
            return lengths, strides
    raise FormatError("an axis of a device mesh without shape and stride")


def _as_tuple(node: Tree) -> Tree:
    return (node,) if type(node) is int else node


def _rank_map(state: dict) -> list[int] | None:
    """Return the ranks of the whole job in the order that a layout counts them in."""
    flat = _ints(state.get("_flatten_rank_map"))
    if flat is not None:
        return list(flat)
    node = state.get("_rank_map")
    return _numbers(node).reshape(-1).tolist() if isinstance(node, Tensor) else None


def _numbers(node: Tensor) -> np.ndarray:
    if node.dtype.name not in ("i32", "i64") or node.size > _MOST_RANKS:
        raise FormatError(f"a device mesh of {node.dtype} {node.shape}")
    return node.numpy()


def _inside(coordinate: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(coordinate) == len(shape) and all(
        at < length for at, length in zip(coordinate, shape, strict=True)
    )


def _ints(node: Tree) -> tuple[int, ...] | None:
    """Return a tuple or list of non-negative integers as a tuple, or None for anything else."""
    if isinstance(node, tuple | list) and all(type(value) is int and value >= 0 for value in node):
        return tuple(node)  # type: ignore[arg-type] # integers, see above
    return None
