"""What files of other kinds begin with: one row for each, with what to do about it.

Only kinds that people do give to a checkpoint tool. The rows are tried in order, the surer first; a row
says what the content is, never what the file is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Signature", "signature_of"]


@dataclass(frozen=True, slots=True)
class Signature:
    """A sign of a kind of file.

    Attributes
    ----------
    magic : bytes
    what : str
        What the file is, with its article.
    advice : str
        What to do, as a sentence.
    offset : int
        Where `magic` stands.
    """

    magic: bytes
    what: str
    advice: str
    offset: int = 0


_UNPACK = "Unpack it and give what is inside."
_NOT_YET = "This release does not read it."
_NO_WEIGHTS = "It holds no checkpoint."

_SIGNATURES = (
    Signature(b"\x1f\x8b", "a gzip file", _UNPACK),
    Signature(b"BZh", "a bzip2 file", _UNPACK),
    Signature(b"\xfd7zXZ\x00", "an xz file", _UNPACK),
    Signature(b"\x28\xb5\x2f\xfd", "a Zstandard file", _UNPACK),
    Signature(b"\x04\x22\x4d\x18", "an LZ4 file", _UNPACK),
    Signature(b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    Signature(b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    Signature(
        b"\x93NUMPY",
        "a single NumPy array (.npy)",
        'Put it into an archive: numpy.savez("x.npz", name=array).',
    ),
    Signature(b"GGUF", "a GGUF model", _NOT_YET),
    Signature(b"GGML", "a GGML model", _NOT_YET),
    Signature(b"TFL3", "a TensorFlow Lite model", "Give the checkpoint that it was made from.", 4),
    Signature(b"PTMF", "a PyTorch mobile model", "Give the checkpoint that it was made from.", 4),
    Signature(
        b"\x12\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        "an MXNet parameter file",
        _NOT_YET,
    ),
    Signature(b"\x0c\xdb\x3a\x2a", "a part of an OCDBT store, as Orbax writes", _NOT_YET),
    Signature(b"MATLAB 5.0 MAT-file", "a MATLAB file", _NOT_YET),
    Signature(b"SQLite format 3\x00", "an SQLite data base", _NO_WEIGHTS),
    Signature(b"PAR1", "a Parquet file", _NO_WEIGHTS),
    Signature(b"ARROW1", "an Arrow file", _NO_WEIGHTS),
    Signature(b"%PDF-", "a PDF document", _NO_WEIGHTS),
    Signature(b"\x89PNG\r\n\x1a\n", "a PNG image", _NO_WEIGHTS),
    Signature(b"\xff\xd8\xff", "a JPEG image", _NO_WEIGHTS),
    Signature(b"\x7fELF", "a program or library", _NO_WEIGHTS),
    Signature(b"Salted__", "a file encrypted by OpenSSL", "Decrypt it first."),
    Signature(b"age-encryption.org/", "a file encrypted by age", "Decrypt it first."),
)


def signature_of(head: bytes, tail: bytes) -> Signature | None:
    """Return the first sign that fits a file, or None.

    Parameters
    ----------
    head : bytes
        Up to 4 KiB from the beginning.
    tail : bytes
        Up to 4 KiB from the end.
    """
    for row in _SIGNATURES:
        if head.startswith(row.magic, row.offset):
            return row
    for look in (_onnx, _saved_model, _message_pack):
        found = look(head, tail)
        if found is not None:
            return found
    return None


def _onnx(head: bytes, _tail: bytes) -> Signature | None:
    """ModelProto: its version (field 1), then the name of its producer (field 2), short and in ASCII."""
    if len(head) < 8 or head[0] != 0x08 or not 1 <= head[1] <= 32 or head[2] != 0x12:
        return None
    length = head[3]
    name = head[4 : 4 + length]
    if 0 < length < 64 and len(name) == length and name.isascii() and name.decode().isprintable():
        return Signature(
            b"", "an ONNX model, by the look of it", "Give the checkpoint that it was made from."
        )
    return None


def _saved_model(head: bytes, _tail: bytes) -> Signature | None:
    """SavedModel: its version (field 1) is 1, then a graph (field 2) of 128 bytes or more."""
    if re.match(rb"\x08\x01\x12[\x80-\xff]{1,4}[\x01-\x7f]\x0a", head) is None:
        return None
    advice = "It holds no weights: give the directory that it lies in, whose folder variables holds them."
    return Signature(b"", "the program of a TensorFlow SavedModel, by the look of it", advice)


def _message_pack(head: bytes, _tail: bytes) -> Signature | None:
    """A small mapping whose first key is a short string of ASCII, as Flax writes."""
    if len(head) < 8 or not (0x81 <= head[0] <= 0x8F or head[0] == 0xDE):
        return None
    at = 1 if head[0] < 0x90 else 3
    length = head[at] - 0xA0
    name = head[at + 1 : at + 1 + max(length, 0)]
    if 1 <= length <= 31 and len(name) == length and name.isascii() and name.decode().isprintable():
        return Signature(b"", "a MessagePack file, as Flax writes, by the look of it", _NOT_YET)
    return None
