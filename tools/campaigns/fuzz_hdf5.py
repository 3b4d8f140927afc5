"""Fuzz the reading of HDF5 files through the HDF5 library, in processes of its own.

Run: ``python tools/campaigns/fuzz_hdf5.py [--seconds N] [--seed N]``

Each process reads some hundred changed files and says which it is at. Reported are inputs that raised
anything but a typed error, took more than eight seconds, took more than 256 MiB, or ended the process: the
library is C code. Ends with 1 if there was any; an input is made again from its number (``--one N`` writes it
to a file).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from ckptfmt.containers.hdf5.reader import Hdf5File
from ckptfmt.errors import CkptError
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.tensor import Tensor
from tools.fuzz.hdf5 import library_seeds
from tools.fuzz.mutation import mutate

_BATCH = 500
_SECONDS = 8
_MEMORY_MIB = 256
_ADDRESSES = 6 << 30
_LARGE = 128 << 20


def changed(number: int, seeds: list[bytes]) -> bytes:
    """Return the input of a number."""
    rng = random.Random(number)  # noqa: S311 - no secrets here
    data = rng.choice(seeds)
    if rng.random() < 0.5:
        altered = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(min(len(altered), rng.choice((3000, 1 << 20))))
            width = rng.choice((1, 4, 8))
            value = rng.choice(
                (0, (1 << 8 * width) - 1, rng.randrange(len(data)), rng.getrandbits(8 * width))
            )
            piece = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            altered[at : at + width] = piece[: len(altered) - at]
        return bytes(altered)
    return mutate(data, rng, seeds)


def feed(data: bytes) -> None:
    """Open a file and read what is not too large of it."""
    with contextlib.suppress(CkptError), Hdf5File(MemoryReader(data)) as found:
        for dataset in found.datasets.values():
            if isinstance(dataset.node, Tensor) and dataset.node.nbytes <= _LARGE:
                with contextlib.suppress(CkptError):
                    dataset.node.numpy()


def worker(first: int, place: Path) -> None:
    """Feed a batch; the number of the input at hand is in the file `place`."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    seeds = library_seeds()
    peak = None
    for number in range(first, first + _BATCH):
        place.write_text(str(number))
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        try:
            feed(changed(number, seeds))
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            print(f"input {number}:", traceback.format_exc(limit=-4), sep="\n", flush=True)
        faulthandler.cancel_dump_traceback_later()
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        if peak is not None and now > peak + _MEMORY_MIB:
            print(f"input {number}: {now - peak} MiB", flush=True)
        peak = max(now, peak or 0)


def main() -> int:
    """Run batches until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help="write this input to input.h5 and end")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(int(options.worker[0]), Path(options.worker[1]))
        return 0
    if options.one is not None:
        Path("input.h5").write_bytes(changed(options.one, library_seeds()))
        return 0
    return _campaign(options.seed, time.monotonic() + options.seconds)


def _campaign(first: int, end: float) -> int:
    count = found = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "at"
        while time.monotonic() < end:
            command = [
                sys.executable,
                "-m",
                "tools.campaigns.fuzz_hdf5",
                "--worker",
                str(first + count),
                str(place),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(done.stdout, end="", flush=True)
            found += done.stdout.count("input ")
            if done.returncode:
                found += 1
                at = int(place.read_text())
                print(f"input {at} ended the process ({done.returncode}):\n{done.stderr[-1500:]}", flush=True)
                count = at - first + 1
            else:
                count += _BATCH
    print(f"{count} inputs, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
