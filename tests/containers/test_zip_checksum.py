"""The checksum of zip archives is zlib's, whoever computes it."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest

from ckptfmt.containers.zip import checksum as module
from ckptfmt.containers.zip.checksum import crc32


@pytest.fixture(params=["as installed", "without a library"])
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    if request.param == "without a library":
        monkeypatch.setitem(sys.modules, "isal", None)
    module._implementation.cache_clear()
    yield
    module._implementation.cache_clear()


@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize("length", [0, 1, 7, 64, 1000, 100_001])
def test_any_bytes_have_the_checksum_that_zlib_computes(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(bytearray(data)), 0xFFFFFFFF) == zlib.crc32(data, 0xFFFFFFFF)
    half = length // 2
    assert crc32(data[half:], crc32(data[:half])) == zlib.crc32(data)


@pytest.mark.usefixtures("_implementation")
def test_a_known_value() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.framework
def test_the_library_does_the_work_where_it_is_installed() -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib", reason='needs the extra "checksums"')
    module._implementation.cache_clear()
    assert module._implementation() is isal_zlib.crc32
