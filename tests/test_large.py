"""Files of gigabytes: listing reads little, one tensor reads that tensor, converting takes bounded memory.

The files are real but sparse: where zeros are written, a hole is left.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import Self

import ckptfmt
from ckptfmt.registry import formats
from ckptfmt.storage.system import System
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.tensor import Tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.framework,  # some containers need an extra
    pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what Linux tells of a process"),
]

GIB = 1 << 30
MIB = 1 << 20
WRITTEN = {row.name: row.extensions[0] if row.extensions else "" for row in formats() if row.writable}
"""Formats by the ending of their targets."""
PLACES = {
    "keras": ("model.weights.h5", "vars"),
    "keras-h5": ("model_weights", "dense"),
    "keras-weights": ("vars",),
}
"""Where arrays have a place in formats of models only."""


class Zeros:
    """A source of zeros that takes no memory."""

    def __init__(self) -> None:
        self._page = memoryview(bytes(16 * MIB))

    def view(self, start: int, stop: int) -> memoryview | None:
        return self._page[: stop - start] if stop - start <= len(self._page) else None

    def readinto(self, start: int, out: memoryview) -> None:  # noqa: ARG002 - all alike
        np.frombuffer(out, np.uint8)[:] = 0


def zeros(nbytes: int) -> Tensor:
    return Tensor(dtype("f32"), (nbytes // 4,), Zeros())


@pytest.fixture
def holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a hole where a large piece of zeros is written."""
    real = System.write

    def write(self: System, fd: int, data: memoryview, offset: int) -> int:
        if len(data) < MIB or np.frombuffer(data, np.uint8).any():
            return real(self, fd, data, offset)
        end = offset + len(data)
        if os.fstat(fd).st_size < end:
            os.ftruncate(fd, end)
        return len(data)

    monkeypatch.setattr(System, "write", write)
    monkeypatch.setattr(System, "allocate", lambda *_: False)


def touched() -> int:
    """Return the bytes that this process has read: by system calls, and by pages it touched."""
    rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    faults = resource.getrusage(resource.RUSAGE_SELF)
    return int(rows["rchar"]) + (faults.ru_minflt + faults.ru_majflt) * resource.getpagesize()


def written(name: str, tree: dict[str, object], folder: Path) -> Path:
    path = folder / f"large{WRITTEN[name]}"
    for key in reversed(PLACES.get(name, ())):
        tree = {key: tree}
    if name == "keras":
        tree["config.json"] = "{}"
    ckptfmt.write(tree, path, to=name)
    return path


@pytest.mark.usefixtures("holes")
@pytest.mark.parametrize("name", WRITTEN)
def test_listing_four_gibibytes_reads_little_and_one_tensor_reads_that_tensor(
    name: str, tmp_path: Path
) -> None:
    small = np.arange(1000, dtype="f4")
    path = written(name, {"large": zeros(4 * GIB), "small": small, "also": zeros(256 * MIB)}, tmp_path)
    with ckptfmt.read(path, format=name):
        pass  # what is imported is imported now
    before = touched()
    with ckptfmt.read(path, format=name) as checkpoint:
        assert {key.rpartition("/")[2]: node.shape for key, node in checkpoint.tensors().items()} == {
            "large": (GIB,),
            "small": (1000,),
            "also": (64 * MIB,),
        }
        listed = touched()
        found = checkpoint.at((*PLACES.get(name, ()), "small"))
        assert isinstance(found, Tensor)
        assert np.array_equal(found.numpy(), small)
    assert listed - before < 16 * MIB
    assert touched() - listed < 16 * MIB


class Peak:
    """The most memory that is no file's, while it is entered."""

    def __init__(self) -> None:
        self.value = self.first = self._now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @staticmethod
    def _now() -> int:
        rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        return sum(int(row[1]) * 1024 for row in rows if row[0] in ("RssAnon:", "RssShmem:"))

    def _watch(self) -> None:
        while not self._over.is_set():
            self.value = max(self.value, self._now())
            time.sleep(0.002)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


CONVERT = """
import sys
import ckptfmt
from tests.test_large import Peak
source, name, native, again = sys.argv[1:]
with Peak() as peak:
    ckptfmt.convert(source, native, source_format=name)
    ckptfmt.convert(native, again, to=name)
print(peak.value - peak.first)
"""


@pytest.mark.usefixtures("holes")
@pytest.mark.parametrize("name", WRITTEN)
def test_converting_takes_no_more_memory_than_one_tensor_and_some(name: str, tmp_path: Path) -> None:
    largest = 64 * MIB
    path = written(name, {f"t{i}": zeros(largest) for i in range(12)}, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, path, name, tmp_path / "native", tmp_path / f"again{WRITTEN[name]}"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 256 * MIB + largest
