"""The calls by which PyTorch's pickles make tensors, to tensors and composites of a tree.

Exact names only (``torch/_utils.py``, ``torch/_tensor.py``). Every view is checked against the bounds of its
storage, where PyTorch would grow the storage; views that claim far more than the file holds are refused.
Nothing is read yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.arrays import text_of
from ckptfmt.containers.pickle.nodes import Call, Global, PersistentId, shown
from ckptfmt.containers.pickle.values import Values, class_name
from ckptfmt.errors import FormatError, LimitError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.arguments import (
    LAYOUT,
    SIZE,
    arguments_of,
    constant,
    element_of,
    flips_of,
    is_count,
    key_of,
    layout_name,
    part_of,
    place_of,
    refuse,
    shape_of,
    strides_of,
    whole_of,
)
from ckptfmt.frameworks.pytorch.keys import ElementType, torch_function
from ckptfmt.frameworks.pytorch.storages import FlippedSource, Storage, StridedSource, Strides
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Opaque, Tag, tagged
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.frameworks.pytorch.storages import Storages
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["EMBEDDED", "FREE_BYTES", "MAX_EXPANSION", "Tensors"]

EMBEDDED = Global("torch.storage", "_load_from_bytes")
"""The call of a storage that pickles outside of `torch.save` hold: a stream in bytes."""

FREE_BYTES = 256 << 20
"""Bytes that the tensors of a file may have together, however small it is."""
MAX_EXPANSION = 64
"""Beyond that: how many times the bytes of its storages they may have, counting each view."""

_DEVICE = Global("torch", "device")


class Tensors:
    """Makes the tensors of one file.

    Parameters
    ----------
    storages : Storages
    refer : callable, optional
        What a reference means where files have keys of their own: a node that stands for it.
    embedded : callable, optional
        The storage, and its type unless untyped, of a call of `EMBEDDED`; such calls are refused without.

    Attributes
    ----------
    values : Values
        What all calls of the file stand for.
    """

    def __init__(
        self,
        storages: Storages,
        *,
        refer: Callable[[PersistentId], object] | None = None,
        embedded: Callable[[Call], tuple[Storage, ElementType | None]] | None = None,
    ) -> None:
        self._storages = storages
        self._refer = refer
        self._embedded = embedded
        self._budget = FREE_BYTES + MAX_EXPANSION * storages.nbytes
        self._charged: set[object] = set()
        self._sources: dict[int, tuple[Storage, Strides, StridedSource | FlippedSource]] = {}
        self._findings: list[Finding] = []
        self.values = Values(self._known(), self._outside)

    def _known(self) -> dict[Global, Callable[[Call], object]]:
        functions: dict[str, Callable[[Call], object]] = {
            "_rebuild_tensor": self._tensor_v1,
            "_rebuild_tensor_v2": self._tensor_v2,
            "_rebuild_tensor_v3": self._tensor_v3,
            "_rebuild_parameter": self._parameter,
            "_rebuild_parameter_with_state": self._parameter,
            "_rebuild_sparse_tensor": self._sparse,
            "_rebuild_qtensor": self._quantized,
            "_rebuild_nested_tensor": self._nested,
            "_rebuild_meta_tensor_no_storage": self._meta,
            "_rebuild_device_tensor_from_cpu_tensor": self._from_cpu,
            "_rebuild_device_tensor_from_numpy": self._from_cpu,
        }
        table = {torch_function(name): handler for name, handler in functions.items()}
        table[Global("torch._tensor", "_rebuild_from_type_v2")] = self._from_type
        table[Global(*keys.PARAMETER.rsplit(".", 1))] = self._variable
        table[Global("torch.autograd.variable", "Variable")] = self._variable
        table[EMBEDDED] = self._stored
        table[SIZE] = self._size
        table[_DEVICE] = table[LAYOUT] = constant
        for storage in keys.BY_STORAGE:
            for module in ("torch", "torch.cuda"):
                table[Global(module, storage.replace("Storage", "Tensor"))] = self._tensor_v0
        return table

    # --- dense tensors --------------------------------------------------------------------------

    def _tensor_v0(self, call: Call) -> object:
        """Make a tensor of PyTorch before 0.2: an empty one whose state is its storage."""
        if call.args or call.items is not None or call.pairs is not None:
            refuse(call)
        state = call.state
        if not isinstance(state, tuple) or len(state) != 4:
            return NotImplemented
        return self._old(state[0], state[1:4])

    def _tensor_v1(self, call: Call) -> object:
        storage, *view = arguments_of(call, 4, 4)
        return self._old(storage, view)

    def _old(self, storage: object, view: tuple[object, ...] | list[object]) -> object:
        """Make a tensor of PyTorch before 0.4, where no dimensions and no elements went together."""
        if view[1] == () and view[2] == () and not self._storage(storage, None)[0].reader.size:
            view = (0, (0,), (1,))
        return self._dense(storage, None, view)

    def _tensor_v2(self, call: Call) -> object:
        storage, *view, grad, _, metadata = (*arguments_of(call, 6, 7), None)[:7]
        return self._dense(storage, None, view, grad=grad, metadata=metadata)

    def _tensor_v3(self, call: Call) -> object:
        storage, *view, grad, _, kind, metadata = (*arguments_of(call, 7, 8), None)[:8]
        return self._dense(storage, element_of(kind), view, grad=grad, metadata=metadata)

    def _dense(
        self,
        storage: object,
        kind: ElementType | None,
        view: tuple[object, ...] | list[object],
        *,
        grad: object = False,
        metadata: object = None,
    ) -> object:
        found, kind = self._storage(storage, kind)
        strides = strides_of(view, found.reader.size // kind.width)
        flips = flips_of(metadata)
        tensor = self._tensor(found, kind, strides, flips)
        if kind.role in ("bits", "complex-half"):
            name = keys.BITS if kind.role == "bits" else keys.COMPLEX_HALF
            attributes: dict[Key, Tree] = {"dtype": kind.name} if kind.role == "bits" else {}
            return Composite(name, attributes, {"values": tensor})
        attributes = {"requires_grad": True} if grad is True else {}
        order = strides.memory_format
        if order is not None:
            attributes["memory_format"] = order
        if attributes:
            tensor.tag = Tag(keys.TENSOR, attributes)
        return tensor

    def _tensor(
        self, storage: Storage, kind: ElementType, strides: Strides, flips: tuple[bool, bool] = (False, False)
    ) -> Tensor:
        if kind.role == "quantized" and dtype(kind.dtype).packed:
            return self._packed(storage, kind, strides)
        plain = StridedSource(storage, strides, kind.width, kind.lanes)
        source: StridedSource | FlippedSource = plain
        if any(flips):
            is_float = kind.lanes == 2 or dtype(kind.dtype).is_float
            conjugate, negate = flips
            source = FlippedSource(
                plain, kind.width, kind.lanes, conjugate=conjugate, negate=negate, is_float=is_float
            )
        shape = strides.shape
        if kind.role == "packed":  # PyTorch counts the pairs
            shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
        elif kind.role == "complex-half":
            shape = (*shape, 2)
        identity = (*place_of(storage, strides, kind), flips) if strides.size else None
        self._charge(identity, strides.size * kind.width)
        self._sources[id(source)] = (storage, strides, source)
        return Tensor(dtype(kind.dtype), shape, source, identity=identity)

    def _packed(self, storage: Storage, kind: ElementType, strides: Strides) -> Tensor:
        """Make a tensor of quantised elements that share bytes: contiguous ones only."""
        if strides.offset or not strides.is_contiguous:
            raise UnsupportedVersionError(f"a {kind.name} tensor that is not contiguous")
        tree_type = dtype(kind.dtype)
        inside = Strides(0, (tree_type.nbytes(strides.shape),), (1,))
        source = StridedSource(storage, inside, 1)
        identity = place_of(storage, strides, kind) if strides.size else None
        self._sources[id(source)] = (storage, inside, source)
        return Tensor(tree_type, strides.shape, source, identity=identity)

    def _charge(self, identity: object, nbytes: int) -> None:
        """Count the bytes of a view, once, against what the file may claim."""
        if identity is None or identity in self._charged:
            return
        self._charged.add(identity)
        self._budget -= nbytes
        if self._budget < 0:
            message = (
                f"tensors claim more than {FREE_BYTES} bytes and {MAX_EXPANSION} times those of all storages"
            )
            raise LimitError(message)

    def _storage(self, node: object, kind: ElementType | None) -> tuple[Storage, ElementType]:
        """Return a storage and its type; `kind` is given for untyped ones."""
        if isinstance(node, PersistentId) and isinstance(node.value, tuple):
            found, own = self.find(node.value)
        elif isinstance(node, Call) and node.function == EMBEDDED and self._embedded is not None:
            found, own = self._embedded(node)
        else:
            raise FormatError("a tensor without a storage")
        if own is not None and kind is not None:
            raise FormatError("a typed storage where an untyped one must be")
        kind = kind or own or keys.BY_NAME["uint8"]
        return found, kind

    def find(self, value: tuple[object, ...]) -> tuple[Storage, ElementType | None]:
        """Return the storage that an outside reference means, and its type unless it is untyped."""
        if not 5 <= len(value) <= 6 or text_of(value[0]) != "storage":
            raise FormatError(f"an outside reference that is no storage: {shown(value)}")
        _, cls, key, _, count, *view = value
        element = keys.storage_element(cls) if isinstance(cls, Global) else None
        if element is None and cls != keys.UNTYPED_STORAGE:
            raise FormatError(f"{shown(cls)} is no storage class")
        name = key_of(key)
        if name is None or not is_count(count):
            raise FormatError("a storage without a key or a length")
        width = element.width if element else 1
        found = self._storages.find(name, count * width)
        return (part_of(found, view[0], width) if view and view[0] is not None else found), element

    def _outside(self, node: PersistentId) -> object:
        """Return a storage that is a value of its own, as a tensor; the class with source of old modules."""
        if self._refer is not None and not (isinstance(node.value, tuple) and len(node.value) == 5):
            return self._refer(node)
        value = node.value if isinstance(node.value, tuple) else ()
        if value and text_of(value[0]) == "module":
            return Opaque(class_name(node), {})
        storage, element = self.find(value)
        return self._bare(storage, element, str(value[1]))

    def _stored(self, call: Call) -> object:
        """Return a storage that lies in the pickle itself, as a tensor."""
        if self._embedded is None:
            return NotImplemented
        storage, element = self._embedded(call)
        cls = f"torch.{element.storage}" if element else str(keys.UNTYPED_STORAGE)
        return self._bare(storage, element, cls)

    def _bare(self, storage: Storage, element: ElementType | None, cls: str) -> Tensor:
        kind = element or keys.BY_NAME["uint8"]
        tensor = self._tensor(
            storage, keys.BY_DTYPE["u8"] if kind.role == "quantized" else kind, whole_of(storage, kind)
        )
        tensor.tag = Tag(cls)
        return tensor

    # --- what is more than a tensor -------------------------------------------------------------

    def _parameter(self, call: Call) -> object:
        data, grad, _, state = (*arguments_of(call, 3, 4), None)[:4]
        return self._dressed(data, keys.PARAMETER, {"requires_grad": bool(grad)}, state)

    def _variable(self, call: Call) -> object:
        """Make a parameter or variable of PyTorch before 0.4: its data an argument, or first in its state."""
        args, state = call.args, call.state
        if call.items is not None or call.pairs is not None or not isinstance(state, tuple):
            return NotImplemented
        if len(args) == 1 and len(state) == 3:  # requires_grad, volatile, hooks
            data, grad = args[0], state[0]
        elif (
            not args and len(state) == 5 and state[1] is None
        ):  # data, gradient, hooks, requires_grad, volatile
            data, grad = state[0], state[3]
        else:
            return NotImplemented
        return self._dressed(data, str(call.function), {"requires_grad": grad is True}, None)

    def _from_type(self, call: Call) -> object:
        function, cls, args, state = arguments_of(call, 4, 4)
        if not isinstance(args, tuple) or not isinstance(cls, Global):
            refuse(call)
        return self._dressed(Call(function, args), str(cls), {}, state)

    def _dressed(self, data: object, cls: str, attributes: dict[Key, Tree], state: object) -> object:
        """Return data with its class for a tag, or as an opaque node where a tag cannot hold all of it."""
        inner = self.values.adapt(data)
        more = self.values.attributes(state)
        if isinstance(inner, Composite) and not more and more is not None:
            message = f"the class {cls} of a {inner.name} is not kept"
            self._findings.append(Finding("class-dropped", "", Severity.LOSS, message))
            return inner
        if not isinstance(inner, Tensor) or more is None:
            return Opaque(cls, {"args": (data,), "state": state})  # type: ignore[dict-item] # as_tree resolves
        own = {} if inner.tag is None else inner.tag.attributes
        attributes = {**own, **attributes} if cls != keys.PARAMETER else {**attributes, **_order_only(own)}
        if more:
            attributes["state"] = more
        inner.tag = Tag(cls, attributes)
        return inner

    def _from_cpu(self, call: Call) -> object:
        """Make a tensor of another device: kept under its own type where that is what the data has."""
        data, kind, _, _ = arguments_of(call, 4, 4)
        inner = self.values.adapt(data)
        if isinstance(inner, Tensor) and inner.dtype.name == element_of(kind).dtype:
            inner.tag = None
            return inner
        return NotImplemented

    def _sparse(self, call: Call) -> object:
        layout, data = arguments_of(call, 2, 2)
        name = layout_name(layout)
        names = keys.SPARSE_PARTS.get(name)
        if names is None or not isinstance(data, tuple):
            refuse(call)
        parts, rest = dict(zip(names, data, strict=False)), data[len(names) :]
        if len(parts) != len(names) or not 1 <= len(rest) <= (2 if name == "sparse_coo" else 1):
            refuse(call)
        attributes: dict[Key, Tree] = {"size": shape_of(rest[0])}
        if name == "sparse_coo":
            coalesced = rest[1] if len(rest) > 1 else None
            attributes["is_coalesced"] = coalesced if isinstance(coalesced, bool) else None
        return Composite(name, attributes, {key: self._part(part) for key, part in parts.items()})

    def _part(self, node: object) -> Tree:
        part = self.values.adapt(node)
        if not isinstance(part, Tensor | Composite):
            raise FormatError("a part of a tensor is no tensor")
        return part

    def _quantized(self, call: Call) -> object:
        storage, *view, parameters, _, _ = arguments_of(call, 7, 7)
        found, kind = self._storage(storage, None)
        if kind.role != "quantized" or not isinstance(parameters, tuple) or len(parameters) < 3:
            refuse(call)
        per_byte = 8 // dtype(kind.dtype).bits if dtype(kind.dtype).packed else 1
        values = self._tensor(found, kind, strides_of(view, found.reader.size // kind.width * per_byte))
        scheme = str(parameters[0]).removeprefix("torch.") if isinstance(parameters[0], Global) else ""
        attributes: dict[Key, Tree] = {"dtype": kind.name, "qscheme": scheme}
        parts: dict[Key, Tree] = {"values": values}
        scale, zero, *axis = parameters[1:]
        if scheme == "per_tensor_affine" and isinstance(scale, int | float) and isinstance(zero, int):
            return Composite(keys.QUANTIZED, {**attributes, "scale": scale, "zero_point": zero}, parts)
        if not scheme.startswith("per_channel_affine") or len(axis) != 1 or not isinstance(axis[0], int):
            refuse(call)
        parts |= {"scales": self._part(scale), "zero_points": self._part(zero)}
        return Composite(keys.QUANTIZED, {**attributes, "axis": axis[0]}, parts)

    def _nested(self, call: Call) -> object:
        names = ("buffer", "sizes", "strides", "offsets")
        arguments = arguments_of(call, 4, 4)
        parts: dict[Key, Tree] = {name: self._part(part) for name, part in zip(names, arguments, strict=True)}
        return Composite(keys.NESTED, {}, parts)

    def _meta(self, call: Call) -> object:
        kind, size, stride, grad = arguments_of(call, 4, 4)
        attributes: dict[Key, Tree] = {
            "dtype": element_of(kind).name,
            "size": shape_of(size),
            "stride": shape_of(stride),
            "requires_grad": grad is True,
        }
        message = "a tensor of the meta device has a shape and no data"
        self._findings.append(Finding("meta-tensor", "", Severity.INFO, message))
        return Composite(keys.META, attributes, {})

    def _size(self, call: Call) -> object:
        return tagged(shape_of(call), Tag("torch.Size"))

    # --- afterwards -----------------------------------------------------------------------------

    def finish(self, tree: Tree) -> tuple[Finding, ...]:
        """Tell each source which tensor it is, for errors, and return what was found.

        Parameters
        ----------
        tree : Tree
            The finished tree of the file.
        """
        views: dict[object, dict[object, tuple[tuple[int, int], str]]] = {}
        for path, tensor, _ in survey(tree):
            entry = self._sources.get(id(tensor.source))
            if entry is None:
                continue
            storage, strides, source = entry
            if source.label is None:
                source.label = display(path)
            if tensor.identity is not None:
                first, last = strides.span
                width = strides.size and tensor.nbytes // strides.size
                span = (storage.base + first * width, storage.base + last * width)
                views.setdefault(storage.identity, {}).setdefault(tensor.identity, (span, source.label))
        for group in views.values():
            self._note_overlap(sorted(group.values()))
        return (*self.values.findings(), *self._findings)

    def _note_overlap(self, group: list[tuple[tuple[int, int], str]]) -> None:
        reach, owner = 0, ""
        for (start, stop), name in group:
            if start < reach:
                message = f"shares memory with {owner} without being the same tensor; each is kept on its own"
                self._findings.append(Finding("views-apart", name, Severity.INFO, message))
                return
            if stop > reach:
                reach, owner = stop, name


def _order_only(attributes: dict[Key, Tree]) -> dict[Key, Tree]:
    return {key: value for key, value in attributes.items() if key == "memory_format"}
