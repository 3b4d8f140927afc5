"""The arguments of the calls that make tensors: checked, and turned to what they mean.

Each function returns what it is called for, or raises: nothing of a file is taken for granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.pickle.arrays import checked_shape, text_of
from ckptfmt.containers.pickle.nodes import Call, Global, shown
from ckptfmt.errors import FormatError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.storages import Strides, contiguous
from ckptfmt.tree.nodes import Opaque

if TYPE_CHECKING:
    from typing import TypeGuard

    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.frameworks.pytorch.storages import Storage
    from ckptfmt.tree.paths import Key

__all__ = [
    "LAYOUT",
    "SIZE",
    "arguments_of",
    "constant",
    "element_of",
    "flips_of",
    "is_count",
    "key_of",
    "layout_name",
    "part_of",
    "place_of",
    "refuse",
    "shape_of",
    "strides_of",
    "whole_of",
]

SIZE = Global("torch", "Size")
LAYOUT = Global("torch.serialization", "_get_layout")
_MOST = 1 << 63


def refuse(call: Call) -> NoReturn:
    """Raise FormatError: a call is made as it never is."""
    raise FormatError(f"{call.function} is called with what it cannot be")


def arguments_of(call: Call, fewest: int, most: int) -> tuple[object, ...]:
    """Return the arguments of a call that makes a tensor; such a call has nothing else."""
    if call.state is not None or call.items is not None or call.pairs is not None:
        raise FormatError(f"a state or items are set on what {call.function} makes")
    if not fewest <= len(call.args) <= most:
        refuse(call)
    return call.args


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is an integer that can count bytes or elements: not negative, of at most 63 bits."""
    return type(value) is int and 0 <= value < _MOST


def key_of(value: object) -> str | None:
    """Return the key of a storage, which is text or a number, or None for anything else."""
    if type(value) is int:
        return str(value) if abs(value) < 2 * _MOST else None
    return text_of(value)


def element_of(node: object) -> ElementType:
    """Return the element type that a name means."""
    if isinstance(node, Global) and node.module == "torch" and node.name in keys.BY_NAME:
        return keys.BY_NAME[node.name]
    raise FormatError(f"not an element type: {shown(node)}")


def shape_of(node: object) -> tuple[int, ...]:
    """Return a tuple of non-negative integers, given as such or as a torch.Size."""
    if isinstance(node, Call) and node.function == SIZE:
        (node,) = arguments_of(node, 1, 1)
    return checked_shape(tuple(node) if isinstance(node, list) else node, 1)


def strides_of(view: tuple[object, ...] | list[object], limit: int) -> Strides:
    """Return a view of a storage of `limit` elements, whose bounds it keeps."""
    offset, size, steps = view
    shape = shape_of(size)
    steps = tuple(steps) if isinstance(steps, list) else steps
    if not is_count(offset) or not isinstance(steps, tuple) or len(steps) != len(shape):
        raise FormatError("a tensor whose offset, size and stride do not make a view")
    if not all(map(is_count, steps)):
        raise FormatError("a tensor with a stride that is negative or no integer")
    made = Strides(offset, shape, steps)
    if made.size == 0:
        return Strides(0, shape, contiguous(shape))
    _, last = made.span
    if last > limit:
        raise FormatError(f"a tensor that reaches to element {last} of a storage of {limit}")
    return made


def place_of(storage: Storage, strides: Strides, kind: ElementType) -> tuple[object, ...]:
    """Return what is equal for views that are one and the same memory, seen alike."""
    start = storage.base + strides.offset * kind.width
    return storage.identity, start, strides.shape, strides.strides, kind.name


def whole_of(storage: Storage, kind: ElementType) -> Strides:
    """Return the view that is all of a storage; of quantised elements, its bytes."""
    width = 1 if kind.role == "quantized" else kind.width
    return Strides(0, (storage.reader.size // width,), (1,))


def flips_of(metadata: object) -> tuple[bool, bool]:
    """Return whether the conjugate and whether the negative of what is stored is meant."""
    if metadata is None:
        return False, False
    if not isinstance(metadata, dict) or not set(metadata) <= {"conj", "neg"}:
        raise UnsupportedVersionError(f"unknown metadata of a tensor: {shown(metadata)}")
    return metadata.get("conj") is True, metadata.get("neg") is True


def part_of(storage: Storage, metadata: object, width: int) -> Storage:
    """Return the storage that is a view of another: key, offset and length in elements."""
    if not isinstance(metadata, tuple) or len(metadata) != 3:
        raise FormatError("a storage that is a view without saying of what")
    _, offset, length = metadata
    if not is_count(offset) or not is_count(length):
        raise FormatError("a storage that is a view without bounds")
    return storage.part(offset * width, length * width)


def layout_name(node: object) -> str:
    """Return the name of a layout, or nothing for what is none."""
    if isinstance(node, Call) and node.function == LAYOUT and len(node.args) == 1:
        return (text_of(node.args[0]) or "").removeprefix("torch.")
    return ""


def constant(call: Call) -> object:
    """Keep a device or a layout, which is nothing but its name."""
    if call.state is not None or call.items is not None or call.pairs is not None:
        refuse(call)
    parts: dict[Key, object] = {"args": call.args, "state": None}
    return Opaque(str(call.function), parts)  # type: ignore[arg-type] # as_tree sees to the nodes inside
