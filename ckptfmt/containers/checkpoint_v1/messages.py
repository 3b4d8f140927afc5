"""The messages of a V1 checkpoint: the list of its tensors, and a slice with its data.

Source: ``tensorflow/core/util/saved_tensor_slice.proto``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.containers.bundle.messages import (
    Versions,
    decode_shape,
    decode_slice,
    decode_versions,
    number,
    part,
)
from ckptfmt.containers.protobuf import fields
from ckptfmt.errors import FormatError

if TYPE_CHECKING:
    from ckptfmt.containers.bundle.keys import Slice

__all__ = ["Meta", "TensorMeta", "decode_data", "decode_meta"]


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a file says about a tensor.

    Attributes
    ----------
    name : bytes
    dtype : int
        The number of its type.
    shape : tuple of int
        Of the whole tensor.
    slices : tuple of Slice
        Those that lie in this file.
    """

    name: bytes
    dtype: int
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """What a file says about itself.

    Attributes
    ----------
    tensors : tuple of TensorMeta
    versions : Versions
    """

    tensors: tuple[TensorMeta, ...]
    versions: Versions


def decode_meta(data: memoryview) -> Meta:
    """Decode the value under the empty key.

    Raises
    ------
    FormatError
        It is malformed, or no list of tensors.
    """
    tensors: list[TensorMeta] = []
    versions = Versions()
    for field, kind, value in fields(_only(data, 1, "the list of tensors")):
        if field == 1:
            tensors.append(_tensor(part(kind, value)))
        elif field == 2:
            versions = decode_versions(part(kind, value))
    return Meta(tuple(tensors), versions)


def _only(data: memoryview, wanted: int, what: str) -> memoryview:
    """Return the one message that a message must hold under a number."""
    found = [part(kind, value) for field, kind, value in fields(data) if field == wanted]
    if len(found) != 1:
        raise FormatError(f"{what} is there {len(found)} times")
    return found[0]


def _tensor(data: memoryview) -> TensorMeta:
    name = b""
    dtype = 0
    shape: tuple[int, ...] = ()
    slices: list[Slice] = []
    for field, kind, value in fields(data):
        if field == 1:
            name = bytes(part(kind, value))
        elif field == 2:
            shape = decode_shape(part(kind, value))
        elif field == 3:
            dtype = number(kind, value)
        elif field == 4:
            slices.append(decode_slice(part(kind, value)))
    return TensorMeta(name, dtype, shape, tuple(slices))


def decode_data(data: memoryview, *, name: bytes, piece: Slice) -> memoryview:
    """Return the tensor of a slice, which is what its key says it is.

    Raises
    ------
    FormatError
        It is malformed, or another slice.
    """
    found_name, tensor = b"", memoryview(b"")
    found_piece: Slice = ()
    for field, kind, value in fields(_only(data, 2, "the data of a slice")):
        if field == 1:
            found_name = bytes(part(kind, value))
        elif field == 2:
            found_piece = decode_slice(part(kind, value))
        elif field == 3:
            tensor = part(kind, value)
    if (found_name, found_piece) != (name, piece):
        raise FormatError(f"the data of {found_name[:200]!r} {list(found_piece)} lies under another key")
    return tensor
