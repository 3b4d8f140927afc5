from __future__ import annotations

import pytest

from ckptfmt import errors
from ckptfmt.cli.exits import Exit, exit_of


def test_the_codes_are_those_that_scripts_know() -> None:
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "DIFFERENT": 1,
        "USAGE": 2,
        "LOSSY": 3,
        "MALFORMED": 4,
        "IO": 5,
        "MISSING_EXTRA": 6,
        "RANKS_DISAGREE": 7,
        "BUG": 70,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.VerificationError("x"), Exit.DIFFERENT),
        (errors.ConversionError("x"), Exit.USAGE),
        (errors.LossyError("x"), Exit.LOSSY),
        (errors.UnknownFormatError("x"), Exit.MALFORMED),
        (errors.FormatError("x"), Exit.MALFORMED),
        (errors.ChecksumError("x"), Exit.MALFORMED),
        (errors.MissingFileError("x"), Exit.MALFORMED),
        (errors.TreeError("x"), Exit.MALFORMED),
        (errors.StorageError("x"), Exit.IO),
        (errors.NotFoundError("x"), Exit.IO),
        (errors.ExistsError("x"), Exit.IO),
        (OSError(5, "Input/output error"), Exit.IO),
        (MemoryError(), Exit.IO),
        (errors.MissingExtraError("torch", "reading"), Exit.MISSING_EXTRA),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (ValueError("x"), Exit.BUG),
        (AssertionError(), Exit.BUG),
        (RecursionError(), Exit.BUG),
    ],
    ids=repr,
)
def test_an_error_ends_in_its_code(error: BaseException, code: Exit) -> None:
    assert exit_of(error) is code


def test_every_error_of_ours_has_a_code_that_is_not_a_bug() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    made = [kind("torch", "x") if kind is errors.MissingExtraError else kind("x") for kind in kinds]
    assert [error for error in made if exit_of(error) is Exit.BUG] == []
