"""PyTorch's objects in memory, to a tree and back. With `objects` the only module that imports PyTorch.

Tensors on the CPU are handed over without a copy, in both directions, where their memory is theirs to share;
nothing is ever cast. What a file of `torch.save` gives when it is read and what the same objects give here
are equal trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch._tensor import _rebuild_from_type_v2
from torch._utils import _get_obj_state, _rebuild_tensor_v2, _rebuild_tensor_v3

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.carried import carry
from ckptfmt.frameworks.pytorch.objects import as_state, is_lazy, to_torch
from ckptfmt.frameworks.pytorch.restoring import ObjectRestoration
from ckptfmt.frameworks.pytorch.storages import Strides
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.nodes import Composite, Opaque, Tag, Tree, tag_of, tagged
from ckptfmt.tree.source import ArraySource, BytesSource
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.tree.paths import Key

__all__ = ["adapt", "as_state", "capture", "parameter_names", "restore", "to_torch"]

_State: TypeAlias = "dict[str, Any]"  # as PyTorch's own stubs have it
_Reduce: TypeAlias = "Callable[[int], tuple[Any, ...]]"

_STATEFUL = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
_DENSE_MAKERS = frozenset({_rebuild_tensor_v2, _rebuild_tensor_v3})
_state_of = cast("Callable[[torch.Tensor], object]", _get_obj_state)


class _Memory:
    """The identity of a tensor in memory; keeps the memory, so that no other tensor can come to lie there."""

    __slots__ = ("_key", "_storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = tensor.untyped_storage()
        place = (str(tensor.device), self._storage.data_ptr(), tensor.storage_offset())
        view = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
        self._key = (*place, *view)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Memory) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


# --- to a tree -------------------------------------------------------------------------------------------


def capture(obj: object) -> Tree:
    """Return the tree of a tensor, parameter, module, optimizer, or any containers of such.

    A module or optimizer stands for its ``state_dict()``. CPU memory is shared, not copied: save before
    training goes on, or give copies. Tensors of other devices are copied to the CPU.

    Parameters
    ----------
    obj : object

    Raises
    ------
    TreeError
        A value cannot be kept; the message names its path.
    """
    return as_tree(obj, adapt=adapt)[0]


def adapt(value: object) -> object:
    """Return what stands for one of PyTorch's objects in a tree, or NotImplemented for any other object.

    Containers may hold more of PyTorch's objects, for `ckptfmt.tree.capture.as_tree` to ask about.
    """
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, _STATEFUL):
        return value.state_dict()
    if isinstance(value, torch.Size):
        return tagged(tuple(value), Tag("torch.Size"))
    if isinstance(value, torch.dtype | torch.qscheme | torch.memory_format):
        return Opaque(str(value), {})
    if isinstance(value, torch.device):
        return Opaque("torch.device", {"args": value.__reduce__()[1], "state": None})
    if isinstance(value, torch.layout):
        return Opaque("torch.serialization._get_layout", {"args": (str(value),), "state": None})
    if isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
        return _storage(value)
    return NotImplemented


def _storage(value: torch.UntypedStorage | torch.storage.TypedStorage) -> Tensor:
    if isinstance(value, torch.UntypedStorage):
        untyped, kind, name = value, keys.BY_NAME["uint8"], str(keys.UNTYPED_STORAGE)
    else:
        untyped, kind = value._untyped_storage, _element_of(value.dtype)  # noqa: SLF001 - the public way warns
        name = f"torch.{kind.storage}"
    shown = kind if kind.role == "plain" else keys.BY_NAME["uint8"]
    view = torch.empty(0, dtype=getattr(torch, shown.name), device=untyped.device)
    count = untyped.nbytes() // shown.width
    node = _dense(view.set_(untyped, 0, (count,), (1,)))
    node.tag = Tag(name)
    return node


def _element_of(kind: torch.dtype) -> ElementType:
    name = str(kind).removeprefix("torch.")
    element = keys.BY_NAME.get(name)
    if element is None:
        raise ConversionError(f"tensors of {kind} cannot be kept")
    return element


def _tensor(value: torch.Tensor) -> object:
    cls = type(value)
    if torch.nn.parameter.is_lazy(value):  # no data yet; its file has no more
        return Opaque(f"{cls.__module__}.{cls.__qualname__}", {"args": (value.requires_grad,), "state": None})
    if cls not in (torch.Tensor, torch.nn.Parameter):
        return _subclass(value)
    node = _plain(value)
    state = _state_of(value)
    if cls is torch.nn.Parameter:
        return _dressed(node, keys.PARAMETER, {"requires_grad": value.requires_grad}, state)
    if value.requires_grad and isinstance(node, Tensor):
        own = {} if node.tag is None else node.tag.attributes
        node.tag = Tag(keys.TENSOR, {"requires_grad": True, **own})
    return _dressed(node, keys.TENSOR, {}, state) if state else node


def _subclass(value: torch.Tensor) -> object:
    """Return a tensor of another class as its pickle would describe it."""
    recipe = cast("_Reduce", value.__reduce_ex__)(2)
    if recipe[0] is not _rebuild_from_type_v2:
        return _plain(value)  # PyTorch itself does not keep such a class
    maker, cls, args, state = recipe[1]
    name = f"{cls.__module__}.{cls.__qualname__}"
    if maker in _DENSE_MAKERS:
        return _dressed(_plain(value.as_subclass(torch.Tensor)), name, {}, state)
    inside = Opaque(f"{maker.__module__}.{maker.__name__}", {"args": args, "state": None})
    return Opaque(name, {"args": (inside,), "state": state})


def _dressed(node: Tensor | Composite, cls: str, attributes: dict[Key, Tree], state: object) -> object:
    """Return a node with its class, as the reader of files does it."""
    more = as_tree(state, adapt=adapt)[0] if state else {}
    if not isinstance(node, Tensor):
        return node if not state else Opaque(cls, {"args": (node,), "state": more})
    if not isinstance(more, dict) or survey(more):
        return Opaque(cls, {"args": (node,), "state": more})
    own = {} if node.tag is None else node.tag.attributes
    attributes = {**own, **attributes}
    if more:
        attributes["state"] = more
    node.tag = Tag(cls, attributes)
    return node


def _plain(value: torch.Tensor) -> Tensor | Composite:
    """Return the node of a tensor without regard to its class."""
    value = value.detach()
    if value.is_meta:
        return _meta(value)
    if value.layout is not torch.strided:
        return _sparse(value)
    if value.is_quantized:
        return _quantized(value)
    if value.is_nested:
        methods = {
            "buffer": "values",
            "sizes": "_nested_tensor_size",
            "strides": "_nested_tensor_strides",
            "offsets": "_nested_tensor_storage_offsets",
        }
        return _composite(keys.NESTED, {}, {part: getattr(value, name)() for part, name in methods.items()})
    element = _element_of(value.dtype)
    if element.role == "bits":
        carrier = torch.int16 if element.width == 2 else torch.uint8
        codes = _numpy(value.view(carrier)).view(dtype(element.dtype).numpy)
        return Composite(keys.BITS, {"dtype": element.name}, {"values": Tensor.of(codes)})
    if element.role == "complex-half":
        return _composite(keys.COMPLEX_HALF, {}, {"values": torch.view_as_real(value.resolve_conj())})
    return _dense(value)


def _composite(name: str, attributes: dict[Key, Tree], parts: dict[str, object]) -> Composite:
    """Return a composite whose parts may still be PyTorch's tensors."""
    return Composite(name, attributes, cast("dict[Key, Tree]", parts))


