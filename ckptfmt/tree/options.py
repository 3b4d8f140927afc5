"""Options that users give, checked before anything is done with them.

Numbers are whole and in range, whatever type of integer they are; globs are strings. What is wrong is told
with its name. Nothing is cast: no fraction is rounded, and no string is taken for the letters it is made of.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from ckptfmt.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["globs", "whole_number"]


def whole_number(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """Return an integer option, a numpy integer too.

    Raises
    ------
    OptionError
        It is no integer (a bool is none), or not in [`low`, `high`].
    """
    if not isinstance(value, (bool, np.bool_)) and isinstance(value, SupportsIndex):
        try:
            number = operator.index(value)
        except TypeError:  # an array of several, or of bools
            number = low - 1
        if low <= number <= high:
            return number
    raise OptionError(f"{name} must be an integer from {low} to {high}, not {value!r}")


def globs(name: str, patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Return the globs of an option; a single one may come as it is.

    Raises
    ------
    OptionError
        One of them is no string.
    """
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in found:
        if not isinstance(pattern, str):
            raise OptionError(f"{name} must be globs, which are strings, not {pattern!r}")
    return found
