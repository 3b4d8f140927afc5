from __future__ import annotations

import pytest

from ckptfmt.cli.sizes import parse_size, show_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("1K", 1024),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("500MB", 500_000_000),
        ("1.5G", 3 << 29),
        ("0.1MB", 100_000),
        ("2TiB", 2 << 40),
        (f"{2**62}", 2**62),
    ],
)
def test_a_size_is_read_with_its_unit(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1", "4XB", "1e9", "1.", ".5G", "1 2", "inf", "٣"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 << 10, "10.0 KiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (5 << 30, "5.00 GiB"),
        (3 << 60, "3072.0 PiB"),
    ],
)
def test_a_size_is_shown_with_a_unit(nbytes: int, text: str) -> None:
    assert show_size(nbytes) == text
