"""Seeds, kept inputs and some changed copies of them: nothing but a typed error, in bounded time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tools.fuzz.loop import replay
from tools.fuzz.targets import SENTINEL, TARGETS

if TYPE_CHECKING:
    from pathlib import Path

MUTATIONS = 1500


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_is_read_or_refused_with_a_typed_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcomes = Counter(outcome for _, outcome in replay(TARGETS[name], tmp_path, mutations=MUTATIONS))
    assert outcomes["read"] > 0
    assert sum(outcomes.values()) > MUTATIONS
    assert not list(tmp_path.rglob(SENTINEL))
