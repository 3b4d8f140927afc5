"""Kill or fail a real `ckptfmt.save` at every real system call that writes, by strace, and look what is left.

Run: ``python tools/campaigns/kill_at_syscall.py [--place DIR] [--way WAY ...] [--fault FAULT ...]``

One warm process forks a child for each try; strace attaches to the child, which then saves. ``kill`` ends
it at its k-th call of one kind; an error makes that call fail. Afterwards the target must check as the old or
the new checkpoint, as the child's answer says; what is left over must be listed; the next save and `recover`
must work. strace counts calls per thread, so the k-th call of every thread is tried. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

import ckptfmt
from ckptfmt.testing.processes import KILLED, start, wait

if TYPE_CHECKING:
    from collections.abc import Iterator

Overwrite = bool | Literal["two-step"]

CALLS = (
    "openat",
    "pwrite64",
    "write",
    "fallocate",
    "ftruncate",
    "fsync",
    "fcntl",
    "close",
    "mkdirat",
    "mkdir",
    "rename",
    "renameat",
    "renameat2",
    "linkat",
    "unlink",
    "unlinkat",
    "rmdir",
)
WAYS: dict[str, tuple[Overwrite, str]] = {
    "create": (False, "raw"),
    "exchange": (True, "raw"),
    "two-step": ("two-step", "raw"),
    "coded": (True, "zstd"),
}
FAULTS = ("kill", "ENOSPC", "EDQUOT", "EIO", "EINTR", "EINVAL")
NOT_FAILED = {
    "close",
    "fcntl",
    "write",
}  # of these an error is not the disk's: pipes, locks, lost descriptors
OLD, NEW, NEXT = 1, 2, 3
SAVED, REFUSED, PLACED = 0, 10, 11  # exit statuses of the child
_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)


class Try(NamedTuple):
    """One fault: which call, the how manieth of its kind, and what happens there."""

    call: str
    k: int
    fault: str


class WrongError(Exception):
    """Something is not as the design says."""


def save(path: Path, version: int, overwrite: Overwrite, codec: str) -> None:
    """Save a version: a shard that is written directly, and one that is not."""
    large = np.full(9 << 18, version, np.float32)
    small = {f"t{k}": np.full((3, k), version, np.int16) for k in range(5)}
    tree = {"large": large, "small": small}
    ckptfmt.save(tree, path, step=version, overwrite=overwrite, codec=codec, shard_size=4 << 20)


def version_at(path: Path) -> int:
    """Return the version at a path; raise if it does not check."""
    report = ckptfmt.check(path)
    require(report.ok, str(report))
    with ckptfmt.load(path) as opened:
        (version,) = np.unique(opened.tensors()["large"].numpy())
    return int(version)


def child(path: Path, way: str, gate: int, key: int) -> None:
    """Wait for strace, save, and answer by the exit status."""
    os.close(key)  # else the parent's closing it would open nothing
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
    os.read(gate, 1)
    try:
        save(path, NEW, *WAYS[way])
    except ckptfmt.StorageError as error:
        os._exit(PLACED if "is in place" in error.message else REFUSED)


def traced(path: Path, way: str, arguments: list[str]) -> int:
    """Save in a child under strace; return the child's exit status."""
    gate, key = os.pipe()
    pid = start(lambda: child(path, way, gate, key))
    os.close(gate)
    command = ["strace", "-f", "-p", str(pid), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as strace:
        if strace.stderr is None or "attached" not in strace.stderr.readline():
            message = "strace could not attach: is it installed, and allowed to?"
            raise RuntimeError(message)
        os.close(key)
        status = wait(pid)
        strace.stderr.read()
    return status


def prepared(where: Path, template: Path, way: str) -> Path:
    """Return a target, with the old checkpoint in it if the way overwrites."""
    where.mkdir()
    if WAYS[way][0]:
        shutil.copytree(template, where / "ckpt")
    return where / "ckpt"


def calls_of(where: Path, template: Path, way: str) -> dict[str, int]:
    """Return how many calls of each kind the thread with the most of them makes."""
    target = prepared(where, template, way)
    log = where / "log"
    status = traced(target, way, ["-o", str(log), "-e", "trace=" + ",".join(f"?{call}" for call in CALLS)])
    if status != SAVED or version_at(target) != NEW:
        message = f"a save under strace without a fault ended with {status}"
        raise RuntimeError(message)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in log.read_text().splitlines():
        match = re.match(r"(\d+)\s+(\w+)\(", line)
        if match:
            counts[match[1], match[2]] += 1
    most: dict[str, int] = {}
    for (_, call), count in counts.items():
        most[call] = max(count, most.get(call, 0))
    return most


def tries(counts: dict[str, int], faults: list[str]) -> Iterator[Try]:
    """Return every fault at every call."""
    for call, count in sorted(counts.items()):
        for fault in faults:
            if fault == "kill" or call not in NOT_FAILED:
                yield from (Try(call, k, fault) for k in range(1, count + 1))


def attempt(where: Path, template: Path, way: str, one: Try) -> str | None:
    """Make one try; return what is wrong afterwards, if anything is."""
    target = prepared(where, template, way)
    what = "signal=KILL" if one.fault == "kill" else f"error={one.fault}"
    inject = f"inject={one.call}:{what}:when={one.k}"
    status = traced(target, way, ["-o", os.devnull, "-e", f"trace={one.call}", "-e", inject])
    if status not in {SAVED, REFUSED, PLACED, KILLED}:
        return f"the save ended with status {status}"
    try:
        look(where, target, way, status)
    except (WrongError, ckptfmt.CkptError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def look(where: Path, target: Path, way: str, status: int) -> None:
    """Raise if what is at the target, or beside it, is not as it must be after a save of that status."""
    overwrite, codec = WAYS[way]
    before = OLD if overwrite else None
    listed = {Path(left.path).name for left in ckptfmt.leftovers(where)}
    stray = {path.name for path in where.iterdir() if path.name != "ckpt" and path.suffix != ".owner"}
    require(stray <= listed, f"not listed: {stray - listed}")
    if before is not None and not target.exists():
        require(overwrite == "two-step" and status != SAVED, "neither the old nor the new is there")
        restored = "restored" in {action.kind for action in ckptfmt.recover(where)}
        require(restored, "the old is not restored")
    seen = version_at(target) if target.exists() else None
    allowed: dict[int, set[int | None]] = {REFUSED: {before}, KILLED: {before, NEW}}
    require(seen in allowed.get(status, {NEW}), f"version {seen} after status {status}")
    save(target, NEXT, overwrite or target.exists(), codec)
    ckptfmt.recover(where)
    require(version_at(target) == NEXT, "the next save is not what is there")
    require([path.name for path in where.iterdir()] == ["ckpt"], "something stays after recovery")


def require(ok: object, message: str) -> None:
    """Raise WrongError unless `ok`."""
    if not ok:
        raise WrongError(message)


def campaign(place: Path, way: str, faults: list[str]) -> int:
    """Run one way with all faults; print a line for each fault; return how many tries went wrong."""
    template = place / f"{way}-template"
    save(template, OLD, *(False, WAYS[way][1]))
    counts = calls_of(place / f"{way}-count", template, way)
    print(f"{way}: " + ", ".join(f"{call} {count}" for call, count in sorted(counts.items())), flush=True)
    wrong = 0
    for fault in faults:
        planned = list(tries(counts, [fault]))
        failures = []
        for number, one in enumerate(planned):
            where = place / f"{way}-{fault}-{number}"
            problem = attempt(where, template, way, one)
            if problem:
                failures.append(f"    {one.call} {one.k}: {problem}")
            shutil.rmtree(where)
        wrong += len(failures)
        print(f"  {fault:7} {len(planned):4} tries, {len(failures)} wrong", *failures, sep="\n", flush=True)
    return wrong


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--place", type=Path, help="a directory of the file system to try (default: TMPDIR)")
    parser.add_argument("--way", action="append", choices=WAYS, help="default: all")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="default: all")
    options = parser.parse_args()
    logging.getLogger("ckptfmt").setLevel(logging.CRITICAL)  # every try would be told twice
    place = Path(tempfile.mkdtemp(prefix="ckptfmt-kill-", dir=options.place))
    try:
        wrong = sum(campaign(place, way, options.fault or list(FAULTS)) for way in options.way or WAYS)
    finally:
        shutil.rmtree(place)
    print(f"{wrong} wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
