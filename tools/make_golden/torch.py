"""Write the golden files of PyTorch into tests/golden/torch; run by a person, never by a test.

``python -m tools.make_golden.torch WORK PYTHON2.7 PYTHON3.7 PYTHON3.8``, in the environment that `make test`
makes for frameworks (which has the newest PyTorch). Makes an environment in WORK for each older release, and
in each of them runs `tools/make_golden/torch_program.txt`, which saves small states in every form that the
release has and writes down what it reads back: type, shape and SHA-256 of each tensor, and plain values.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["main"]

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "torch"
PROGRAM = Path(__file__).with_name("torch_program.txt")
RELEASES = (  # name of the folder, index of the Python given, requirements
    ("1.0.0-py2.7", 0, ("torch==1.0.0", "numpy<1.17")),
    ("1.0.0-py3.7", 1, ("torch==1.0.0", "numpy==1.21.6")),
    ("1.4.0", 2, ("torch==1.4.0", "numpy==1.24.4")),
    ("1.6.0", 2, ("torch==1.6.0", "numpy==1.24.4", "future")),
)


def main() -> None:
    """Make all files."""
    work, pythons = Path(sys.argv[1]), sys.argv[2:5]
    for name, index, needs in RELEASES:
        target = work / name
        if not target.exists():
            command = [pythons[index], "-m", "pip", "install", "--target", str(target), *needs]
            if index:
                command.insert(-len(needs), "--no-deps")
            subprocess.run(command, check=True, env={**os.environ, "PIP_CONFIG_FILE": os.devnull})
        run(name, pythons[index], {"PYTHONPATH": str(target)})
    run("2.13.0", sys.executable, {})
    make_tar(GOLDEN / "tar")


def run(name: str, python: str, more: dict[str, str]) -> None:
    """Run the program in the environment of a release, and write down what it made."""
    folder = GOLDEN / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0", **more}
    subprocess.run([python, "-c", PROGRAM.read_text(), str(folder)], check=True, env=environment)
    manifest(folder)


def manifest(folder: Path) -> None:
    """Write MANIFEST.toml from what the program says of itself, and the files."""
    expected = folder / "expected.json"
    said = json.loads(expected.read_text())
    versions = said.pop("versions")
    rows = [f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in said["files"].items()]
    expected.write_text("{\n" + ",\n".join(sorted(rows)) + "\n}\n")
    lines = ['command = "python -m tools.make_golden.torch"', "[versions]"]
    lines += [f'{name} = "{version}"' for name, version in sorted(versions.items())]
    lines.append("[sha256]")
    for path in sorted(folder.iterdir()):
        if path.name != "MANIFEST.toml":
            lines.append(f'"{path.name}" = "{hashlib.sha256(path.read_bytes()).hexdigest()}"')
    (folder / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


def make_tar(folder: Path) -> None:
    """Make an archive of the kind of before 0.1.10, by hand, and write down what PyTorch reads from it.

    No release that writes them can be installed any more; `legacy_load` of ``torch/serialization.py`` is what
    says how they look, and what judges them.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.pt"
    path.write_bytes(tar_of(torch))
    loaded = torch.load(path, weights_only=False)
    expected: dict[str, Any] = {"versions": {"torch": torch.__version__}, "files": {path.name: {}}}
    for name, tensor in loaded["model"].items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = str(tensor.dtype).removeprefix("torch.")
        row = [kind, list(tensor.shape), hashlib.sha256(data).hexdigest()]
        expected["files"][path.name][f"model/{name}"] = row
    expected["files"][path.name] |= {"epoch": loaded["epoch"], "note": loaded["note"]}
    (folder / "expected.json").write_text(json.dumps(expected))
    manifest(folder)


class _Keyed(pickle.Pickler):
    """Writes integers of a class of their own as references."""

    def persistent_id(self, obj: object) -> object:
        """Return the key that a reference has."""
        return str(int(obj)) if isinstance(obj, Key) else None


class Key(int):
    """The key of a storage or tensor."""


def tar_of(torch: ModuleType) -> bytes:
    """Return an archive with storages of several types, a view of one, tied and strided tensors."""
    floats, longs = struct.pack("<6f", *range(6)), struct.pack("<3q", -1, 2**40, 3)
    halves = struct.pack("<4e", 1, 2, -0.0, 0.5)
    storages = [
        (100, torch.FloatStorage, 6, floats),
        (200, torch.LongStorage, 3, longs),
        (300, torch.HalfStorage, 4, halves),
        (400, torch.ByteStorage, 2, b"\x07\xff"),
    ]
    views = [(150, 100, 2, 3)]
    tensors = [
        (1, 100, torch.FloatTensor, (2, 3), (3, 1), 0),
        (2, 100, torch.FloatTensor, (3, 2), (1, 3), 0),
        (3, 150, torch.FloatTensor, (2,), (1,), 1),
        (4, 200, torch.LongTensor, (3,), (1,), 0),
        (5, 300, torch.HalfTensor, (2, 2), (2, 1), 0),
        (6, 400, torch.ByteTensor, (2,), (1,), 0),
    ]
    model = {"w": Key(1), "t": Key(2), "v": Key(3), "i": Key(4), "h": Key(5), "b": Key(6), "tied": Key(1)}
    pickled = io.BytesIO()
    _Keyed(pickled, 2).dump({"model": model, "epoch": 3, "note": "made by hand"})
    listed = pickle.dumps(len(storages), 2)
    for key, cls, count, data in storages:
        listed += pickle.dumps((key, "cpu", cls), 2) + struct.pack("<q", count) + data
    listed += pickle.dumps(views, 2)
    described = pickle.dumps(len(tensors), 2)
    for key, storage, cls, size, stride, offset in tensors:
        described += pickle.dumps((key, storage, cls), 2) + struct.pack("<ii", len(size), 0)
        described += struct.pack(f"<{2 * len(size) + 1}q", *size, *stride, offset)
    return archived({"storages": listed, "tensors": described, "pickle": pickled.getvalue()})


def archived(members: dict[str, bytes]) -> bytes:
    """Return a tar archive with pax headers, as Python 2 wrote for times that are no whole seconds."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1480000000.25
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


if __name__ == "__main__":
    main()
