"""Options are what they are: whole numbers whole, globs strings, and nothing is cast."""

from __future__ import annotations

import numpy as np
import pytest

from ckptfmt.errors import OptionError
from ckptfmt.tree.options import globs, whole_number


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)], ids=repr)
def test_every_kind_of_integer_is_one(value: int) -> None:
    found = whole_number("n", value, 1, 5)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    "value",
    [0, 6, 3.0, True, np.True_, np.ones((), "?"), "3", None, [3], np.array([3, 4]), 3 + 0j, np.float32(3)],
    ids=repr,
)
def test_what_is_no_integer_in_range_is_refused_by_name(value: int) -> None:
    with pytest.raises(OptionError, match="n must be an integer from 1 to 5"):
        whole_number("n", value, 1, 5)


def test_one_glob_is_not_its_letters() -> None:
    assert globs("want", "ab") == ("ab",)
    assert globs("want", ["ab", "c"]) == ("ab", "c")
    assert globs("want", ()) == ()


@pytest.mark.parametrize("value", [[1], [b"a"], ["a", None]], ids=repr)
def test_a_glob_is_a_string(value: list[str]) -> None:
    with pytest.raises(OptionError, match="want must be globs"):
        globs("want", value)
