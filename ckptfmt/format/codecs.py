"""Chunks to stored bytes and back: section 9.3 of ``spec/ckptfmt-1.0.md``.

A chunk is coded by itself; one that would not shrink is stored raw, which its length says. What decoding
may produce is bounded by the manifest before anything is allocated.
"""

from __future__ import annotations

import threading

import numpy as np
import zstandard

from ckptfmt.errors import FormatError

__all__ = ["DEFAULT_LEVEL", "MAX_LEVEL", "decode_chunk", "encode_chunk", "plane_width"]

DEFAULT_LEVEL = 3
MAX_LEVEL = 22
_MAX_WINDOW = 8 << 20
_WIDTHS = {
    **dict.fromkeys(("i16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("i32", "u32", "f32", "c64"), 4),
    **dict.fromkeys(("i64", "u64", "f64", "c128"), 8),
}
_local = threading.local()


def plane_width(dtype: str) -> int:
    """Return the number of byte planes that `planes+zstd` splits elements of a type into."""
    return _WIDTHS.get(dtype, 1)


def encode_chunk(
    codec: str, data: memoryview, width: int, *, level: int = DEFAULT_LEVEL
) -> bytes | memoryview:
    """Return the stored bytes of a chunk; the chunk itself where coding would not make it shorter.

    Parameters
    ----------
    codec : str
        ``"zstd"`` or ``"planes+zstd"``.
    data : memoryview
        The chunk, format "B".
    width : int
        `plane_width` of its type.
    level : int
        Of Zstandard, 1 to 22.
    """
    plain = _split(data, width) if codec == "planes+zstd" and width > 1 else data
    frame: bytes = _compressor(level).compress(plain)
    return frame if len(frame) < len(data) else data


def decode_chunk(codec: str, stored: memoryview, length: int, width: int) -> bytes | memoryview:
    """Return a chunk of `length` bytes from its stored bytes.

    Raises
    ------
    FormatError
        They do not decode to exactly that many bytes, or would need more memory than the format allows.
    """
    if len(stored) == length:
        return stored
    try:
        frame = zstandard.get_frame_parameters(stored)
        if frame.content_size != length or frame.dict_id or frame.window_size > _MAX_WINDOW:
            raise FormatError("a frame that is not of the chunk's length", rule="R-054")
        plain: bytes = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompress(
            stored, max_output_size=length, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FormatError(f"a chunk that does not decode: {error}", rule="R-054") from None
    if len(plain) != length:
        raise FormatError(f"a chunk that decodes to {len(plain)} bytes, not {length}", rule="R-054")
    return _join(plain, width) if codec == "planes+zstd" and width > 1 else plain


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Return this thread's compressor: they keep state and must not be shared."""
    made: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("compressors", {})
    if level not in made:
        made[level] = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)
    return made[level]


def _split(data: memoryview, width: int) -> bytes:
    planes: bytes = np.frombuffer(data, np.uint8).reshape(-1, width).T.tobytes()
    return planes


def _join(planes: bytes, width: int) -> memoryview:
    out = np.empty((len(planes) // width, width), np.uint8)
    np.copyto(out, np.frombuffer(planes, np.uint8).reshape(width, -1).T)
    return out.reshape(-1).data
