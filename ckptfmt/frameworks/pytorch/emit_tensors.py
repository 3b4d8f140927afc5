"""Tensors and composites as the calls that PyTorch's pickles make them with, and the storages they need.

Storages are numbered in the order of first use; tensors that are one and the same memory share one. What lies
in a storage is written later, by whoever writes the archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.carried import Carried, carry
from ckptfmt.frameworks.pytorch.storages import contiguous
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ckptfmt.containers.pickle.emitter import Emitter
    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.tree.nodes import Composite, Tag, Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["TensorEmitter"]

_UTILS = "torch._utils"
_CHANGES = {
    "dtype-widened": "{} cannot hold {}: written as {}, every value kept",
    "dtype-as-bytes": "{} cannot hold {}: written as {} with one more dimension",
}


class TensorEmitter:
    """Writes tensors into a pickle.

    Parameters
    ----------
    out : Emitter
    plain_dict : callable
        Writes a dict, given with the path that it belongs to.
    tell : callable
        Notes a finding: kind, path, message and severity.
    legacy : bool
        Whether for a stream of before 1.6: no untyped storages, and references to storages say of what they
        are views.

    Attributes
    ----------
    storages : list of Carried
        The storages by number.
    """

    def __init__(
        self,
        out: Emitter,
        plain_dict: Callable[[dict[Key, Tree], Path], None],
        tell: Callable[..., None],
        *,
        legacy: bool = False,
    ) -> None:
        self._legacy = legacy
        self.storages: list[Carried] = []
        self._out = out
        self._plain_dict = plain_dict
        self._tell = tell
        self._numbers: dict[Hashable, int] = {}

    # --- tensors --------------------------------------------------------------------------------

    def tensor(self, tensor: Tensor, path: Path) -> None:
        """Write a tensor with what its tag says of it."""
        tag, out = tensor.tag, self._out
        attributes = {} if tag is None else tag.attributes
        order, state = attributes.get("memory_format"), attributes.get("state")
        carried = carry(tensor, memory_format=order if isinstance(order, str) else None, typed=self._legacy)
        self._tell_change(carried, tensor, tag, path)
        if tag is not None and _is_storage(tag.name):
            if self._bare_storage(carried, tag):
                return
            self._tell("class-dropped", path, f"a {tag.name} is written as a plain tensor")
        grad = attributes.get("requires_grad") is True
        if tag is not None and tag.name == keys.PARAMETER:
            out.name(
                _UTILS, "_rebuild_parameter_with_state" if isinstance(state, dict) else "_rebuild_parameter"
            )
            out.op(b"(")
            self._dense(carried)
            out.boolean(grad)
            self._no_hooks()
            if isinstance(state, dict):
                self._plain_dict(state, path)
            out.op(b"tR")
        elif tag is not None and tag.name == keys.TENSOR and isinstance(state, dict):
            out.name("torch._tensor", "_rebuild_from_type_v2")
            out.op(b"(")
            self._dense(carried, grad=grad, call=False)
            self._plain_dict(state, path)
            out.op(b"tR")
        else:
            self._dense(carried, grad=grad)

    def _tell_change(self, carried: Carried, tensor: Tensor, tag: Tag | None, path: Path) -> None:
        if carried.change is not None:
            where = "this form" if self._legacy else "PyTorch"
            message = _CHANGES[carried.change].format(where, tensor.dtype.name, carried.element.name)
            self._tell(carried.change, path, message, Severity.LOSS)
        if tag is None or tag.name in (keys.PARAMETER, keys.TENSOR) or _is_storage(tag.name):
            return
        if tag.name.startswith("numpy."):
            self._tell("numpy-as-tensor", path, f"a {tag.name} is written as a tensor", Severity.INFO)
        else:
            self._tell("class-dropped", path, f"a {tag.name} is written as a plain tensor", Severity.LOSS)

    def _bare_storage(self, carried: Carried, tag: Tag) -> bool:
        """Write a storage that is a value of its own; return whether it can be one here."""
        name = tag.name.rpartition(".")[2]
        if carried.change is not None or len(carried.shape) != 1:
            return False
        if name == keys.UNTYPED_STORAGE.name and not self._legacy:
            self._storage(carried, None)
        elif carried.element.storage == name:
            self._storage(carried, name)
        else:
            return False
        return True

    def _dense(self, carried: Carried, *, grad: bool = False, call: bool = True) -> None:
        """Write the call that makes a strided tensor, or its function, torch.Tensor and its arguments."""
        out, element = self._out, carried.element
        out.name(_UTILS, "_rebuild_tensor_v2" if element.storage else "_rebuild_tensor_v3")
        if not call:
            out.name("torch", "Tensor")
        out.op(b"(")
        self._view(carried, carried.shape, carried.strides)
        out.boolean(grad)
        self._no_hooks()
        if not element.storage:
            out.name("torch", element.name)
        out.op(b"tR" if call else b"t")

    def _view(self, carried: Carried, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self._storage(carried, carried.element.storage)
        self._out.integer(0)
        self._ints(shape)
        self._ints(strides)

    def _storage(self, carried: Carried, cls: str | None) -> None:
        """Write the outside reference to a storage; `cls` is None for the untyped class."""
        out, nbytes = self._out, carried.nbytes
        out.op(b"(")
        out.text("storage")
        if cls is None:
            out.name(keys.UNTYPED_STORAGE.module, keys.UNTYPED_STORAGE.name)
        else:
            out.name("torch", cls)
        out.text(str(self._number(carried)))
        out.text("cpu")
        out.integer(nbytes if cls is None else nbytes // carried.element.width)
        if self._legacy:
            out.none()  # a view of no other
        out.op(b"tQ")

    def _number(self, carried: Carried) -> int:
        """Return the number of a storage: that of a tie's first tensor, or the next."""
        identity = carried.tensor.identity
        if identity is None:
            self.storages.append(carried)
            return len(self.storages) - 1
        key = (identity, carried.element, carried.order)
        number = self._numbers.setdefault(key, len(self.storages))
        if number == len(self.storages):
            self.storages.append(carried)
        return number

    def _ints(self, values: tuple[int, ...]) -> None:
        self._out.begin_tuple(len(values))
        for value in values:
            self._out.integer(value)
        self._out.end_tuple(len(values))

    def _no_hooks(self) -> None:
        self._out.name("collections", "OrderedDict")
        self._out.call(0)

    # --- composites -----------------------------------------------------------------------------

    def composite(self, node: Composite, path: Path) -> bool:
        """Write a composite as what it is in PyTorch; return False, nothing written, where it is none."""
        parts = {key: part for key, part in node.parts.items() if isinstance(part, Tensor)}
        if len(parts) != len(node.parts):
            return False
        write = {
            keys.QUANTIZED: self._quantized,
            keys.NESTED: self._nested,
            keys.COMPLEX_HALF: self._complex_half,
            keys.BITS: self._bits,
            keys.META: self._meta,
        }.get(node.name, self._sparse)
        return write(node, parts, path)

    def _sparse(self, node: Composite, parts: dict[Key, Tensor], path: Path) -> bool:
        names, size = keys.SPARSE_PARTS.get(node.name), _ints_of(node.attributes.get("size"))
        if names is None or size is None or set(parts) != set(names):
            return False
        out, coalesced = self._out, node.attributes.get("is_coalesced")
        out.name(_UTILS, "_rebuild_sparse_tensor")
        out.name("torch.serialization", "_get_layout")
        out.text(f"torch.{node.name}")
        out.call(1)
        out.op(b"(")
        for name in names:
            self.tensor(parts[name], (*path, "parts", name))
        out.name("torch", "Size")
        self._ints(size)
        out.call(1)
        if isinstance(coalesced, bool):
            out.boolean(coalesced)
        out.op(b"t\x86R")
        return True

    def _quantized(self, node: Composite, parts: dict[Key, Tensor], path: Path) -> bool:
        attributes, values = node.attributes, parts.get("values")
        element = keys.BY_NAME.get(str(attributes.get("dtype")))
        if element is None or element.role != "quantized" or values is None:
            return False
        scale, zero, axis = (attributes.get(name) for name in ("scale", "zero_point", "axis"))
        whole = isinstance(scale, int | float) and isinstance(zero, int) and set(parts) == {"values"}
        split = isinstance(axis, int) and set(parts) == {"values", "scales", "zero_points"}
        if values.dtype != dtype(element.dtype) or whole == split:
            return False
        out = self._out
        out.name(_UTILS, "_rebuild_qtensor")
        out.op(b"(")
        shape = values.shape
        self._view(Carried(values, element, shape, contiguous(shape)), shape, contiguous(shape))
        out.op(b"(")
        out.name("torch", "per_tensor_affine" if whole else "per_channel_affine")
        if whole:
            out.real(float(scale))  # type: ignore[arg-type] # a number, see above
            out.integer(int(zero))  # type: ignore[arg-type] # the same
        else:
            self.tensor(parts["scales"], (*path, "parts", "scales"))
            self.tensor(parts["zero_points"], (*path, "parts", "zero_points"))
            out.integer(int(axis))  # type: ignore[arg-type] # the same
        out.op(b"t")
        out.boolean(False)  # noqa: FBT003 - requires_grad
        self._no_hooks()
        out.op(b"tR")
        return True

    def _nested(self, _: Composite, parts: dict[Key, Tensor], path: Path) -> bool:
        names = ("buffer", "sizes", "strides", "offsets")
        if self._legacy or set(parts) != set(names):  # made from the numbers in it, which a stream has later
            return False
        self._out.name(_UTILS, "_rebuild_nested_tensor")
        self._out.op(b"(")
        for name in names:
            self.tensor(parts[name], (*path, "parts", name))
        self._out.op(b"tR")
        return True

    def _complex_half(self, _: Composite, parts: dict[Key, Tensor], path: Path) -> bool:
        del path
        values = parts.get("values")
        if (
            self._legacy
            or values is None
            or len(parts) != 1
            or values.dtype.name != "f16"
            or values.shape[-1:] != (2,)
        ):
            return False
        return self._raw(values, keys.BY_NAME["complex32"], values.shape[:-1])

    def _bits(self, node: Composite, parts: dict[Key, Tensor], path: Path) -> bool:
        del path
        element, values = keys.BY_NAME.get(str(node.attributes.get("dtype"))), parts.get("values")
        if self._legacy or element is None or element.role != "bits" or values is None or len(parts) != 1:
            return False
        return values.dtype.name == element.dtype and self._raw(values, element, values.shape)

    def _raw(self, values: Tensor, element: ElementType, shape: tuple[int, ...]) -> bool:
        self._dense(Carried(values, element, shape, contiguous(shape)))
        return True

    def _meta(self, node: Composite, parts: dict[Key, Tensor], path: Path) -> bool:
        del path
        element = keys.BY_NAME.get(str(node.attributes.get("dtype")))
        size, stride = (_ints_of(node.attributes.get(name)) for name in ("size", "stride"))
        if element is None or size is None or stride is None or parts:
            return False
        self._out.name(_UTILS, "_rebuild_meta_tensor_no_storage")
        self._out.op(b"(")
        self._out.name("torch", element.name)
        self._ints(size)
        self._ints(stride)
        self._out.boolean(node.attributes.get("requires_grad") is True)
        self._out.op(b"tR")
        return True


def _is_storage(name: str) -> bool:
    module, _, cls = name.rpartition(".")
    return name == str(keys.UNTYPED_STORAGE) or (module in ("torch", "torch.cuda") and cls in keys.BY_STORAGE)


def _ints_of(node: Tree) -> tuple[int, ...] | None:
    """Return a tuple or list of integers as a tuple, or None for anything else."""
    if not isinstance(node, tuple | list) or not all(type(value) is int for value in node):
        return None
    return tuple(node)  # type: ignore[arg-type] # integers, see above
