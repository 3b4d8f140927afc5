"""Fuzz every parser for ten minutes each, and say what was found.

Run: ``python -m tools.campaigns [--seconds N] [--seed N] [--place DIR] [PARSER ...]``

Ends with 1 if anything but a typed error was raised, an input took more than five seconds or 256 MiB, was
executed, or was not the same when read again or by another reader. Inputs that did are kept under the place;
those that were mended belong into ``tests/corpus/<parser>/``, which the tests replay. ``--distil`` puts a few
short inputs there that reached what seeds and corpus did not, from the place of an earlier run.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.fuzz.loop import Fuzzer, bounded_memory
from tools.fuzz.target import CORPUS
from tools.fuzz.targets import TARGETS

_LONGEST = 4096  # of inputs that are put into the corpus
_COUNT = 24


def fuzz(name: str, place: Path, *, seed: int, seconds: float) -> int:
    """Fuzz one parser; print what came of it, and return the number of findings."""
    fuzzer = Fuzzer(TARGETS[name], place, seed)
    if TARGETS[name].needs:
        importlib.import_module(TARGETS[name].needs)  # before memory is bounded
    with bounded_memory():
        fuzzer.run(seconds)
    outcomes = ", ".join(f"{kind} {count}" for kind, count in sorted(fuzzer.outcomes.items()))
    print(f"{name}: {fuzzer.executions} inputs, {fuzzer.lines} lines, seed {seed}: {outcomes}", flush=True)
    for path in fuzzer.findings:
        print(f"  {path}: {path.with_suffix('.txt').read_text().strip().splitlines()[-1]}", flush=True)
    return len(fuzzer.findings)


def distil(name: str, place: Path) -> int:
    """Put inputs of an earlier run that reach more than the corpus into it; no findings."""
    fuzzer = Fuzzer(TARGETS[name], place / "distil")
    inputs = [path.read_bytes() for path in sorted((place / "reached").iterdir())]
    kept = fuzzer.needed([data for data in inputs if len(data) <= _LONGEST], count=_COUNT)
    folder = CORPUS / name
    for data in kept:
        folder.mkdir(exist_ok=True)
        (folder / f"reached-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
    print(f"{name}: {len(kept)} inputs put into the corpus", flush=True)
    return 0


def main() -> int:
    """Run the targets asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--place", type=Path, default=None, help="where findings are kept")
    parser.add_argument("--distil", action="store_true", help="add to the corpus, do not fuzz")
    options = parser.parse_args()
    place = options.place or Path(tempfile.mkdtemp(prefix="fuzz-"))
    bad = 0
    for name in options.parsers or TARGETS:
        here, needs = place.absolute() / name, TARGETS[name].needs
        here.mkdir(parents=True, exist_ok=True)
        os.chdir(here)
        if needs and importlib.util.find_spec(needs) is None:
            print(f"{name}: not run, {needs} is not installed")
        elif options.distil:
            bad += distil(name, here)
        else:
            bad += fuzz(name, here, seed=options.seed, seconds=options.seconds)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
