"""Tensors and states of PyTorch out of trees. With `live` the only module that imports PyTorch.

Memory is shared where it can be; nothing is cast, nothing is executed. Tags become classes only where those
are Python's, numpy's or PyTorch's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import torch
from torch._utils import _rebuild_nested_tensor, _rebuild_qtensor

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.carried import carry
from ckptfmt.frameworks.pytorch.state import StateBuilder
from ckptfmt.frameworks.pytorch.storages import contiguous
from ckptfmt.tree.nodes import Opaque
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from ckptfmt.tree.nodes import Composite, Tag, Tree

__all__ = ["as_state", "is_lazy", "to_torch"]

_Maker: TypeAlias = "Callable[..., torch.Tensor]"

# These have no types, or types that leave out what they take.
_nested_tensor = cast("_Maker", _rebuild_nested_tensor)
_quantized_tensor = cast("_Maker", _rebuild_qtensor)
_coo_tensor = cast("_Maker", torch.sparse_coo_tensor)
_compressed_tensor = cast("_Maker", torch.sparse_compressed_tensor)
_strided_tensor = cast("_Maker", torch.empty_strided)
_LAZY: dict[str, Callable[..., torch.Tensor]] = {
    f"torch.nn.parameter.{name}": getattr(torch.nn.parameter, name)
    for name in ("UninitializedParameter", "UninitializedBuffer")
}
_typed_storage = cast("Callable[..., object]", torch.storage.TypedStorage)


def to_torch(tensor: Tensor) -> torch.Tensor:
    """Return a tensor of PyTorch over the same memory where that can be, else over a copy.

    Mapped files are shared: changes stay in memory and never reach the file.

    Parameters
    ----------
    tensor : Tensor
        Any shape; its tag is not looked at.

    Returns
    -------
    torch.Tensor
        On the CPU, C-contiguous, of the same type: two ``f4_e2m1fn`` elements are one of
        ``float4_e2m1fn_x2``.

    Raises
    ------
    ConversionError
        PyTorch has no such type; nothing is cast.
    FormatError, StorageError
        The bytes cannot be read, or are not those that were written.
    """
    carried = carry(tensor)
    if carried.change is not None:
        raise ConversionError(f"PyTorch has no elements of {tensor.dtype.name}; nothing is cast")
    kind = getattr(torch, carried.element.name, None)
    if not isinstance(kind, torch.dtype):
        raise ConversionError(f"PyTorch {torch.__version__} has no elements of {tensor.dtype.name} yet")
    if tensor.size == 0:
        return torch.empty(carried.shape, dtype=kind)
    if carried.element.role == "packed":
        codes = np.frombuffer(tensor.bytes(), np.uint8)
        return _shared(codes).view(kind).reshape(carried.shape)
    array = tensor.numpy()
    carrier = {1: "u1", 2: "i2"}.get(array.itemsize)
    if array.dtype.isbuiltin != 1 and carrier is not None:
        return _shared(array.view(carrier)).view(kind)
    return _shared(array)


def _shared(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over an array's memory; over a copy where PyTorch must not or cannot have it."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or not array.flags.aligned:
        array = array.copy()
    return torch.from_numpy(array)


def is_lazy(node: Tree) -> bool:
    """Whether a node is a parameter or buffer of a lazy module, which has no shape and no data yet."""
    return isinstance(node, Opaque) and node.name in _LAZY and node.parts.get("args") in ((True,), (False,))


def as_state(tree: Tree) -> object:
    """Return a tree as plain objects of Python, numpy and PyTorch, as `torch.load` would.

    Tensors share memory as `to_torch` says, ties stay ties, tags become the classes that they name where
    those are Python's, numpy's or PyTorch's. Foreign opaque nodes stay nodes: nothing is executed.

    Parameters
    ----------
    tree : Tree

    Raises
    ------
    ConversionError
        PyTorch has no such type, or a composite contradicts itself.
    """
    return StateBuilder(_Leaves()).build(tree)


class _Leaves:
    """What a tree's own kinds are in PyTorch."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, torch.Tensor] = {}

    def tensor(self, tensor: Tensor, shared: Hashable | None) -> object:
        """Return a tensor, over one memory for each tie, with what its tag says of it."""
        tag = tensor.tag
        if tag is not None and tag.name.startswith("numpy."):
            array = tensor.numpy()
            return array[()] if tag.name == "numpy.scalar" else array
        made = self._shared.get(shared) if shared is not None else None
        if made is None:
            made = to_torch(tensor)
            if shared is not None:
                self._shared[shared] = made
        if tag is None:
            return made.detach()
        try:
            return _classed(made.detach(), tag)
        except RuntimeError as error:
            raise ConversionError(f"a tensor that its {tag.name} contradicts: {error}") from error

    def composite(self, node: Composite, build: Callable[[Tree], object]) -> object:
        """Return what a composite of PyTorch is; other composites as they are."""
        make = _MAKERS.get(node.name)
        if make is None:
            return node
        try:
            return make(node, build)
        except (KeyError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise ConversionError(f"a {node.name} that contradicts itself: {error}") from error

    def opaque(self, node: Opaque) -> object:
        """Return a type, device or layout; other opaque nodes as they are."""
        args = node.parts.get("args")
        if is_lazy(node):
            return _LAZY[node.name](requires_grad=args == (True,))
        if not node.parts:
            return _constant(node.name, (torch.dtype, torch.qscheme, torch.memory_format), node)
        if not isinstance(args, tuple) or not all(type(arg) in (str, int) for arg in args):
            return node
        if node.name == "torch.device":
            return _device(":".join(map(str, args)), node)
        if node.name == "torch.serialization._get_layout" and len(args) == 1:
            return _constant(str(args[0]), (torch.layout,), node)
        return node

    def sequence(self, items: tuple[object, ...], tag: Tag) -> object:
        """Return a torch.Size where the tag says so."""
        return torch.Size(items) if tag.name == "torch.Size" else items  # type: ignore[arg-type] # integers


def _constant(name: str, kinds: tuple[type, ...], node: Opaque) -> object:
    """Return the constant of PyTorch of a name, or the node where there is none of such a kind."""
    found = getattr(torch, name.removeprefix("torch."), None) if name.startswith("torch.") else None
    return found if isinstance(found, kinds) else node


def _device(name: str, node: Opaque) -> object:
    """Return a device, or the node where this PyTorch has no such kind of device."""
    try:
        return torch.device(name)
    except RuntimeError:
        return node


def _classed(made: torch.Tensor, tag: Tag) -> object:
    """Return a tensor with the memory format, class and attributes of its tag, where they are PyTorch's."""
    attributes = tag.attributes
    order = getattr(torch, str(attributes.get("memory_format")), None)
    if isinstance(order, torch.memory_format):
        made = made.contiguous(memory_format=order)
    if tag.name == str(keys.UNTYPED_STORAGE):
        return made.untyped_storage()
    if tag.name.removeprefix("torch.cuda.").removeprefix("torch.") in keys.BY_STORAGE:
        storage = made.untyped_storage()
        return _typed_storage(wrap_storage=storage, dtype=made.dtype, _internal=True)
    grad = attributes.get("requires_grad") is True
    if tag.name == keys.PARAMETER:
        made = torch.nn.Parameter(made, requires_grad=grad)
    elif grad:
        made.requires_grad_()
    state = attributes.get("state")
    if isinstance(state, dict) and tag.name in (keys.PARAMETER, keys.TENSOR):
        for name, value in state.items():
            vars(made)[str(name)] = as_state(value)  # where it stood; no property of a tensor is set
    return made


_Build: TypeAlias = "Callable[[Tree], object]"


def _parts(node: Composite, names: Iterable[str], build: _Build) -> list[torch.Tensor]:
    made = [build(node.parts[name]) for name in names]
    if not all(isinstance(part, torch.Tensor) for part in made):
        raise TypeError("a part is no tensor")
    return made  # type: ignore[return-value] # checked above


def _make_sparse(node: Composite, build: _Build) -> torch.Tensor:
    parts, size = _parts(node, keys.SPARSE_PARTS[node.name], build), node.attributes["size"]
    if node.name == "sparse_coo":
        coalesced = node.attributes.get("is_coalesced")
        return _coo_tensor(*parts, size, is_coalesced=coalesced, check_invariants=True)
    layout = getattr(torch, node.name)
    return _compressed_tensor(*parts, size, layout=layout, check_invariants=True)


def _make_quantized(node: Composite, build: _Build) -> torch.Tensor:
    attributes, values = node.attributes, node.parts["values"]
    element = keys.BY_NAME[str(attributes["dtype"])]
    if not isinstance(values, Tensor) or values.dtype.name != element.dtype:
        raise TypeError(f"values that are not {element.dtype}")
    raw = (
        _shared(np.frombuffer(values.bytes(), np.uint8))
        if values.nbytes
        else torch.empty(0, dtype=torch.uint8)
    )
    kind = getattr(torch, element.name)
    storage = _typed_storage(wrap_storage=raw.untyped_storage(), dtype=kind, _internal=True)
    scheme: tuple[object, ...]
    if attributes["qscheme"] == "per_tensor_affine":
        scheme = (torch.per_tensor_affine, attributes["scale"], attributes["zero_point"])
    else:
        channels = _parts(node, ("scales", "zero_points"), build)
        scheme = (torch.per_channel_affine, *channels, attributes["axis"])
    steps = contiguous(values.shape)
    return _quantized_tensor(
        storage, 0, values.shape, steps, scheme, requires_grad=False, backward_hooks=None
    )


def _make_nested(node: Composite, build: _Build) -> torch.Tensor:
    return _nested_tensor(*_parts(node, ("buffer", "sizes", "strides", "offsets"), build))


def _make_complex_half(node: Composite, build: _Build) -> torch.Tensor:
    return torch.view_as_complex(_parts(node, ("values",), build)[0])


def _make_bits(node: Composite, build: _Build) -> torch.Tensor:
    return _parts(node, ("values",), build)[0].view(getattr(torch, str(node.attributes["dtype"])))


def _make_meta(node: Composite, _: _Build) -> torch.Tensor:
    attributes = node.attributes
    kind = getattr(torch, str(attributes["dtype"]))
    size, stride, grad = (attributes[name] for name in ("size", "stride", "requires_grad"))
    return _strided_tensor(size, stride, dtype=kind, device="meta", requires_grad=grad)


_MAKERS: dict[str, Callable[[Composite, _Build], torch.Tensor]] = {
    **dict.fromkeys(keys.SPARSE_PARTS, _make_sparse),
    keys.QUANTIZED: _make_quantized,
    keys.NESTED: _make_nested,
    keys.COMPLEX_HALF: _make_complex_half,
    keys.BITS: _make_bits,
    keys.META: _make_meta,
}
