"""The header of an npy file: magic, version, length, and a dict of type, order and shape.

Versions 1.0, 2.0 (longer) and 3.0 (UTF-8) are read; 1.0 is written, byte for byte as numpy writes it.
Nothing is evaluated. That the elements are all there is checked where they are read, in `values`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.npy.literal import Literal, parse_literal
from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import FormatError, LimitError, TruncatedError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.storage.reader import ByteReader

__all__ = ["MAGIC", "MAX_HEADER", "NpyHeader", "decode_header", "encode_header"]

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 20
"""Greatest length of a header's text: a structure of ten thousand members fits."""

_ALIGNMENT = 64
_GROWTH_DIGITS = 21  # numpy leaves room for the first extent to grow to 2^64 and a sign
_VERSIONS = {(1, 0): ("<H", "latin-1"), (2, 0): ("<I", "latin-1"), (3, 0): ("<I", "utf-8")}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """A decoded header.

    Attributes
    ----------
    descr : str, or list
        The type in numpy's notation (``"<f4"``), or the members of a structure; not checked here.
    fortran_order : bool
        Whether the first index varies fastest.
    shape : tuple of int
    count : int
        The number of elements.
    data_start : int
        Where they begin, in bytes.
    """

    descr: Literal
    fortran_order: bool
    shape: tuple[int, ...]
    count: int
    data_start: int


def decode_header(reader: ByteReader) -> NpyHeader:
    """Read and check the header at the beginning of a file or member.

    Raises
    ------
    TruncatedError
        The file ends within it.
    UnsupportedVersionError
        A version that does not exist yet.
    LimitError
        It is longer than `MAX_HEADER`, nested too deeply, or its shape is larger than any tensor.
    FormatError
        Any other rule is broken.
    """
    version = _version(reader)
    form, encoding = _VERSIONS[version]
    start = 8 + struct.calcsize(form)
    length: int = struct.unpack(form, _take(reader, 8, start - 8))[0]
    if length > MAX_HEADER:
        raise LimitError(f"an npy header of {length} bytes; at most {MAX_HEADER}", file=reader.name, offset=8)
    data = _take(reader, start, length)
    try:
        fields = parse_literal(data.decode(encoding))
    except UnicodeDecodeError as error:
        raise FormatError(
            "a header that is not UTF-8", file=reader.name, offset=start + error.start
        ) from None
    except FormatError as error:
        raise type(error)(error.message, file=reader.name, offset=start + (error.offset or 0)) from None
    return _checked(fields, start + length, reader.name)


def _version(reader: ByteReader) -> tuple[int, int]:
    head = reader.read(0, min(8, reader.size))
    if not head.startswith(MAGIC[: len(head)]):
        raise FormatError("no npy header", file=reader.name, offset=0)
    if len(head) < 8:
        raise TruncatedError("the npy header is cut off", file=reader.name, offset=len(head))
    version = (head[6], head[7])
    if version not in _VERSIONS:
        raise UnsupportedVersionError(
            f"npy version {version[0]}.{version[1]}; versions up to 3.0 are read", file=reader.name, offset=6
        )
    return version


def _take(reader: ByteReader, start: int, length: int) -> bytes:
    if start + length > reader.size:
        raise TruncatedError("the npy header is cut off", file=reader.name, offset=reader.size)
    return reader.read(start, length)


def _checked(fields: Literal, data_start: int, file: str) -> NpyHeader:
    def fail(message: str) -> NoReturn:
        raise FormatError(f"malformed header: {message}", file=file)

    if not isinstance(fields, dict) or sorted(fields) != ["descr", "fortran_order", "shape"]:
        fail("it must be a dict of descr, fortran_order and shape")
    shape, fortran_order = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple):
        fail("the shape is no tuple of non-negative integers")
    extents = tuple(extent for extent in shape if type(extent) is int)
    if len(extents) != len(shape):
        fail("the shape is no tuple of non-negative integers")
    if not isinstance(fortran_order, bool):
        fail("fortran_order is neither True nor False")
    count = checked_count(extents, file=file)
    return NpyHeader(fields["descr"], fortran_order, extents, count, data_start)


def encode_header(descr: str, shape: Sequence[int], *, fortran_order: bool = False) -> bytes:
    """Return the header that numpy 1.26 and later write for the same array.

    Parameters
    ----------
    descr : str
        A simple type in numpy's notation: its `dtype.str`, such as ``"<f4"`` or ``"|V2"``.
    shape : sequence of int
        At most 64 extents.
    fortran_order : bool
        numpy writes True only for arrays that are not C-contiguous as well.
    """
    extents = tuple(shape)
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order}, 'shape': {extents!r}, }}"
    if extents:
        text += " " * (_GROWTH_DIGITS - len(repr(extents[-1 if fortran_order else 0])))
    taken = len(MAGIC) + 4 + len(text) + 1
    text += " " * (_ALIGNMENT - taken % _ALIGNMENT) + "\n"  # 64 spaces rather than none, as numpy has it
    return MAGIC + b"\x01\x00" + struct.pack("<H", len(text)) + text.encode("latin-1")
