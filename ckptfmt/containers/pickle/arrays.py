"""numpy arrays, scalars and types as pickles describe them, made from their bytes alone.

The recipes are those of numpy's ``__reduce__`` methods since 1.0 (``methods.c``, ``descriptor.c`` and
``scalartypes.c.src`` of ``numpy/core/src/multiarray``). Only element types with a fixed layout are made;
arrays of objects and structures are left to the caller.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ckptfmt.containers.npy.sources import FortranSource, SwappedSource
from ckptfmt.containers.pickle.nodes import Call, FileBytes, Global, LegacyText, shown
from ckptfmt.errors import FormatError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype, dtype_of
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.source import Source

__all__ = [
    "ARRAY",
    "BUFFER",
    "SCALAR",
    "array_in_file",
    "array_of",
    "bytes_of",
    "checked_shape",
    "scalar_of",
    "text_of",
]

ARRAY = Global("numpy.core.multiarray", "_reconstruct")
BUFFER = Global("numpy.core.numeric", "_frombuffer")
SCALAR = Global("numpy.core.multiarray", "scalar")
_DTYPE = Global("numpy", "dtype")
_BYTEARRAY = Global("builtins", "bytearray")
_BYTES = Global("builtins", "bytes")
_ENCODE = Global("_codecs", "encode")

_Kind: TypeAlias = "np.dtype[np.generic]"

_EXTENDED: dict[str, _Kind] = {
    kind.name: kind for kind in (dtype(name).numpy for name in DTYPE_NAMES) if kind.isbuiltin != 1
}
_CODE = re.compile(r"[biufcSUMm][0-9]{1,9}")
_UNIT = re.compile(r"Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as|generic")
_MAX_NDIM = 32
_MAX_BYTES = 1 << 62


def text_of(value: object) -> str | None:
    """Return the text that a node stands for, or None."""
    if isinstance(value, LegacyText):
        return value.text()
    return value if isinstance(value, str) else None


def bytes_of(value: object) -> bytes | None:
    """Return the bytes that a node stands for, in any of the ways that pickles write them, or None."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, FileBytes):
        return value.read()
    if not isinstance(value, Call) or value.state is not None:
        return None
    if value.function == _ENCODE and len(value.args) == 2:
        return _encoded(*value.args)
    if value.function in (_BYTEARRAY, _BYTES):
        if not value.args:
            return b""
        return _encoded(*value.args) if len(value.args) == 2 else bytes_of(value.args[0])
    return None


def _encoded(text: object, codec: object) -> bytes | None:
    """Return text that stands for bytes as protocols 0 to 2 write them: one character for each."""
    if not isinstance(text, str) or text_of(codec) not in ("latin1", "latin-1"):
        return None
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise FormatError("characters that cannot be bytes") from None


def checked_shape(shape: object, itemsize: int) -> tuple[int, ...]:
    """Return a shape that arrays can have.

    Raises
    ------
    FormatError
        It is not a tuple of non-negative integers, or too large for any memory.
    """
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise FormatError(f"not a shape: {shown(shape)}")
    if len(shape) > _MAX_NDIM or math.prod(filter(None, shape)) * max(1, itemsize) > _MAX_BYTES:
        raise FormatError(f"a shape that no array can have: {shown(shape)}")
    return shape


def _dtype_of(node: object) -> _Kind | None:
    """Return the element type that a node describes, or None where it has no fixed layout."""
    if not isinstance(node, Call) or node.function != _DTYPE or not node.args:
        return None
    state = node.state if isinstance(node.state, tuple) else ()
    order = text_of(state[1]) if len(state) > 1 else "<"
    if any(part is not None for part in state[2:5]):
        return None  # a structure, or an array within an array
    kind = _base_type(node.args[0], state)
    if kind is None or order not in ("<", ">", "|", "="):
        return None
    return kind.newbyteorder(">") if order == ">" else kind


def _base_type(code: object, state: tuple[object, ...]) -> _Kind | None:
    if isinstance(code, Global):
        return _EXTENDED.get(code.name) if code.module == "ml_dtypes" else None
    text = text_of(code)
    if text is None or not _CODE.fullmatch(text):
        return None
    if text[0] in "mM":
        return _time_type(text, state[8] if len(state) > 8 else None)
    try:
        return np.dtype(f"<{text}")
    except TypeError:
        return None


