"""Save, load and verify from Python, with numpy arrays: the base install only."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import ckptfmt


def main() -> None:
    """Save a tree, read parts of it, verify it, and see an error."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(256, 128)).astype(np.float32)
    state = {
        "model": {
            "layers": [
                {"W": first, "b": np.zeros(128, np.float32)},
                {"W": generator.normal(size=(128, 10)).astype(np.float32), "b": np.zeros(10, np.float32)},
            ]
        },
        "schedule": {"rate": 1e-3, "milestones": (30, 60)},
        "note": "any plain value can be in the tree",
    }
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "step-100"

        receipt = ckptfmt.save(state, path, step=100)
        print("root of what was saved:", receipt.root.hex())

        # Loading reads the manifest only; a tensor's bytes are read, and verified, when they are asked for.
        with ckptfmt.load(path) as checkpoint:
            weight = checkpoint.tensors()["model/layers/0/W"]
            print("lazily loaded:", weight)
            print("one row:", weight[3, :4])
            print("step:", checkpoint.step, "schedule:", checkpoint["schedule"])

        # Into arrays that exist already; nothing is cast or broadcast.
        buffer = np.empty((256, 128), np.float32)
        ckptfmt.load(path, into={"model": {"layers": [{"W": buffer}, {}]}}).close()
        print("same bits:", np.array_equal(buffer, first))

        # The digest of the state in memory is that of the checkpoint: nothing has to be written to know it.
        print("digest in memory is the same:", ckptfmt.digest(state).root == receipt.root)
        print("check finds nothing wrong:", ckptfmt.check(path).ok)

        shard = next(path.glob("data-*"))
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        for finding in ckptfmt.check(path).findings:
            print("after one flipped bit:", finding.kind, finding.path, finding.file, finding.offset)


if __name__ == "__main__":
    main()
