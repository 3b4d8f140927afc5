"""Sizes as people write them: bytes with a unit, read and shown."""

from __future__ import annotations

import re

__all__ = ["parse_size", "show_size"]

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": int(base**power)
    for power, letter in enumerate("kmgtp", 1)
    for ending, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``4GiB``, ``500MB``, ``1.5G`` or ``4096``.

    KiB and K are 1024 bytes, kB is 1000; case does not matter.

    Raises
    ------
    ValueError
        It is none.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size; write it as 4GiB, 500MB or 4096")
    whole, _, fraction = match[1].partition(".")
    return int(whole) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def show_size(nbytes: int) -> str:
    """Return bytes with a binary unit, three digits or more."""
    if nbytes < 1024:
        return f"{nbytes} B"
    value, unit = float(nbytes), "B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007 - the last one is used
        value /= 1024
        if value < 1023.95:
            break
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}"
