"""DTensor and ShardedTensor nodes, as the reader of one file leaves them, to the pieces that its rank holds.

Facts from ``torch/distributed/tensor/_api.py`` and ``_dtensor_spec.py``, and from
``torch/distributed/_shard/sharded_tensor`` (FSDP's sharded state dicts before DTensor). Partial sums and
placements that are not known are refused by their name; nothing is read but the ranks of a mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptfmt.errors import FormatError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.ranks.mesh import Mesh, mesh_of
from ckptfmt.frameworks.pytorch.ranks.placements import Split, held
from ckptfmt.tree.box import Box
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Opaque
from ckptfmt.tree.paths import display
from ckptfmt.tree.pieces import part
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.tree.dtypes import DType
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["DTENSOR", "SHARDED_TENSOR", "Local", "local_of", "local_shards", "rank_of"]

DTENSOR = "torch.distributed.tensor.DTensor"
SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"

_PLACEMENTS = "torch.distributed.tensor.placement_types."
_REPLICATE = _PLACEMENTS + "Replicate"
_SHARDS = (_PLACEMENTS + "Shard", _PLACEMENTS + "_StridedShard")


@dataclass(frozen=True, slots=True)
class Local:
    """What one rank has of a global tensor.

    Attributes
    ----------
    dtype : DType
    shape : tuple of int
        Of the whole.
    pieces : tuple of (Box, Tensor)
        Where each of the rank's pieces lies in the whole.
    rank : int or None
        The rank, where the file tells.
    ranks : tuple of int
        The ranks that have pieces of it, as far as the file tells.
    cls : str
        The class of the node: `DTENSOR` or `SHARDED_TENSOR`, or that of a parameter.
    requires_grad : bool
    """

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[tuple[Box, Tensor], ...]
    rank: int | None
    ranks: tuple[int, ...]
    cls: str
    requires_grad: bool = False


def local_of(node: Tree) -> Local | None:
    """Return what a node says of its rank's share of a tensor; None for any other node.

    Raises
    ------
    FormatError
        It contradicts itself.
    UnsupportedVersionError
        It holds partial sums, or is placed in a way that is not known.
    """
    if not isinstance(node, Opaque):
        return None
    if node.name == DTENSOR:
        return _dtensor(node)
    if node.name == SHARDED_TENSOR:
        return _sharded(node)
    if node.name == keys.PARAMETER:
        args = node.parts.get("args")
        inner = local_of(args[0]) if isinstance(args, tuple) and len(args) == 1 else None
        if inner is not None:
            return replace(inner, cls=keys.PARAMETER, requires_grad=True)
    return None


def local_shards(tree: Tree) -> tuple[Finding, ...]:
    """Return a finding if a tree holds shards of distributed tensors, as the file of one rank does."""
    found = list(_distributed(tree))
    if not found:
        return ()
    path, node = found[0]
    cls = node.name.rpartition(".")[2]
    message = (
        f"{len(found)} tensors are the shards of one rank ({cls}), kept as they are: give a directory with"
        " the files of all ranks, and no other PyTorch file, to have them whole"
    )
    return (Finding("local-shard", display(path), Severity.INFO, message),)


def rank_of(tree: Tree) -> int | None:
    """Return the rank that the first distributed tensor of a tree tells; None where none does."""
    for path, node in _distributed(tree):
        try:
            if node.name == DTENSOR:
                rank = mesh_of(_attributes(_attributes(node).get("_spec")).get("mesh")).rank
            else:
                state = node.parts.get("state")
                rank = _attributes(state[2]).get("global_rank") if isinstance(state, tuple) else None
        except (FormatError, IndexError):
            raise FormatError(
                "a distributed tensor that does not tell its rank", tensor=display(path)
            ) from None
        if type(rank) is int and rank >= 0:
            return rank
    return None


def _distributed(tree: Tree) -> Iterator[tuple[Path, Opaque]]:
    """Yield the distributed tensors of a tree with their paths; what is shared, once."""
    if isinstance(tree, Opaque) and tree.name in (DTENSOR, SHARDED_TENSOR):
        yield (), tree
        return
    seen: set[int] = {id(tree)}
    stack: list[tuple[Path, Iterator[tuple[Key, Tree]]]] = [((), iter(children(tree)))]
    while stack:
        path, below = stack[-1]
        for key, node in below:
            if isinstance(node, Opaque) and node.name in (DTENSOR, SHARDED_TENSOR):
                yield (*path, key), node
            elif not isinstance(node, Tensor) and id(node) not in seen and (inside := children(node)):
                seen.add(id(node))
                stack.append(((*path, key), iter(inside)))
                break
        else:
            stack.pop()


def _wrapper(node: Opaque) -> tuple[tuple[int, ...], bool]:
    """Return the global shape and whether gradients are wanted, from ``_rebuild_wrapper_subclass``."""
    args = node.parts.get("args")
    inside = args[0] if isinstance(args, tuple) and len(args) == 1 else None
    given = inside.parts.get("args") if isinstance(inside, Opaque) else None
    if not isinstance(given, tuple) or len(given) < 8:
        raise FormatError(f"a {node.name} without its size")
    return _shape(given[2]), given[7] is True


def _shape(node: Tree) -> tuple[int, ...]:
    if isinstance(node, tuple | list) and all(type(value) is int and value >= 0 for value in node):
        return tuple(node)  # type: ignore[arg-type] # integers, see above
    raise FormatError("a distributed tensor whose size is no tuple of integers")


def _attributes(node: Tree) -> dict:
    """Return the attributes of an object: its state, or that of an object with slots."""
    state = node.parts.get("state") if isinstance(node, Opaque) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1]
    return state if isinstance(state, dict) else {}


# --- DTensor ---------------------------------------------------------------------------------------------


def _dtensor(node: Opaque) -> Local:
    shape, grad = _wrapper(node)
    attributes = _attributes(node)
    local, spec = attributes.get("_local_tensor"), _attributes(attributes.get("_spec"))
    if not isinstance(local, Tensor):
        raise UnsupportedVersionError("a DTensor whose local part is no plain tensor")
    mesh, placements = mesh_of(spec.get("mesh")), spec.get("placements")
    if not isinstance(placements, tuple) or len(placements) != len(mesh.shape):
        raise FormatError("a DTensor with another number of placements than its mesh has dimensions")
    boxes = () if mesh.coordinate is None else held(shape, _splits(mesh, placements, spec, len(shape)))
    _check_local(local, boxes, shape)
    pieces = tuple((box, part(local, inside)) for box, inside in boxes)
    return Local(local.dtype, shape, pieces, mesh.rank, mesh.ranks, DTENSOR, grad)


def _check_local(local: Tensor, boxes: tuple[tuple[Box, Box], ...], shape: tuple[int, ...]) -> None:
    if not boxes:
        if local.size:
            raise FormatError(f"a local part {local.shape} where the mesh gives its rank nothing")
        return
    last = boxes[-1][1]
    expected = tuple(at + length for at, length in zip(last.offset, last.shape, strict=True))
    if local.shape != expected:
        raise FormatError(f"a local part {local.shape} of {shape} where the mesh gives its rank {expected}")


def _splits(mesh: Mesh, placements: tuple[Tree, ...], spec: dict, ndim: int) -> list[Split]:
    order = _order(spec.get("shard_order"), len(placements))
    made = []
    for axis in order:
        placement = placements[axis]
        name = placement.name if isinstance(placement, Opaque) else str(type(placement).__name__)
        if name == _REPLICATE:
            continue
        if name not in _SHARDS:
            what = name.removeprefix(_PLACEMENTS)
            message = f"its placement on mesh dimension {axis} is {what}, whose global value is in no file"
            raise UnsupportedVersionError(message)
        made.append(_split(_attributes(placement), mesh, axis, ndim))
    return made


def _split(attributes: dict, mesh: Mesh, axis: int, ndim: int) -> Split:
    dim, factor = attributes.get("dim"), attributes.get("split_factor", 1)
    if type(dim) is not int or type(factor) is not int or factor < 1 or mesh.coordinate is None:
        raise FormatError("a shard without a dimension")
    return Split(dim + ndim if dim < 0 else dim, max(1, mesh.shape[axis]), mesh.coordinate[axis], factor)


def _order(node: Tree, count: int) -> list[int]:
    """Return the mesh dimensions in the order in which they cut; theirs where none is recorded."""
    if not isinstance(node, tuple):
        return list(range(count))
    order: list[int] = []
    for entry in node:
        args = entry.parts.get("args") if isinstance(entry, Opaque) else entry
        axes = args[1] if isinstance(args, tuple) and len(args) == 2 else None
        if not isinstance(axes, tuple) or not all(type(axis) is int and 0 <= axis < count for axis in axes):
            raise FormatError("a DTensor with a malformed order of shards")
        order += axes  # type: ignore[arg-type] # integers, see above
    return order + [axis for axis in range(count) if axis not in order]


# --- ShardedTensor ---------------------------------------------------------------------------------------


def _sharded(node: Opaque) -> Local:
    state = node.parts.get("state")
    if not isinstance(state, tuple) or len(state) < 3 or not isinstance(state[0], list):
        raise FormatError("a ShardedTensor without shards")
    metadata, group = _attributes(state[1]), _attributes(state[2])
    shape = _shape(metadata.get("size"))
    rank = group.get("global_rank")
    pieces = tuple(_shard(_attributes(shard)) for shard in state[0])
    kind = pieces[0][1].dtype if pieces else _dtype(metadata)
    return Local(kind, shape, pieces, rank if type(rank) is int else None, _ranks(metadata), SHARDED_TENSOR)


def _shard(attributes: dict) -> tuple[Box, Tensor]:
    tensor, metadata = attributes.get("tensor"), _attributes(attributes.get("metadata"))
    if not isinstance(tensor, Tensor):
        raise UnsupportedVersionError("a shard that is no plain tensor")
    box = Box(_shape(metadata.get("shard_offsets")), _shape(metadata.get("shard_sizes")))
    if tensor.shape != box.shape:
        raise FormatError(f"a shard of shape {tensor.shape} whose metadata says {box.shape}")
    return box, tensor


def _dtype(metadata: dict) -> DType:
    """Return the element type of a tensor of which a rank has nothing."""
    properties = metadata.get("tensor_properties")
    state = properties.parts.get("state") if isinstance(properties, Opaque) else None
    kind = state[0] if isinstance(state, tuple) and state else None
    name = kind.name.removeprefix("torch.") if isinstance(kind, Opaque) else ""
    element = keys.BY_NAME.get(name)
    if element is None:
        raise FormatError("a ShardedTensor without an element type")
    return dtype(element.dtype)


def _ranks(metadata: dict) -> tuple[int, ...]:
    """Return the ranks that the metadata of all shards name."""
    shards = metadata.get("shards_metadata")
    found = set()
    for shard in shards if isinstance(shards, list) else ():
        rank = _attributes(_attributes(shard).get("placement")).get("_rank")
        if type(rank) is int and rank >= 0:
            found.add(rank)
    return tuple(sorted(found))
