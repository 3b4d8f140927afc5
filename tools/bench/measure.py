"""How it is measured: contenders take turns, and every figure is a ratio to a raw copy of the same round."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools.bench.contenders import remove

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tools.bench.contenders import Contender, State


@dataclass
class Series:
    """The times of one contender.

    Attributes
    ----------
    seconds : list of float
        For each round.
    ratios : list of float
        Time of the round's reference divided by the contender's: 1 is as fast, more is faster.
    """

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, float]:
        """Return medians and spread."""
        return {
            "seconds_median": statistics.median(self.seconds),
            "seconds_min": min(self.seconds),
            "seconds_max": max(self.seconds),
            "ratio_median": statistics.median(self.ratios),
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
        }


def timed(action: Callable[[], None]) -> float:
    """Return the seconds that an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def forget(path: Path) -> None:
    """Drop a file, or a directory's files, from the page cache."""
    for file in [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def saves(
    contenders: Sequence[Contender],
    reference: Contender,
    state: State,
    place: Path,
    *,
    rounds: int,
    rest_s: float,
) -> dict[str, Series]:
    """Measure saving: in each round the reference, then everyone, beginning with another one each time."""
    table = {contender.name: Series() for contender in (reference, *contenders)}
    for number in range(rounds):
        base = _save_once(reference, state, place, rest_s)
        table[reference.name].seconds.append(base)
        table[reference.name].ratios.append(1.0)
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            seconds = _save_once(contender, state, place, rest_s)
            table[contender.name].seconds.append(seconds)
            table[contender.name].ratios.append(base / seconds)
    return table


def _save_once(contender: Contender, state: State, place: Path, rest_s: float) -> float:
    path = place / "target"
    if rest_s:
        time.sleep(rest_s)
    seconds = timed(lambda: contender.save(state, path))
    remove(path)
    return seconds


def loads(
    contenders: Sequence[Contender], reference: str, state: State, place: Path, *, rounds: int, cold: bool
) -> dict[str, Series]:
    """Measure loading what each contender saved; ratios are to the contender of the name `reference`."""
    able = [contender for contender in contenders if contender.load is not None]
    for contender in able:
        contender.save(state, place / contender.name)
    table = {contender.name: Series() for contender in able}
    for number in range(rounds):
        turn = number % len(able)
        times = {}
        for contender in (*able[turn:], *able[:turn]):
            path = place / contender.name
            if cold:
                forget(path)
            elif number == 0:
                contender.load(path)  # type: ignore[misc] # the others were left out
            times[contender.name] = timed(lambda c=contender, p=path: c.load(p))  # type: ignore[misc]
        for name, seconds in times.items():
            table[name].seconds.append(seconds)
            table[name].ratios.append(times[reference] / seconds)
    for contender in able:
        remove(place / contender.name)
    return table
