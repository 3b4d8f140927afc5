"""What a numpy array or scalar is in a tree: a tensor, strings, or a composite of tensors.

Nothing is copied where numpy's memory is canonical or can be gathered from. A mask, a unit or a field is
never lost without a word: what no kind of node carries is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import TreeError
from ckptfmt.tree.nodes import Composite, Strings, Tag, Tree
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.paths import Key

__all__ = ["numpy_node"]


def numpy_node(value: np.ndarray | np.generic) -> Tree:
    """Return the node of a numpy array or scalar.

    Arrays of strings (unicode, objects, variable-length) become `Strings`; structured, masked, void, and time
    types composites; everything else a tensor, without a copy. Scalars are tensors of shape () with a tag,
    but numpy's own strings and bytes are plain ones. Subclasses of arrays lose their class.

    Raises
    ------
    TreeError
        Objects that are not strings, or a platform's own long double.
    """
    kind = value.dtype.kind
    if kind in "fiubc" and type(value) is np.ndarray:
        return Tensor.of(value)
    if isinstance(value, np.str_ | np.bytes_):
        return value.item()
    if isinstance(value, np.generic):
        node = numpy_node(np.asarray(value))
        if isinstance(node, Tensor):
            node.tag = Tag("numpy.scalar")
            node.identity = None
        return node
    if isinstance(value, np.ma.MaskedArray):
        return _masked(value)
    array = np.asarray(value)
    if array.dtype.names is not None:
        return _structured(array)
    if kind in "mM":
        return _times(array)
    if kind in "UOT":
        return _strings(array)
    if kind == "V" and array.dtype.itemsize:
        return _void(array)
    return Tensor.of(array)


def _masked(value: np.ma.MaskedArray) -> Composite:
    parts: dict[Key, Tree] = {
        "values": numpy_node(np.ma.getdata(value)),
        "mask": numpy_node(np.ma.getmaskarray(value)),
        "fill_value": numpy_node(np.asarray(value.fill_value)),
    }
    return Composite("numpy.masked", {"hard_mask": bool(value.hardmask)}, parts)


def _structured(array: np.ndarray) -> Composite:
    names = array.dtype.names or ()
    parts: dict[Key, Tree] = {name: numpy_node(array[name]) for name in names}
    attributes: dict[Key, Tree] = {"descr": str(array.dtype.descr)}
    if not names:
        attributes["shape"] = array.shape  # no part tells it
    return Composite("numpy.structured", attributes, parts)


def _times(array: np.ndarray) -> Composite:
    unit = np.datetime_data(array.dtype)
    attributes: dict[Key, Tree] = {
        "kind": array.dtype.name.partition("[")[0],
        "unit": f"{unit[1]}{unit[0]}",
    }
    counts = array.view(array.dtype.byteorder.replace("|", "=") + "i8")
    return Composite("numpy.time", attributes, {"values": Tensor.of(counts)})


def _void(value: np.ndarray) -> Tree:
    try:
        return Tensor.of(value)  # the types of ml_dtypes are of kind V, too
    except TreeError:
        width = value.dtype.itemsize
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(*value.shape, width)
        return Composite("numpy.void", {}, {"bytes": Tensor.of(raw)})


def _strings(value: np.ndarray) -> Strings:
    values = value.reshape(-1).tolist()
    for kind in (str, bytes):
        if all(type(item) is kind for item in values):
            if kind is str:
                _check_text("".join(values))
            return Strings(value.shape, tuple(values))
    message = f"an array of {value.dtype} objects that are not strings cannot be kept"
    raise TreeError(message)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        message = "a string that is not valid Unicode"
        raise TreeError(message) from None
