"""Put random single faults into checkpoints, one at a time, and count how many `check` finds and names.

Run: ``python tools/campaigns/flip_bits.py [--faults N] [--seed N]``

Faults: one bit flipped, one byte cut from the end or added to it, a file removed, two shards of one length
exchanged, a shard of another step put in; anywhere in any file of checkpoints of several kinds. Ends with 1
unless every fault is found and the file is named; and, where the fault lies in a tensor's data, the tensor
and the chunk.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import ckptfmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS: dict[str, dict[str, object]] = {
    "raw": {},
    "sharded": {"shard_size": 300_000, "extra_files": {"config.json": b'{"a":1}'}},
    "zstd": {"codec": "zstd"},
    "planes": {"codec": "planes+zstd", "shard_size": 300_000},
}


class Fault(NamedTuple):
    """One fault: what it is, the file it is in, and where."""

    kind: str
    file: str
    offset: int | None


def state(step: int) -> dict[str, object]:
    """Return a state of several types, one tensor of more than one chunk, equal in shapes for every step."""
    rng = np.random.default_rng(step)
    return {
        "model": {f"w{i}": rng.standard_normal(20_000, np.float32) for i in range(8)},
        "large": np.repeat(rng.integers(0, 9, 700_000), 2).astype("f4"),
        "small": [rng.integers(0, 99, 3) for _ in range(5)],
        "odd": rng.bytes(7),
        "step": step,
    }


def prepare(place: Path) -> None:
    """Make each kind of checkpoint, of two steps."""
    for name, options in KINDS.items():
        for step in (1, 2):
            ckptfmt.save(state(step), place / f"{name}-{step}", step=step, **options)  # type: ignore[arg-type]


def _spoil(folder: Path, other: Path, rng: random.Random) -> Fault:
    """Put one fault into a checkpoint."""
    file = rng.choice(sorted(folder.iterdir()))
    shards = sorted(folder.glob("data-*"))
    kind = rng.choice(("flip", "flip", "flip", "flip", "cut", "add", "remove", "exchange", "foreign"))
    twins = [(a, b) for a in shards for b in shards if a < b and a.stat().st_size == b.stat().st_size]
    if kind == "exchange" and twins:
        one, two = rng.choice(twins)
        one.rename(folder / "tmp")
        two.rename(one)
        (folder / "tmp").rename(two)
        return Fault(kind, one.name, None)
    if kind == "foreign":
        file = rng.choice(shards)
        shutil.copy(other / file.name, file)
        return Fault(kind, file.name, None)
    if kind == "remove":
        file.unlink()
        return Fault(kind, file.name, None)
    return _spoil_bytes(file, "flip" if kind == "exchange" else kind, rng)


def _spoil_bytes(file: Path, kind: str, rng: random.Random) -> Fault:
    data = bytearray(file.read_bytes())
    offset = rng.randrange(len(data))
    if kind == "flip":
        data[offset] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[-1]
    else:
        data.append(rng.randrange(256))
    file.write_bytes(data)
    return Fault(kind, file.name, offset if kind == "flip" else None)


def _is_named(fault: Fault, report: ckptfmt.Report, header: Callable[[str], int]) -> bool:
    """Return whether the findings name the file, and for a flip in tensor data the tensor and chunk."""
    mine = [finding for finding in report.findings if finding.file == fault.file]
    if fault.file == "manifest.json" and fault.kind == "remove":
        return any(finding.rule == "R-001" for finding in report.findings)
    if fault.kind != "flip" or not fault.file.startswith("data-"):
        return bool(mine)
    if fault.offset is not None and fault.offset < header(fault.file):
        return any(finding.rule in ("R-041", "R-043") for finding in mine)
    return any(finding.path and finding.chunk is not None for finding in mine)


def faults(place: Path, count: int, seed: int) -> Iterator[tuple[str, Fault, bool]]:
    """Try faults; yield the kind of checkpoint, the fault, and whether it was found and named."""
    rng = random.Random(seed)  # noqa: S311 - no secrets here
    for _ in range(count):
        name = rng.choice(list(KINDS))
        work = place / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(place / f"{name}-1", work)

        def header(file: str) -> int:
            with (work / file).open("rb") as stream:  # noqa: B023 - one directory for all
                return 8 + int.from_bytes(stream.read(8), "little")

        fault = _spoil(work, place / f"{name}-2", rng)
        report = ckptfmt.check(work)
        yield name, fault, not report.ok and _is_named(fault, report, header)


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tried: collections.Counter[str] = collections.Counter()
    missed = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        prepare(Path(folder))
        for name, fault, found in faults(Path(folder), options.faults, options.seed):
            tried[fault.kind] += 1
            if not found:
                missed.append((name, fault))
    for kind, count in sorted(tried.items()):
        print(f"{kind:10}{count:6}")
    good = sum(tried.values()) - len(missed)
    print(f"{good} of {sum(tried.values())} found and named, seed {options.seed}")
    for name, fault in missed[:20]:
        print(f"  missed: {name} {fault}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
