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
import json
import random
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np

import ckptfmt
from ckptfmt.tree.dtypes import dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 4 << 20
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
        "packed": {
            "i4": rng.integers(-8, 8, 9_001).astype(ml_dtypes.int4),
            "u2": rng.integers(0, 4, 8_388_609 // 2).astype(ml_dtypes.uint2),
            "f4": rng.integers(0, 4, 3).astype(ml_dtypes.float4_e2m1fn),
            "bf16": rng.standard_normal(333).astype(ml_dtypes.bfloat16),
        },
        "empty": np.zeros((0, 3)),
        "names": np.array([b"ab", b"c"]),
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


def places(folder: Path, file: str) -> list[tuple[int, int, str, int]]:
    """Return begin, end, tensor and chunk of each stored chunk of a shard, as the manifest has them."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    shards = [shard[0] for shard in manifest["shards"]]
    if file not in shards:
        return []
    digests = (folder / "chunks.bin").read_bytes()
    rows = [row for row in manifest["tensors"] if row[5] == shards.index(file)]
    lengths = [_stored_lengths(row, digests) for row in rows]
    begin = manifest["shards"][shards.index(file)][1] - sum(map(sum, lengths))
    found = []
    for row, stored in zip(rows, lengths, strict=True):
        for chunk, length in enumerate(stored):
            found.append((begin, begin + length, "/".join(map(str, row[0])), chunk))
            begin += length
    return found


def _stored_lengths(row: list, digests: bytes) -> list[int]:
    nbytes = dtype(row[2]).nbytes(row[3])
    count = -(-nbytes // CHUNK)
    if row[7] != "raw" and count > 1:
        first = row[8] + 64 * count
        return list(struct.unpack_from(f"<{count}Q", digests, first))
    if row[7] != "raw":
        return [row[9]] * count
    return [min(CHUNK, nbytes - start) for start in range(0, nbytes, CHUNK)]


def _is_named(fault: Fault, report: ckptfmt.Report, chunks: list[tuple[int, int, str, int]]) -> bool:
    """Return whether the findings name the file; of a flip in data, that tensor and chunk and no other."""
    mine = [finding for finding in report.findings if finding.file == fault.file]
    if fault.file == "manifest.json" and fault.kind == "remove":
        return any(finding.rule == "R-001" for finding in report.findings)
    if fault.kind != "flip":
        return bool(mine)
    if fault.file == "chunks.bin":
        return bool(mine) and all(finding.path for finding in mine)
    named = [(finding.path, finding.chunk) for finding in report.findings]
    hit = [(path, chunk) for begin, end, path, chunk in chunks if begin <= (fault.offset or 0) < end]
    if chunks and not hit:
        return any(finding.rule in ("R-041", "R-043") for finding in mine)
    return bool(mine) and (not hit or named == hit)


def faults(place: Path, count: int, seed: int) -> Iterator[tuple[str, Fault, bool]]:
    """Try faults; yield the kind of checkpoint, the fault, and whether it was found and named."""
    rng = random.Random(seed)  # noqa: S311 - no secrets here
    for _ in range(count):
        name = rng.choice(list(KINDS))
        work = place / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(place / f"{name}-1", work)

        fault = _spoil(work, place / f"{name}-2", rng)
        report = ckptfmt.check(work)
        yield name, fault, not report.ok and _is_named(fault, report, places(place / f"{name}-1", fault.file))


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
