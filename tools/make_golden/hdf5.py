"""Write the golden files of h5py 2.10 (HDF5 1.10) into tests/golden/hdf5; run by a person, never by a test.

Run as ``python -m tools.make_golden.hdf5 DIRECTORY``, it makes an environment with Python 3.7 (of pyenv or on
PATH) in DIRECTORY and runs itself in it; that part keeps to what Python 3.7 understands. ``expected.json``
holds type, shape and SHA-256 of the little-endian bytes as that h5py itself reads them, and the texts.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "hdf5" / "h5py-2.10.0"
PYENV = Path.home() / ".pyenv" / "versions"
PACKAGES = ("h5py==2.10.0", "numpy==1.19.5")
VERSIONS = ("earliest", "latest")
_KINDS = (
    "i1",
    "u1",
    "<i2",
    ">u2",
    "<i4",
    ">i4",
    "<i8",
    ">u8",
    "<f2",
    ">f2",
    "<f4",
    ">f4",
    "<f8",
    ">f8",
    "<c8",
    ">c16",
)


def fill(file: Any, h5py: Any) -> None:  # noqa: ANN401 - of h5py, which has no types
    """Write one dataset of each type and each layout, links and attributes."""
    for kind in (*_KINDS, "S5", "?", "V3"):
        width = np.dtype(kind).itemsize
        data = np.arange(6 * width, dtype="u1") % (2 if kind == "?" else 251)
        file["types/" + kind.replace(">", "big-").strip("<")] = data.view(kind).reshape(2, 3)
    grid = np.arange(400, dtype="f4").reshape(20, 20)
    options: dict[str, dict[str, object]] = {
        "contiguous": {},
        "gzip": {"compression": 4, "chunks": (7, 6)},
        "everything": {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (7, 6)},
        "lzf": {"compression": "lzf", "shuffle": True, "chunks": (7, 6)},
        "growing": {"maxshape": (None, 20), "chunks": (7, 6)},
    }
    for name, given in options.items():
        file.create_dataset("layouts/" + name, data=grid, **given)
    file.create_dataset("layouts/unwritten", (3, 4), "i2", fillvalue=-3)
    file.create_dataset("null", data=h5py.Empty("f"))
    file["texts"] = np.array(["a", "b\u00e9", ""], dtype=h5py.special_dtype(vlen=str))
    file["scalar"] = 2.5
    file["links/hard"] = file["types/i1"]
    file["links/soft"] = h5py.SoftLink("/types/i1")
    file["types"].attrs["names"] = np.array([b"w:0", b"b:0"])
    file["types"].attrs["text"] = "\u00e9"
    for k in range(40):
        file[f"many/{k:02d}"] = np.int32(k)


def described(file: Any, h5py: Any) -> dict[str, object]:  # noqa: ANN401 - of h5py, which has no types
    """Return what the library holds by name: type, shape and digest, or the texts, or None."""
    found: dict[str, object] = {}

    def look(name: str, node: Any) -> None:  # noqa: ANN401 - of h5py, which has no types
        if not isinstance(node, h5py.Dataset):
            return
        if node.shape is None:
            found[name] = None
        elif node.dtype.kind == "O":
            found[name] = list(node[...])
        else:
            array = np.asarray(node[...])
            little = array.astype(array.dtype.newbyteorder("<"))
            found[name] = [little.dtype.str, list(array.shape), hashlib.sha256(little.tobytes()).hexdigest()]

    file.visititems(look)
    return found


def write(folder: Path) -> None:
    """Write the files, what is in them, and the manifest; runs in the old environment."""
    h5py = importlib.import_module("h5py")
    lines = [
        "# Written by tools/make_golden/hdf5.py.",
        'command = "python -m tools.make_golden.hdf5 DIRECTORY"',
    ]
    versions = {
        "h5py": h5py.__version__,
        "hdf5": h5py.version.hdf5_version,
        "python": platform.python_version(),
    }
    lines += [f'{name} = "{version}"' for name, version in versions.items()]
    expected = {}
    for version in VERSIONS:
        with h5py.File(str(folder / (version + ".h5")), "w", libver=version) as file:
            fill(file, h5py)
        with h5py.File(str(folder / (version + ".h5")), "r") as file:
            expected[version] = described(file, h5py)
    (folder / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        lines += ["", f'[files."{path.name}"]', f"bytes = {len(data)}", f'sha256 = "{digest}"']
    (folder / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Make the environment and run this file in it, or be that run."""
    if len(sys.argv) > 1 and sys.argv[1] == "--write":
        write(Path(sys.argv[2]))
        return
    place = Path(sys.argv[1]).resolve()
    found = sorted(PYENV.glob("3.7.*/bin/python"))
    python = str(found[-1]) if found else shutil.which("python3.7")
    if python is None:
        raise SystemExit("Python 3.7 is needed: pyenv install 3.7")
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    inside = str(place / "bin" / "python")
    # An old pip lets a machine's own constraints replace what is asked for.
    clean = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([inside, "-m", "pip", "install", "-q", *PACKAGES], check=True, env=clean)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    subprocess.run([inside, "-I", str(Path(__file__).resolve()), "--write", str(FOLDER)], check=True)


if __name__ == "__main__":
    main()