def _numpy(value: torch.Tensor) -> np.ndarray:
    """Return a tensor's elements; shared where they lie on the CPU and are what they seem, else read-only."""
    array: np.ndarray = value.resolve_conj().resolve_neg().cpu().numpy()
    if array.size and array.__array_interface__["data"][0] != value.data_ptr():
        array.flags.writeable = False  # nobody would see what is written to a copy
    return array


def _dense(value: torch.Tensor) -> Tensor:
    element = _element_of(value.dtype)
    kind = dtype(element.dtype)
    identity = _Memory(value) if value.numel() else None
    strides = Strides(0, tuple(value.shape), value.stride())
    order = strides.memory_format
    tag = None if order is None else Tag(keys.TENSOR, {"memory_format": order})
    if element.role == "packed":
        codes = _numpy(value.view(torch.uint8))
        shape = (*value.shape[:-1], 2 * value.shape[-1]) if value.ndim else (2,)
        return Tensor(kind, shape, ArraySource(codes, dtype("u8")), identity=identity)
    carrier = {1: torch.uint8, 2: torch.int16}.get(element.width)
    if kind.numpy.isbuiltin != 1 and carrier is not None:
        array = _numpy(value.view(carrier)).view(kind.numpy)
    else:
        array = _numpy(value)
    return Tensor(kind, array.shape, ArraySource(array, kind), tag=tag, identity=identity)


