"""Reading a bundle: against a raw read of its bytes, and against TensorFlow reading the same tensors.

``python -m tools.bench.tensorflow_bundle [--mib 512] [--rounds 5] [--place DIR]`` prints one JSON object. All
take turns in each round, from the page cache; a ratio is the time of one divided by the time of the raw read
of the same round, and the median of the rounds is told. Needs TensorFlow for its own part only.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from ckptfmt.containers import crc32c
from ckptfmt.containers.bundle.names import data_name
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.tree.tensor import Tensor
from tools.bench.measure import timed

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = 500


def make(prefix: Path, mib: int) -> None:
    """Write a bundle of eight large tensors and many small ones."""
    rng = np.random.default_rng(0)
    large = [rng.integers(0, 2**31, (mib << 20) // 32, np.int32) for _ in range(8)]
    items = [Item(f"large/{n}", Tensor.of(array)) for n, array in enumerate(large)]
    items += [Item(f"small/{n}", Tensor.of(rng.random(256, np.float32))) for n in range(_SMALL)]
    write_bundle(prefix, items, overwrite=True)


def raw(prefix: Path) -> None:
    """Read all data into fresh memory, an eighth at a time as the large tensors are, with nothing checked."""
    with Path(data_name(prefix, 0, 1)).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while (at := file.tell()) < size:
            out = np.empty(min(size - at, size // 8), np.uint8).data
            done = 0
            while done < len(out):
                done += file.readinto(out[done:]) or 0


def into_memory(prefix: Path) -> None:
    """Read every tensor into fresh memory, each verified."""
    with read_bundle(prefix) as bundle:
        for entry in bundle.entries.values():
            node = entry.node
            if isinstance(node, Tensor):
                node.into(np.empty(node.shape, node.dtype.numpy))


def as_arrays(prefix: Path) -> None:
    """Get every tensor as an array over the file, verified."""
    with read_bundle(prefix) as bundle:
        for entry in bundle.entries.values():
            if isinstance(entry.node, Tensor):
                entry.node.numpy()


def to_native(prefix: Path) -> None:
    """Convert it to a native checkpoint."""
    with read_bundle(prefix) as bundle:
        tree = {name: entry.node for name, entry in bundle.entries.items()}
        ckptfmt.save(tree, prefix.with_name("native"), overwrite=True)


def with_tensorflow(prefix: Path) -> None:
    """Read every tensor with TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    reader = importlib.import_module("tensorflow").train.load_checkpoint(str(prefix))
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)


def measured(prefix: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return medians of seconds and of ratios to the raw read."""
    actions: dict[str, Callable[[Path], None]] = {
        "raw": raw,
        "into_memory": into_memory,
        "as_arrays": as_arrays,
        "to_native": to_native,
    }
    if importlib.util.find_spec("tensorflow") is not None:
        actions["tensorflow"] = with_tensorflow
    for action in actions.values():  # imports, page cache
        action(prefix)
    times = [
        {name: timed(lambda action=action: action(prefix)) for name, action in actions.items()}  # type: ignore[misc] # mypy does not infer it
        for _ in range(rounds)
    ]
    return {
        name: {
            "seconds": round(statistics.median(row[name] for row in times), 4),
            "ratio": round(statistics.median(row[name] / row["raw"] for row in times), 3),
        }
        for name in actions
    }


def main() -> None:
    """Measure with what does checksums here, and with numpy alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--place", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        prefix = Path(place) / "bench"
        make(prefix, options.mib)
        found = {"mib": options.mib, "checksums": crc32c.implementation()}
        print(json.dumps({**found, **measured(prefix, options.rounds)}, indent=2))


if __name__ == "__main__":
    main()
