"""The specification agrees with its vectors and with the code, and the check of that can fail."""

from __future__ import annotations

import pytest

from tools import check_spec

TEXT = check_spec.TEXT.read_text(encoding="utf-8")


def test_the_specification_agrees_with_vectors_and_code() -> None:
    assert check_spec.problems(TEXT) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[R-013]", "[R-099]", "R-099 is mentioned"),
        ("| R-013 | an unknown requirement | unsupported-version |", "", "R-013 is mentioned"),
        ("requirement | unsupported-version |", "requirement | unsupported |", "no error has"),
        ("requirement | unsupported-version |", "requirement | limit |", "no vector breaks R-013"),
        ("`bf16` | 16 |", "`bf16` | 8 |", "the bits of types: bf16"),
        ("`f4_e2m1fn` | 4 |", "`f4_e2m1` | 4 |", "the bits of types: f4_e2m1fn"),
        ("`F8_E4M3 F8_E5M2`", "`F8_E4M3FN F8_E5M2`", "the types in headers: f8_e4m3fn"),
        ("8 for `i64 u64 f64 c128`", "8 for `i64 u64 f64`", "the widths of planes: c128"),
        ("encoded path of a row 4 KiB", "encoded path of a row 8 KiB", "R-015"),
        ("2^24 rows or nodes", "2^25 rows or nodes", "rows or nodes"),
        ("4,194,304 bytes", "4,194,303 bytes", "section 3"),
        ("| `numpy._core` | `numpy.core` |", "| `numpy._core` | `numpy._core` |", "annex B"),
        ("`d6ba97bd2ae9", "`d6ba97bd2ae8", "the worked examples: node 0.1"),
    ],
)
def test_a_change_of_the_specification_is_found(old: str, new: str, told: str) -> None:
    assert old in TEXT
    assert any(told in problem for problem in check_spec.problems(TEXT.replace(old, new, 1)))
