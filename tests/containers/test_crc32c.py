"""CRC-32C: known values, the library and numpy alike, however the data is cut."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfmt.containers import crc32c
from ckptfmt.containers.crc32c import combine, mask, masked, unmask, update

CUTS = [0, 1, 7, 8, 511, 512, 513, 519, 520, 1023, 1024, 1025, 2047, 2048, 5000, 100_003, (4 << 20) + 777]


def slow(data: bytes) -> int:
    """The definition, bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


# RFC 3720, appendix B.4
KNOWN = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.fixture(params=["installed", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(crc32c, "_extend", lambda: crc32c._extend_numpy)
    return str(request.param)


@pytest.mark.parametrize("data", KNOWN)
def test_values_of_the_rfc(way: str, data: bytes) -> None:
    assert way
    assert update(0, data) == KNOWN[data]


@pytest.mark.usefixtures("way")
@given(data=st.binary(max_size=600), cut=st.integers(0, 600))
def test_pieces_give_what_the_whole_gives(data: bytes, cut: int) -> None:
    first, second = data[:cut], data[cut:]
    whole = slow(data)
    assert update(0, data) == whole
    assert update(update(0, first), second) == whole
    assert combine(update(0, first), update(0, second), len(second)) == whole


@pytest.mark.parametrize("size", CUTS)
def test_numpy_gives_what_bytes_one_by_one_give(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    cut = size // 3
    whole = crc32c._extend_numpy(0, data)
    assert crc32c._extend_numpy(crc32c._extend_numpy(0, data[:cut]), data[cut:]) == whole
    if size <= 5000:
        assert whole == slow(data.tobytes())


@pytest.mark.framework
@pytest.mark.parametrize("size", CUTS)
def test_numpy_gives_what_the_library_gives(size: int) -> None:
    google = pytest.importorskip("google_crc32c", reason="needs the extra `checksums`")
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert crc32c._extend_numpy(0, data) == google.value(data.tobytes())


def test_any_contiguous_memory_is_taken_without_a_copy_of_its_type() -> None:
    data = bytes(range(200))
    array = np.frombuffer(data, "<u4").reshape(2, 25)
    for given_as in (data, bytearray(data), memoryview(data), memoryview(bytearray(data)), array):
        assert update(0, given_as) == slow(data)


@pytest.mark.usefixtures("way")
def test_a_checksum_over_lengths_of_nothing_stays() -> None:
    assert update(7, b"") == 7
    assert combine(7, 0, 0) == 7


@given(crc=st.integers(0, 2**32 - 1))
def test_masking_is_undone(crc: int) -> None:
    assert unmask(mask(crc)) == crc


def test_masks_are_those_of_tensorflow() -> None:
    assert masked(b"") == 0xA282EAD8  # of an empty tensor, as every bundle has it
    assert mask(0x80000001) == 0xA285EAD8  # rotated right by 15, then the constant added


def test_without_the_library_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    crc32c._extend.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert crc32c.implementation() == "numpy"
        assert update(0, b"123456789") == KNOWN[b"123456789"]
    finally:
        monkeypatch.undo()
        crc32c._extend.cache_clear()
