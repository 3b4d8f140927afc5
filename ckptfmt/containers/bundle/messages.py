"""The messages of a bundle's table: its header, its entries, and the shapes and slices in them.

Decoded leniently where a newer writer may add, strictly where a tensor would come out wrong. Source:
``tensorflow/core/protobuf/tensor_bundle.proto``, and ``tensor_shape.proto``, ``tensor_slice.proto`` and
``versions.proto`` of ``tensorflow/core/framework``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.containers.protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    bytes_field,
    fields,
    fixed32_field,
    int_field,
    packed_varints,
    signed,
)
from ckptfmt.errors import FormatError, LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.containers.bundle.keys import Slice

__all__ = [
    "Entry",
    "Header",
    "Versions",
    "decode_entry",
    "decode_header",
    "decode_shape",
    "decode_slice",
    "decode_versions",
    "encode_entry",
    "encode_header",
    "encode_shape",
    "encode_slice",
    "number",
    "part",
]

_MAX_NDIM = 254  # as many as TensorFlow's own shapes have


@dataclass(frozen=True, slots=True)
class Versions:
    """Who wrote a file, and who may read it.

    Attributes
    ----------
    producer, min_consumer : int
    bad_consumers : tuple of int
    """

    producer: int = 0
    min_consumer: int = 0
    bad_consumers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """What a bundle says about itself.

    Attributes
    ----------
    shards : int
        How many files its data lies in.
    big_endian : bool
    versions : Versions
    """

    shards: int
    big_endian: bool = False
    versions: Versions = Versions()


@dataclass(frozen=True, slots=True)
class Entry:
    """What the table says about a tensor, or a slice of one.

    Attributes
    ----------
    dtype : int
        The number of its type.
    shape : tuple of int
    shard, offset, size : int
        Where its bytes lie.
    crc : int
        Their masked CRC-32C.
    slices : tuple of Slice
        Not empty where the tensor lies in pieces, each with an entry of its own.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0
    slices: tuple[Slice, ...] = ()


def number(kind: int, value: int | memoryview, *, wire: int = VARINT) -> int:
    """Return the value of a field that must be a number, as a signed one where it is a varint."""
    if kind != wire or isinstance(value, memoryview):
        raise FormatError(f"a number of wire type {kind}")
    return signed(value) if wire == VARINT else value


def part(kind: int, value: int | memoryview) -> memoryview:
    """Return the value of a field that must be bytes or a message."""
    if kind != BYTES or isinstance(value, int):
        raise FormatError(f"a message of wire type {kind}")
    return value


def decode_header(data: memoryview) -> Header:
    """Decode a bundle's header.

    Raises
    ------
    FormatError
        It is malformed, or says neither of the two byte orders.
    """
    shards = endianness = 0
    versions = Versions()
    for field, kind, value in fields(data):
        if field == 1:
            shards = number(kind, value)
        elif field == 2:
            endianness = number(kind, value)
        elif field == 3:
            versions = decode_versions(part(kind, value))
    if not 0 <= shards < 1 << 31 or endianness not in (0, 1):
        raise FormatError(f"a header of {shards} files of data and byte order {endianness}")
    return Header(shards, endianness == 1, versions)


def decode_versions(data: memoryview) -> Versions:
    """Decode who wrote a file and who may read it; errors as for any message."""
    producer = min_consumer = 0
    bad: list[int] = []
    for field, kind, value in fields(data):
        if field == 1:
            producer = number(kind, value)
        elif field == 2:
            min_consumer = number(kind, value)
        elif field == 3:
            bad += _numbers(kind, value)
    return Versions(producer, min_consumer, tuple(bad))


