"""A function in a process of its own, forked from this one: milliseconds instead of a fresh interpreter.

For tests of what a killed process leaves and of processes that race. Call from a single-threaded process.
"""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KILLED", "start", "wait"]

KILLED = -signal.SIGKILL


def start(function: Callable[[], None]) -> int:
    """Run `function` in a forked process and return its number at once.

    The process exits 0 when it returns, and 1, with a traceback on stderr, when it raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the test runner may have
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    except BaseException:  # noqa: BLE001 (whatever it is, it must not run on as a second test runner)
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(pid: int) -> int:
    """Wait for a process; return its exit status, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
