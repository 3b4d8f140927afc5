"""Tensors of strings and of variants: elements of any length, with checksums of their own in between.

Strings: all lengths as varints, the masked checksum of the lengths (of each as 32 bits, or 64 where it needs
them), all bytes. Variants, whose content is not looked into: for each its length, its bytes, the masked
checksum of everything so far. Source: ``tensorflow/core/util/tensor_bundle/tensor_bundle.cc``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import numpy as np

from ckptfmt.containers.crc32c import mask, update
from ckptfmt.containers.protobuf import packed_varints, varint, varint_at, varints
from ckptfmt.errors import ChecksumError, FormatError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["decode_strings", "decode_variants", "encode_strings", "encode_variants", "encoded_size"]

_LONGEST = 10
_MOST_NARROW = 0xFFFFFFFF
Order = Literal["little", "big"]


def decode_strings(data: memoryview, count: int, *, order: Order) -> tuple[tuple[bytes, ...], int]:
    """Return the strings that an entry's bytes hold, and the checksum to compare with the entry's.

    Parameters
    ----------
    data : memoryview
    count : int
        How many there must be.
    order : {"little", "big"}
        Of the machine that wrote them.

    Raises
    ------
    ChecksumError
        The lengths are not those that were written.
    FormatError
        There are fewer or more bytes than the lengths say.
    """
    at = _end_of_lengths(data, count)
    lengths = packed_varints(data[:at])
    crc = _crc_of_lengths(lengths, order)
    start = at + 4
    ends = np.cumsum(lengths, dtype=np.uint64).tolist()
    if start > len(data) or (count and int(lengths.max()) > len(data)):
        raise TruncatedError("the strings are cut", offset=len(data))
    if start + (ends[-1] if ends else 0) != len(data):
        raise FormatError(f"strings of {ends[-1] if ends else 0} bytes in {len(data) - start}", offset=start)
    _check(crc, data[at:start], order, at)
    body = data[start:]
    values = tuple(bytes(body[a:b]) for a, b in itertools.pairwise([0, *ends]))
    return values, update(update(crc, data[at:start]), body)


def _end_of_lengths(data: memoryview, count: int) -> int:
    """Return where `count` varints end."""
    if count == 0:
        return 0
    if count > len(data):
        raise TruncatedError(f"{len(data)} bytes for {count} strings", offset=len(data))
    head = np.frombuffer(data[: count * _LONGEST], np.uint8)
    ends = np.flatnonzero(head < 0x80)
    if len(ends) < count:
        raise TruncatedError("the lengths of strings are cut", offset=len(data))
    return int(ends[count - 1]) + 1


def _crc_of_lengths(lengths: np.ndarray, order: Order) -> int:
    sign = "<" if order == "little" else ">"
    if not lengths.size or int(lengths.max()) <= _MOST_NARROW:
        return update(0, lengths.astype(f"{sign}u4"))
    sizes = (length.to_bytes(4 if length <= _MOST_NARROW else 8, order) for length in lengths.tolist())
    return update(0, b"".join(sizes))


def _check(crc: int, stored: memoryview, order: Order, offset: int) -> None:
    recorded = int.from_bytes(stored, order)
    if mask(crc) != recorded:
        message = f"checksum {mask(crc):08x} of lengths where {recorded:08x} was recorded: they have changed"
        raise ChecksumError(message, offset=offset)


def decode_variants(data: memoryview, count: int, *, order: Order) -> tuple[tuple[bytes, ...], int]:
    """Return the serialised variants that an entry's bytes hold; all else as for `decode_strings`."""
    values = []
    at = crc = 0
    for _ in range(count):
        length, at = varint_at(data, at)
        end = at + length
        if end + 4 > len(data):
            raise TruncatedError("the variants are cut", offset=len(data))
        crc = update(update(crc, length.to_bytes(8, order)), data[at:end])
        _check(crc, data[end : end + 4], order, end)
        crc = update(crc, data[end : end + 4])
        values.append(bytes(data[at:end]))
        at = end + 4
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes after the variants", offset=at)
    return tuple(values), crc


def encode_strings(values: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes of an entry piece by piece, each with the checksum of the entry so far."""
    crc = _crc_of_lengths(np.fromiter(map(len, values), np.uint64, len(values)), "little")
    stored = mask(crc).to_bytes(4, "little")
    crc = update(crc, stored)
    yield varints(map(len, values)) + stored, crc
    for batch in _batches(values):
        crc = update(crc, batch)
        yield batch, crc


def _batches(values: Iterable[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    held: list[bytes] = []
    total = 0
    for value in values:
        held.append(value)
        total += len(value)
        if total >= size:
            yield b"".join(held)
            held, total = [], 0
    if total:
        yield b"".join(held)


def encode_variants(values: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes of an entry of serialised variants; see `encode_strings`."""
    crc = 0
    for value in values:
        crc = update(update(crc, len(value).to_bytes(8, "little")), value)
        stored = mask(crc).to_bytes(4, "little")
        crc = update(crc, stored)
        yield varint(len(value)) + value + stored, crc


def encoded_size(lengths: Sequence[int], *, variants: bool) -> int:
    """Return how many bytes strings, or serialised variants, of these lengths become."""
    checksums = 4 * (len(lengths) if variants else 1)
    return sum(lengths) + sum(max(1, -(-length.bit_length() // 7)) for length in lengths) + checksums
