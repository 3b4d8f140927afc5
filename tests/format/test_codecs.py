"""Chunks come back from their stored bytes, and what would not is refused in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from ckptfmt.errors import FormatError
from ckptfmt.format.codecs import decode_chunk, encode_chunk, plane_width

DATA = np.arange(4096, dtype="<f4").tobytes()


@pytest.mark.parametrize("codec", ["zstd", "planes+zstd"])
@pytest.mark.parametrize("kind", ["u8", "bf16", "f32", "c64", "f64", "c128", "s3", "i4"])
@pytest.mark.parametrize("level", [1, 3, 19])
def test_a_chunk_comes_back(codec: str, kind: str, level: int) -> None:
    width = plane_width(kind)
    stored = encode_chunk(codec, memoryview(DATA), width, level=level)
    assert len(stored) < len(DATA)
    assert bytes(decode_chunk(codec, memoryview(stored), len(DATA), width)) == DATA


def test_planes_group_the_bytes_of_equal_places() -> None:
    stored = encode_chunk("planes+zstd", memoryview(DATA), 4)
    plain = zstandard.ZstdDecompressor().decompress(bytes(stored))
    assert plain == b"".join(DATA[place::4] for place in range(4))


def test_a_chunk_that_does_not_shrink_is_stored_as_it_is() -> None:
    noise = np.random.default_rng(1).bytes(5000)
    stored = encode_chunk("zstd", memoryview(noise), 1)
    assert bytes(stored) == noise
    assert bytes(decode_chunk("zstd", memoryview(stored), len(noise), 1)) == noise


def frame(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type] # zstandard's own


GOOD = frame(DATA)
BAD = {
    "of another length": frame(DATA[:-1]),
    "without its length": frame(DATA, write_content_size=False),
    "followed by more": GOOD + b"x",
    "twice": frame(DATA[:2048]) + frame(DATA[2048:]),
    "cut": GOOD[:-3],
    "of no frame": b"not a frame at all",
    "skippable": b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd",
    "empty": b"",
    "with a dictionary": zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(DATA[:512])
    ).compress(DATA),
}


@pytest.mark.parametrize("name", BAD)
def test_stored_bytes_that_are_no_chunk_are_refused(name: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_chunk("zstd", memoryview(BAD[name]), len(DATA), 1)
    assert caught.value.rule == "R-054"


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = frame(bytes(1 << 30))
    assert len(bomb) < 200_000
    with pytest.raises(FormatError):
        decode_chunk("zstd", memoryview(bomb), 4 << 20, 1)
