"""The header of a safetensors file: a closed table of named byte ranges, encoded and decoded strictly.

A file is a header (8 bytes little-endian length, then that many bytes of JSON padded with spaces) and a data
section that the named ranges fill without holes, overlaps or trailing bytes. Nothing here reads tensors or
writes files. A reader accepts what safetensors 0.8 accepts, except duplicate names, fractions and
dimensions beyond 2^53, which no writer makes.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import FormatError, LimitError, TreeError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptfmt.storage.reader import ByteReader

__all__ = [
    "DTYPES",
    "MAX_HEADER",
    "METADATA",
    "Entry",
    "Header",
    "assemble_header",
    "bits_of",
    "decode_header",
    "encode_entry",
    "encode_header",
    "encode_metadata",
    "header_size",
]

MAX_HEADER = 100_000_000
"""Greatest length of the JSON text, padding included, that readers accept (safetensors since 0.3)."""

METADATA = "__metadata__"
"""The member that is no tensor."""

_FIXED = {
    "BOOL": ("bool", 8),
    "U8": ("u8", 8),
    "I8": ("i8", 8),
    "U16": ("u16", 16),
    "I16": ("i16", 16),
    "U32": ("u32", 32),
    "I32": ("i32", 32),
    "U64": ("u64", 64),
    "I64": ("i64", 64),
    "F16": ("f16", 16),
    "BF16": ("bf16", 16),
    "F32": ("f32", 32),
    "F64": ("f64", 64),
    "C64": ("c64", 64),
    "F8_E4M3": ("f8_e4m3fn", 8),
    "F8_E5M2": ("f8_e5m2", 8),
    "F8_E4M3FNUZ": ("f8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("f8_e5m2fnuz", 8),
    "F8_E8M0": ("f8_e8m0fnu", 8),
    "F4": ("f4_e2m1fn", 4),
}
_WITHOUT_COUNTERPART = {"F6_E2M3": 6, "F6_E3M2": 6}

DTYPES: dict[str, str] = {theirs: ours for theirs, (ours, _) in _FIXED.items()}
"""Our name of each type that has one; F6_E2M3 and F6_E3M2 have none."""

_BITS = {theirs: bits for theirs, (_, bits) in _FIXED.items()} | _WITHOUT_COUNTERPART

_quote = json.encoder.encode_basestring  # escapes what JSON demands and nothing else


def bits_of(dtype: str) -> int | None:
    """Return the bits per element of a safetensors type, or None for an unknown one."""
    return _BITS.get(dtype)


class Entry(NamedTuple):
    """One tensor of a header.

    Attributes
    ----------
    name : str
    dtype : str
        In safetensors' words, such as ``"BF16"``.
    shape : tuple of int
        In elements, for types narrower than a byte too.
    begin, end : int
        Its bytes in the data section.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A decoded header.

    Attributes
    ----------
    entries : tuple of Entry
        In the order of their bytes.
    metadata : dict of str to str, or None
        What ``__metadata__`` holds; None if it is absent or null.
    data_start : int
        Where the data section begins in the file, in bytes.
    """

    entries: tuple[Entry, ...]
    metadata: dict[str, str] | None
    data_start: int


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Return the text of the ``__metadata__`` member, in the order given."""
    pairs = ",".join(f"{_quote(key)}:{_quote(value)}" for key, value in metadata.items())
    return _utf8(f'"{METADATA}":{{{pairs}}}')


def encode_entry(entry: Entry) -> bytes:
    """Return the text of one member, without the comma between members."""
    shape = ",".join(map(str, entry.shape))
    return _utf8(
        f'{_quote(entry.name)}:{{"dtype":"{entry.dtype}","shape":[{shape}],'
        f'"data_offsets":[{entry.begin},{entry.end}]}}'
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TreeError(f"a name is not valid Unicode: {text[:80]!r}") from None


def encode_header(entries: Iterable[Entry], metadata: Mapping[str, str] | None, *, align: int) -> bytes:
    """Return a header: length, JSON text, spaces.

    Members stand in the order given, ``__metadata__`` first; there is no other white space, and no escape
    that JSON does not need.

    Parameters
    ----------
    entries : iterable of Entry
        Their ranges are taken as they are.
    metadata : mapping of str to str, or None
        None leaves ``__metadata__`` out.
    align : int
        The result's length is a multiple of this: where the data section starts.

    Raises
    ------
    LimitError
        The text is longer than any reader accepts; `header_size` tells before.
    TreeError
        A string is not valid Unicode.
    """
    members = [] if metadata is None else [encode_metadata(metadata)]
    return assemble_header([*members, *map(encode_entry, entries)], align=align)


def assemble_header(members: Sequence[bytes], *, align: int) -> bytes:
    """Return a header from the texts of its members; limits and errors as for `encode_header`."""
    text = b"{" + b",".join(members) + b"}"
    size = header_size(map(len, members), align=align)
    if size - 8 > MAX_HEADER:
        raise LimitError(f"a safetensors header of {size - 8} bytes; readers accept {MAX_HEADER}")
    return (size - 8).to_bytes(8, "little") + text.ljust(size - 8, b" ")


def header_size(members: Iterable[int], *, align: int) -> int:
    """Return the length of a header from the lengths of its members' texts.

    Parameters
    ----------
    members : iterable of int
        Lengths of `encode_metadata` and `encode_entry`.
    align : int
        As for `encode_header`.
    """
    count = total = 0
    for length in members:
        count += 1
        total += length
    size = 8 + 2 + total + max(0, count - 1)
    return -(-size // align) * align


def decode_header(reader: ByteReader) -> Header:
    """Read and check the header of a file.

    Parameters
    ----------
    reader : ByteReader
        The whole file.

    Raises
    ------
    TruncatedError
        The file ends before its header, or before its data, does.
    LimitError
        The header is longer than 100 MB, nested too deeply, or a shape is beyond what a tensor can have.
    FormatError
        Any other rule is broken; the error names the tensor, and the offset in the file where there is one.
    """
    text = _header_text(reader)
    start = 8 + len(text)
    members = _parse(text, reader.name)
    metadata = _metadata(members.pop(METADATA, None), reader.name)
    entries = [_entry(name, value, reader.name) for name, value in members.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_filled(entries, start, reader)
    return Header(tuple(entries), metadata, start)


def _header_text(reader: ByteReader) -> bytes:
    if reader.size < 8:
        raise TruncatedError("no room for the length of a header", file=reader.name, offset=reader.size)
    length = int.from_bytes(reader.read(0, 8), "little")
    if length > MAX_HEADER:
        raise LimitError(f"a header of {length} bytes; at most {MAX_HEADER}", file=reader.name, offset=0)
    if length > reader.size - 8:
        raise TruncatedError(
            f"a header of {length} bytes in a file of {reader.size}", file=reader.name, offset=reader.size
        )
    return reader.read(8, length)


class _DuplicateError(ValueError):
    pass


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _DuplicateError(next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1))
    return made


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]} is not an integer")


