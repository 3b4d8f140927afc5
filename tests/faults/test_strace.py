"""The real system calls of a real save, by `tools/campaigns/kill_at_syscall.py`: one way of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "campaigns" / "kill_at_syscall.py"


def test_killed_at_any_system_call_the_old_or_the_new_is_there(memory: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    if subprocess.run([strace, "-o", "/dev/null", "true"], check=False, capture_output=True).returncode:
        pytest.skip("strace is not allowed to trace here")
    options = ["--place", str(memory), "--way", "exchange", "--fault", "kill"]
    done = subprocess.run([sys.executable, str(TOOL), *options], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tries = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("  kill"))
    assert int(tries) >= 50
