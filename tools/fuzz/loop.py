"""The run: pick an input, change it, feed it under limits, keep it if it reached new lines.

Coverage is of lines of the package, by a trace function; every input has five seconds of processor time (a
minute if it waits) and 256 MiB more than the process has already. Findings are written to files and end
nothing; inputs that reached new lines are kept in the folder ``reached``.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ckptfmt
from ckptfmt.errors import CkptError
from tools.fuzz.target import SENTINEL, corpus, fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from tools.fuzz.target import Target

    TraceFunction = Callable[[FrameType, str, object], object]

__all__ = ["Fuzzer", "TooSlowError", "bounded_memory", "limited", "replay"]

_SECONDS = 5.0
_WAIT = 60.0  # by the clock, which runs on while a busy machine runs something else
_MEMORY = 256 << 20
_PACKAGE = str(Path(ckptfmt.__file__).parent) + os.sep


class TooSlowError(Exception):
    """An input took longer than it may."""


def limited(target: Target, data: bytes, place: Path, *, seconds: float = _SECONDS) -> str:
    """Feed one input under the limits; return "read" or the kind of the error.

    Raises
    ------
    Exception
        Anything but a `CkptError` is a finding.
    """
    try:
        with _bounded_time(seconds):
            target.run(data, place)
    except CkptError as error:
        return error.kind
    if Path(SENTINEL).exists() or (place / SENTINEL).exists():
        raise AssertionError("an input was executed")
    return "read"


@contextmanager
def _bounded_time(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in what takes longer."""

    def late(number: int, _: FrameType | None) -> None:
        raise TooSlowError(f"{signal.Signals(number).name}: longer than {seconds} s, or {_WAIT} s of waiting")

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, _WAIT))
    before = [signal.signal(number, late) for _, number, _ in timers]
    try:
        for timer, _, limit in timers:
            signal.setitimer(timer, limit)
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@contextmanager
def bounded_memory(most: int = _MEMORY) -> Iterator[None]:
    """Let the process have so many bytes of data more than it has now; Linux only."""
    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    (now,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(now) * 1024 + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@dataclass
class Fuzzer:
    """One run against one target.

    Attributes
    ----------
    target : Target
    place : Path
        A directory of its own.
    seed : int
    executions : int
    outcomes : dict of str to int
        How often an input was read, or refused with each kind.
    findings : list of Path
        Files that hold an input that broke a rule; beside each, its traceback.
    """

    target: Target
    place: Path
    seed: int = 0
    executions: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    findings: list[Path] = field(default_factory=list)
    _lines: set[tuple[str, int]] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    def run(self, seconds: float) -> None:
        """Fuzz for a time."""
        rng = random.Random(self.seed)  # noqa: S311 - no secrets here
        work = fresh(self.place / "work")
        pool = [*self.target.seeds(fresh(self.place / "seeds")), *corpus(self.target.name)]
        for data in pool:
            self._feed(data, work)
        given = list(pool)
        reached = fresh(self.place / "reached")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            chosen = rng.choice((given, pool, pool[-50:]))
            data = self.target.change(rng.choice(chosen), rng, pool)
            if self._feed(data, work):
                pool.append(data)
                (reached / f"{len(pool):05}").write_bytes(data)

    def needed(self, inputs: Iterable[bytes], *, count: int) -> list[bytes]:
        """Return up to so many inputs that together reach the most lines that seeds and corpus do not."""
        work = fresh(self.place / "work")
        for data in [*self.target.seeds(fresh(self.place / "seeds")), *corpus(self.target.name)]:
            self._feed(data, work)
        left = {data: self._alone(data, work) - self._lines for data in inputs}
        kept: list[bytes] = []
        while left and len(kept) < count:
            best = max(left, key=lambda data: (len(left[data]), -len(data), data))
            reached = left.pop(best)
            if not reached:
                break
            kept.append(best)
            left = {data: lines - reached for data, lines in left.items()}
        return kept

    def _alone(self, data: bytes, work: Path) -> set[tuple[str, int]]:
        """Return the lines that one input reaches."""
        before, self._lines = self._lines, set()
        self._feed(data, work)
        reached, self._lines = self._lines, before
        return reached

    @property
    def lines(self) -> int:
        """Lines of the package that were reached."""
        return len(self._lines)

    def _feed(self, data: bytes, work: Path) -> bool:
        """Feed an input; return whether it reached new lines."""
        self.executions += 1
        before = len(self._lines)
        sys.settrace(self._trace)  # type: ignore[arg-type] # returns itself, as settrace wants
        try:
            outcome = limited(self.target, data, work)
        except Exception:  # noqa: BLE001 - that is what is looked for
            sys.settrace(None)
            self._keep(data, traceback.format_exc())
            outcome = "FINDING"
        finally:
            sys.settrace(None)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        return len(self._lines) > before

    def _trace(self, frame: FrameType, _event: str, _: object) -> TraceFunction | None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace

    def _keep(self, data: bytes, text: str) -> None:
        last = text.strip().splitlines()
        key = last[-1][:80] + next((line for line in reversed(last) if line.lstrip().startswith("File")), "")
        if key in self._seen:
            return
        self._seen.add(key)
        path = self.place / f"finding-{len(self.findings)}"
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(text)
        self.findings.append(path)


def replay(target: Target, place: Path, *, mutations: int, seed: int = 0) -> Iterator[tuple[bytes, str]]:
    """Feed seeds, corpus and some mutations; yield each input and what became of it."""
    rng = random.Random(seed)  # noqa: S311 - no secrets here
    pool = [*target.seeds(fresh(place / "seeds")), *corpus(target.name)]
    work = fresh(place / "work")
    for data in [*pool, *(target.change(rng.choice(pool), rng, pool) for _ in range(mutations))]:
        yield data, limited(target, data, work)