def _meta(value: torch.Tensor) -> Composite:
    attributes: dict[Key, Tree] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "size": tuple(value.shape),
        "stride": tuple(value.stride()),
        "requires_grad": value.requires_grad,
    }
    return Composite(keys.META, attributes, {})


def _sparse(value: torch.Tensor) -> Composite:
    name = str(value.layout).removeprefix("torch.")
    names = keys.SPARSE_PARTS.get(name)
    if names is None:
        raise ConversionError(f"tensors of layout {value.layout} cannot be kept")
    under = "_" if name == "sparse_coo" else ""
    attributes: dict[Key, Tree] = {"size": tuple(value.shape)}
    if under:
        attributes["is_coalesced"] = value.is_coalesced()
    return _composite(name, attributes, {part: getattr(value, under + part)() for part in names})


def _quantized(value: torch.Tensor) -> Composite:
    element = _element_of(value.dtype)
    kind = dtype(element.dtype)
    per_tensor = value.qscheme() is torch.per_tensor_affine
    scheme = "per_tensor_affine" if per_tensor else "per_channel_affine"  # float zero points too, as in files
    attributes: dict[Key, Tree] = {"dtype": element.name, "qscheme": scheme}
    if kind.packed:
        raw = bytes(value.contiguous().cpu().untyped_storage())[: kind.nbytes(value.shape)]
        codes: object = Tensor(kind, tuple(value.shape), BytesSource(memoryview(raw)))
    else:
        codes = value.int_repr()
    if per_tensor:
        attributes |= {"scale": value.q_scale(), "zero_point": value.q_zero_point()}
        return _composite(keys.QUANTIZED, attributes, {"values": codes})
    attributes["axis"] = value.q_per_channel_axis()
    parts = {"scales": value.q_per_channel_scales(), "zero_points": value.q_per_channel_zero_points()}
    return _composite(keys.QUANTIZED, attributes, {"values": codes, **parts})