def _time_type(code: str, metadata: object) -> _Kind | None:
    if (
        not isinstance(metadata, tuple)
        or len(metadata) != 2
        or not isinstance(metadata[1], tuple)
        or len(metadata[1]) < 2
    ):
        return None
    name, count = metadata[1][0], metadata[1][1]
    raw = bytes_of(name)
    unit = text_of(name) if raw is None else raw.decode("latin-1")
    if unit is None or not _UNIT.fullmatch(unit) or type(count) is not int or not 0 < count < 2**31:
        return None
    return np.dtype(f"<{code}" if unit == "generic" else f"<{code}[{count}{unit}]")


def array_of(call: Call) -> np.ndarray | None:
    """Return the array that a call of `ARRAY` or `BUFFER` describes, or None where it has no fixed layout.

    Raises
    ------
    FormatError
        Its bytes do not fill its shape.
    """
    parts = _parts(call)
    return None if parts is None else _filled(*parts[:3], fortran=parts[3])


def array_in_file(call: Call) -> Tensor | None:
    """Return the array that a call describes as a tensor of the file, or None where it is not in one.

    Raises
    ------
    FormatError
        Its bytes do not fill its shape.
    """
    parts = _parts(call)
    if parts is None or not isinstance(parts[2], FileBytes):
        return None
    kind, data, fortran = _dtype_of(parts[0]), parts[2], parts[3]
    if kind is None or kind.kind in "UMm" or dtype_of(kind).packed:
        return None
    shape = checked_shape(parts[1], kind.itemsize)
    if math.prod(shape) * kind.itemsize != data.length:
        raise FormatError(f"an array of {kind} {shape} in {data.length} bytes")
    source: Source = RangeSource(data.reader, data.offset, data.length)
    if fortran:
        source = FortranSource(data.reader, data.offset, kind, shape)
    elif kind.byteorder == ">":
        source = SwappedSource(source, kind)
    return Tensor(dtype_of(kind), shape, source, identity=(data, kind.str, kind.name, shape, fortran))


def _parts(call: Call) -> tuple[object, object, object, bool] | None:
    """Return type, shape, bytes and whether the first index varies fastest."""
    if call.function == BUFFER:
        if len(call.args) != 4:
            return None
        data, kind, shape, order = call.args
        return kind, shape, data, text_of(order) == "F"
    if not isinstance(call.state, tuple) or len(call.state) != 5:
        return None
    _, shape, kind, fortran, data = call.state
    return kind, shape, data, bool(fortran)


def _filled(kind_node: object, shape: object, data_node: object, *, fortran: bool) -> np.ndarray | None:
    kind, data = _dtype_of(kind_node), bytes_of(data_node)
    if kind is None or data is None or kind.itemsize == 0:
        return None
    checked = checked_shape(shape, kind.itemsize)
    if math.prod(checked) * kind.itemsize != len(data):
        raise FormatError(f"an array of {kind} {checked} in {len(data)} bytes")
    if kind.kind == "U" and not _is_unicode(np.frombuffer(data, f"{kind.byteorder.replace('=', '<')}u4")):
        raise FormatError(f"an array of {kind} whose text is not Unicode")
    return np.frombuffer(data, kind).reshape(checked, order="F" if fortran else "C")


def _is_unicode(points: np.ndarray) -> bool:
    """Whether all numbers are code points; numpy itself fails with an error of the interpreter."""
    return not bool(np.any((points > 0x10FFFF) | ((points >= 0xD800) & (points <= 0xDFFF))))


def scalar_of(call: Call) -> np.generic | None:
    """Return the scalar that a call of `SCALAR` describes, or None where it has no fixed layout.

    Raises
    ------
    FormatError
        Its bytes are not one element.
    """
    if len(call.args) != 2:
        return None
    array = _filled(call.args[0], (), call.args[1], fortran=False)
    return None if array is None else array.reshape(1)[0]