def _parse(text: bytes, file: str) -> dict[str, object]:
    try:
        value = json.loads(
            text.decode(), object_pairs_hook=_object, parse_float=_no_fraction, parse_constant=_no_fraction
        )
    except RecursionError:
        raise LimitError("a header that is nested too deeply", file=file, offset=8) from None
    except UnicodeDecodeError as error:
        raise FormatError("a header that is not UTF-8", file=file, offset=8 + error.start) from None
    except json.JSONDecodeError as error:
        offset = 8 + len(error.doc[: error.pos].encode())
        raise FormatError(f"a header that is not JSON: {error.msg}", file=file, offset=offset) from None
    except _DuplicateError as error:
        twice = str(error)
        raise FormatError(f"{twice[:200]!r} is there twice", file=file, tensor=_shown(twice)) from None
    except ValueError as error:  # a fraction, or an integer of thousands of digits
        raise FormatError(f"malformed header: {error}", file=file, offset=8) from None
    if not isinstance(value, dict):
        raise FormatError("a header that is no JSON object", file=file, offset=8)
    return value


def _shown(name: str) -> str:
    return name[:200].encode(errors="backslashreplace").decode()


def _valid_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _metadata(value: object, file: str) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise FormatError(f"{METADATA} is no object", file=file)
    for key, text in value.items():
        if not isinstance(text, str):
            raise FormatError(f"{METADATA}[{key[:200]!r}] is no string", file=file)
        if not (_valid_text(key) and _valid_text(text)):
            raise FormatError(f"{METADATA}[{key[:200]!r}] is not valid Unicode", file=file)
    return value


def _entry(name: str, value: object, file: str) -> Entry:
    """Check one member; members that safetensors does not know are ignored, as it does."""

    def fail(message: str) -> NoReturn:
        raise FormatError(message, file=file, tensor=_shown(name))

    if not _valid_text(name):
        fail("a name that is not valid Unicode")
    if not isinstance(value, dict):
        fail("its description is no JSON object")
    dtype = value.get("dtype")
    bits = _BITS.get(dtype) if isinstance(dtype, str) else None
    if not isinstance(dtype, str) or bits is None:
        fail(f"unknown type {str(dtype)[:40]!r}")
    shape, offsets = value.get("shape"), value.get("data_offsets")
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        fail("its shape is no list of non-negative integers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(at) is int for at in offsets):
        fail("its data_offsets are no pair of integers")
    begin, end = offsets
    if not 0 <= begin <= end:
        fail(f"its data_offsets [{begin}, {end}] are no range")
    _check_size(Entry(name, dtype, tuple(shape), begin, end), bits, file)
    return Entry(name, dtype, tuple(shape), begin, end)


def _check_size(entry: Entry, bits: int, file: str) -> None:
    tensor = _shown(entry.name)
    count = checked_count(entry.shape, file=file, tensor=tensor)
    if count * bits != (entry.end - entry.begin) * 8:
        raise FormatError(
            f"{entry.end - entry.begin} bytes for {entry.dtype} of shape {list(entry.shape)},"
            f" which takes {count * bits / 8:.15g}",
            file=file,
            tensor=tensor,
        )


def _check_filled(entries: Sequence[Entry], start: int, reader: ByteReader) -> None:
    """Check that the ranges, in order, fill the data section."""
    at = 0
    for entry in entries:
        if entry.begin != at:
            what = (
                "overlaps the bytes before it" if entry.begin < at else f"a hole of {entry.begin - at} bytes"
            )
            raise FormatError(what, file=reader.name, tensor=_shown(entry.name), offset=start + entry.begin)
        at = entry.end
    if start + at > reader.size:
        last = next(entry for entry in entries if start + entry.end > reader.size)
        raise TruncatedError(
            f"the file has {reader.size} bytes, its tensors need {start + at}",
            file=reader.name,
            tensor=_shown(last.name),
            offset=reader.size,
        )
    if start + at < reader.size:
        excess = reader.size - start - at
        raise FormatError(f"{excess} bytes after the last tensor", file=reader.name, offset=start + at)
