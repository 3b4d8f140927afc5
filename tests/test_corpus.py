"""Seeds, kept inputs and some changed copies of them: nothing but a typed error, in bounded time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.fuzz.loop import TooSlowError, bounded_memory, limited, replay
from tools.fuzz.target import SENTINEL, Target
from tools.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable

MUTATIONS = 1500
FRAMEWORK = pytest.mark.framework
CASES = [pytest.param(name, marks=FRAMEWORK if one.needs else ()) for name, one in TARGETS.items()]


@pytest.mark.parametrize("name", CASES)
def test_every_input_is_read_or_refused_with_a_typed_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if needs := TARGETS[name].needs:
        pytest.importorskip(needs, reason=f"needs the extra `{needs}`")
    monkeypatch.chdir(tmp_path)
    with bounded_memory():
        outcomes = Counter(outcome for _, outcome in replay(TARGETS[name], tmp_path, mutations=MUTATIONS))
    assert outcomes["read"] > 0
    assert sum(outcomes.values()) > MUTATIONS
    assert not list(tmp_path.rglob(SENTINEL))


def target(run: Callable[[bytes, Path], None]) -> Target:
    return Target("made", lambda _: [b"x"], run)


def test_an_input_that_takes_too_long_is_a_finding(tmp_path: Path) -> None:
    def spin(_: bytes, __: Path) -> None:
        while True:
            pass

    with pytest.raises(TooSlowError, match="SIGPROF"):
        limited(target(spin), b"x", tmp_path, seconds=0.05)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is bounded on Linux only")
def test_an_input_that_takes_too_much_memory_is_a_finding(tmp_path: Path) -> None:
    with bounded_memory(), pytest.raises(MemoryError):
        limited(target(lambda _, __: bytearray(512 << 20).clear()), b"x", tmp_path)


def test_an_input_that_is_executed_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="executed"):
        limited(target(lambda _, place: (place / SENTINEL).touch()), b"x", tmp_path)