def parameter_names(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> list[list[str]]:
    """Return the names of an optimizer's parameters, a list for each of its groups.

    They are what `ckptfmt.frameworks.pytorch.optimizers.named_optimizer` asks for. A parameter with several
    names has the first.

    Raises
    ------
    ConversionError
        A parameter is none of the module's.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
    if any(name is None for group in groups for name in group):
        message = "the optimizer has a parameter that is none of the module's"
        raise ConversionError(message)
    return [[name for name in group if name is not None] for group in groups]


# --- back into objects -----------------------------------------------------------------------------------


def restore(tree: Tree, target: object) -> None:
    """Put a tree into a module, an optimizer, a tensor, or containers of such, in place.

    Everything is checked before anything is changed: all names, shapes and types must be the same.
    The state of an optimizer keeps its types, which PyTorch's own ``load_state_dict`` would cast to
    those of the parameters.

    Parameters
    ----------
    tree : Tree
        What `capture` of an equal object, or a reader of its file, returned.
    target : object
        A module, optimizer, scheduler, scaler, tensor, numpy array, or a dict or list of such. Other values
        in a dict or list are replaced.

    Raises
    ------
    ConversionError
        Something is missing, unexpected, or of another shape or type; the message lists all of it.
    """
    restoration = ObjectRestoration(_Objects())
    if not restoration.plan(tree, target):
        raise ConversionError(f"a {type(target).__name__} cannot be restored in place")
    with torch.no_grad():
        restoration.run()


def _spec(value: object) -> str:
    """Return the type and shape of a tensor of PyTorch, as they are compared."""
    tensor = cast("torch.Tensor", value)
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


class _Objects:
    """PyTorch's objects, as far as restoring has to know them."""

    def is_tensor(self, target: object) -> bool:
        """Whether it is a tensor with a shape; lazy parameters have none yet."""
        return isinstance(target, torch.Tensor) and not torch.nn.parameter.is_lazy(target)

    def mismatch(self, node: Tree, target: object) -> str | None:
        """Compare types and shapes."""
        wanted = _spec(target)
        if isinstance(node, Tensor):
            carried = carry(node)
            found = f"{carried.element.name if carried.change is None else node.dtype.name} {carried.shape}"
        elif isinstance(node, Composite):
            made = as_state(node)
            if not isinstance(made, torch.Tensor):
                return f"a {node.name} where {wanted} must be"
            found = _spec(made)
        else:
            return f"a {type(node).__name__} where {wanted} must be"
        return None if found == wanted else f"{found} where {wanted} must be"

    def fill(self, node: Tree, target: object) -> None:
        """Copy into a tensor, on whatever device it lies."""
        source = to_torch(node) if isinstance(node, Tensor) else as_state(node)
        cast("torch.Tensor", target).copy_(cast("torch.Tensor", source))

    def state(self, target: object) -> Mapping[str, object] | None:
        """Return a module's own state; of others any state will do."""
        if isinstance(target, torch.nn.Module):
            return target.state_dict()
        return {} if isinstance(target, _STATEFUL) else None

    def optional(self, node: Tree, name: str) -> bool:
        """Whether a batch norm of PyTorch before 0.4.1 had no such name."""
        tag = tag_of(node)
        metadata = None if tag is None else tag.attributes.get("_metadata")
        prefix, _, last = name.rpartition(".")
        if last != "num_batches_tracked":
            return False
        own = metadata.get(prefix) if isinstance(metadata, dict) else None
        version = own.get("version") if isinstance(own, dict) else None
        return not isinstance(version, int) or version < 2

    def problems(self, node: Tree, target: object) -> list[str]:
        """Compare an optimizer's groups of parameters, and what a module's lazy parameters would take."""
        if isinstance(target, torch.nn.Module):
            return _lazy_problems(cast("Mapping[str, Tree]", node), target)
        if not isinstance(target, torch.optim.Optimizer):
            return []
        groups = node.get("param_groups") if isinstance(node, dict) and "state" in node else None
        if not isinstance(groups, list):
            return ["no state of an optimizer"]
        members = [group.get("params") if isinstance(group, dict) else None for group in groups]
        found = [len(params) if isinstance(params, list) else 0 for params in members]
        wanted = [len(group["params"]) for group in target.param_groups]
        return [] if found == wanted else [f"groups of {found} parameters where {wanted} must be"]

    def load(self, node: Tree, target: object) -> None:
        """Give an object its state."""
        state = cast("_State", as_state(node))
        if isinstance(target, torch.optim.Optimizer):
            target.load_state_dict(state)
            _put_back(state, target)
        elif isinstance(target, torch.nn.Module):
            target.load_state_dict(state, strict=True)
        else:
            target.load_state_dict(state)  # type: ignore[attr-defined] # one of _STATEFUL

    def value(self, node: Tree) -> object:
        """Return a node as a plain object with memory of its own."""
        return _owned(as_state(node), None)


def _lazy_problems(node: Mapping[str, Tree], module: torch.nn.Module) -> list[str]:
    """Return what no parameter without a shape can take: they take tensors, and what has no shape either."""
    lazy = [name for name, value in module.state_dict().items() if torch.nn.parameter.is_lazy(value)]
    found = {name: node[name] for name in lazy if name in node}
    return [
        f"{name}: a {type(child).__name__} where a tensor must be"
        for name, child in found.items()
        if not isinstance(child, Tensor | Composite) and not is_lazy(child)
    ]


def _put_back(state: _State, optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer the very tensors of its state: PyTorch has cast them to the parameters' types."""
    order = [index for group in state["param_groups"] for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip(order, parameters, strict=True):
        for name, value in state["state"].get(index, {}).items():
            own = optimizer.state[parameter]
            own[name] = _owned(value, own.get(name))


def _owned(value: object, like: object) -> object:
    """Return a value whose tensors have memory of their own, on the device of their counterpart."""
    if isinstance(value, torch.Tensor):
        device = like.device if isinstance(like, torch.Tensor) else value.device
        return value.clone().to(device)
    if isinstance(value, dict) and type(value) is dict:
        others = like if isinstance(like, dict) else {}
        return {key: _owned(part, others.get(key)) for key, part in value.items()}
    if isinstance(value, list):
        items = like if isinstance(like, list) and len(like) == len(value) else [None] * len(value)
        return [_owned(part, other) for part, other in zip(value, items, strict=True)]
    return value
