"""Measure the memory that saving or verifying takes beside the state, in a process of its own.

Prints JSON. Anonymous memory is the peak of RssAnon and RssShmem, sampled every millisecond: pages of
mapped files are the system's to drop.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
from typing_extensions import Self

import ckptfmt
from tools.bench.contenders import remove


def anonymous() -> int:
    """Return this process's resident memory that is no file's: private and shared, in bytes."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {row[0]: int(row[1]) * 1024 for row in rows if row[0] in ("RssAnon:", "RssShmem:")}
    return sum(sizes.values())


class Peak:
    """Samples anonymous memory in a thread."""

    def __init__(self) -> None:
        self.before = anonymous()
        self.value = self.before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._stop.is_set():
            self.value = max(self.value, anonymous())
            time.sleep(0.001)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    """Save or verify 1 GiB."""
    what, path = sys.argv[1], Path(sys.argv[2])
    state = {f"w{i}": np.full((1 << 22,), i, np.float32) for i in range(64)}
    ckptfmt.save({"w": state["w0"]}, path)  # imports and thread pools are not what is measured
    remove(path)
    if what == "verify":
        ckptfmt.save(state, path)
        del state
    with Peak() as peak:
        if what == "save":
            ckptfmt.save(state, path)
        elif not ckptfmt.check(path).ok:
            raise AssertionError
    remove(path)
    json.dump({"extra_mib": (peak.value - peak.before) / (1 << 20)}, sys.stdout)


if __name__ == "__main__":
    main()
