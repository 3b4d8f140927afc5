"""Fuzz every parser for ten minutes each, and say what was found.

Run: ``python tools/campaigns/fuzz_parsers.py [--seconds N] [--seed N] [--place DIR] [PARSER ...]``

Ends with 1 if anything but a typed error was raised, an input took more than five seconds or 256 MiB, was
executed, or was not the same when read again. Inputs that did are kept under the place; those that were
mended belong into ``tests/corpus/<parser>/``, which the tests replay.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.fuzz.loop import Fuzzer, bounded_memory
from tools.fuzz.targets import TARGETS


def main() -> int:
    """Run the targets asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--place", type=Path, default=None, help="where findings are kept")
    options = parser.parse_args()
    place = options.place or Path(tempfile.mkdtemp(prefix="fuzz-"))
    bad = 0
    for name in options.parsers or TARGETS:
        here = place / name
        here.mkdir(parents=True, exist_ok=True)
        os.chdir(here)
        fuzzer = Fuzzer(TARGETS[name], here, options.seed)
        with bounded_memory():
            fuzzer.run(options.seconds)
        outcomes = ", ".join(f"{kind} {count}" for kind, count in sorted(fuzzer.outcomes.items()))
        print(
            f"{name}: {fuzzer.executions} inputs, {fuzzer.lines} lines, seed {options.seed}: {outcomes}",
            flush=True,
        )
        for path in fuzzer.findings:
            bad += 1
            print(f"  {path}: {path.with_suffix('.txt').read_text().strip().splitlines()[-1]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