def _numbers(kind: int, value: int | memoryview) -> Iterator[int]:
    """Yield the numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        yield number(kind, value)
        return
    yield from map(signed, packed_varints(value).tolist())


def decode_entry(data: memoryview) -> Entry:
    """Decode an entry.

    Raises
    ------
    FormatError
        It is malformed, or a number is negative that cannot be.
    LimitError
        Its shape has more dimensions than TensorFlow's.
    """
    numbers = {1: 0, 3: 0, 4: 0, 5: 0}
    crc = 0
    shape: tuple[int, ...] = ()
    slices: list[Slice] = []
    for field, kind, value in fields(data):
        if field in numbers:
            numbers[field] = number(kind, value)
        elif field == 2:
            shape = decode_shape(part(kind, value))
        elif field == 6:
            crc = number(kind, value, wire=FIXED32)
        elif field == 7:
            slices.append(decode_slice(part(kind, value)))
    if min(numbers.values()) < 0:
        raise FormatError(f"negative: {', '.join(map(str, numbers.values()))} (type, file, offset, size)")
    return Entry(numbers[1], shape, numbers[3], numbers[4], numbers[5], crc, tuple(slices))


def decode_shape(data: memoryview) -> tuple[int, ...]:
    """Decode a shape that is known completely.

    Raises
    ------
    FormatError
        It is malformed or not known.
    LimitError
        It has more dimensions than TensorFlow's.
    """
    shape = []
    for field, kind, value in fields(data):
        if field == 2:
            shape.append(_extent(part(kind, value)))
        elif field == 3 and number(kind, value):
            raise FormatError("a shape of unknown rank")
        if len(shape) > _MAX_NDIM:
            raise LimitError(f"a shape of more than {_MAX_NDIM} dimensions")
    return tuple(shape)


def _extent(data: memoryview) -> int:
    size = 0
    for field, kind, value in fields(data):
        if field == 1:
            size = number(kind, value)
    if size < 0:
        raise FormatError(f"a dimension of {size}")
    return size


def decode_slice(data: memoryview) -> Slice:
    """Decode a slice; errors as for `decode_shape`."""
    made: list[tuple[int, int]] = []
    for field, kind, value in fields(data):
        if field == 1:
            made.append(_start_and_length(part(kind, value)))
        if len(made) > _MAX_NDIM:
            raise LimitError(f"a slice of more than {_MAX_NDIM} dimensions")
    return tuple(made)


def _start_and_length(data: memoryview) -> tuple[int, int]:
    """Return start and length; a length that is absent is -1: all of the dimension."""
    start, length = 0, -1
    for field, kind, value in fields(data):
        if field == 1:
            start = number(kind, value)
        elif field == 2:
            length = number(kind, value)
            if length < 0:
                raise FormatError(f"a slice of length {length}")
    if start < 0 or (length < 0 and start):
        raise FormatError(f"a slice from {start} with no length")
    return start, length


# ---------------------------------------------------------------------- encoding


def encode_header(header: Header) -> bytes:
    """Encode a header as TensorFlow does: what is zero is left out."""
    versions = int_field(1, header.versions.producer) + int_field(2, header.versions.min_consumer)
    return int_field(1, header.shards) + int_field(2, int(header.big_endian)) + bytes_field(3, versions)


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry as TensorFlow does: what is zero is left out."""
    return (
        int_field(1, entry.dtype)
        + bytes_field(2, encode_shape(entry.shape))
        + int_field(3, entry.shard)
        + int_field(4, entry.offset)
        + int_field(5, entry.size)
        + fixed32_field(6, entry.crc)
        + b"".join(bytes_field(7, encode_slice(piece)) for piece in entry.slices)
    )


def encode_shape(shape: tuple[int, ...]) -> bytes:
    """Encode a shape."""
    return b"".join(bytes_field(2, int_field(1, extent)) for extent in shape)


def encode_slice(piece: Slice) -> bytes:
    """Encode a slice; a whole dimension is an empty extent."""
    made = b""
    for start, length in piece:
        extent = b"" if length < 0 else int_field(1, start) + _length_field(length)
        made += bytes_field(1, extent)
    return made


def _length_field(length: int) -> bytes:
    """Encode a length; 0 is written too, for it is one of a choice."""
    return int_field(2, length) or b"\x10\x00"
