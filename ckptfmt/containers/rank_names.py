"""Which files of a directory are one of each rank, told by their names alone.

Names must be alike but for one number that follows ``rank`` or ``shard`` or stands before ``of``, so that
the steps of one run (``checkpoint_100.pt``) are never taken for ranks. The content of the files has the last
word on which rank a file is of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["RankNames", "holds_ranks", "rank_names"]

_ENDINGS = (".pt", ".pth", ".bin")
_NUMBER = re.compile(
    r"(?i)(?:(?<![a-z])(?:mp_?|dp_?|tp_?|pp_?)?(?:rank|shard)[._-]?)([0-9]{1,7})(?:[._-]?of[._-]?([0-9]{1,7}))?"
    r"|(?<![0-9])([0-9]{1,7})[._-]?of[._-]?([0-9]{1,7})(?![0-9])"
)


@dataclass(frozen=True, slots=True)
class RankNames:
    """The files of a set.

    Attributes
    ----------
    files : mapping of int to str
        Names by rank, from 0 on.
    world : int or None
        How many there should be, where the names tell.
    """

    files: Mapping[int, str]
    world: int | None


def rank_names(names: Iterable[str]) -> RankNames | None:
    """Return the set that the PyTorch files among some names are, or None if they are none, or several."""
    files = sorted(name for name in names if name.lower().endswith(_ENDINGS))
    found: dict[int, str] = {}
    patterns: set[str] = set()
    worlds: set[int | None] = set()
    for name in files:
        match = _NUMBER.search(name)
        if match is None:
            return None
        group = _group(match)
        number, world = int(match[group]), match[group + 1]
        if number in found:
            return None
        found[number] = name
        patterns.add(_pattern(name, match))
        worlds.add(None if world is None else int(world))
    if len(patterns) != 1:
        return None
    world = worlds.pop()
    first = 1 if world is not None and world in found and 0 not in found else 0
    return RankNames({number - first: found[number] for number in sorted(found)}, world)


def holds_ranks(names: Iterable[str]) -> bool:
    """Whether any two of the PyTorch files among some names are alike but for the number of a rank."""
    matches = [(name, _NUMBER.search(name)) for name in names if name.lower().endswith(_ENDINGS)]
    patterns = [_pattern(name, match) for name, match in matches if match is not None]
    return len(set(patterns)) < len(patterns)


def _group(match: re.Match[str]) -> int:
    """Return the group of the rank's number."""
    return 1 if match[1] is not None else 3


def _pattern(name: str, match: re.Match[str]) -> str:
    """Return a name without the number of its rank."""
    group = _group(match)
    return name[: match.start(group)] + "#" + name[match.end(group) :]
