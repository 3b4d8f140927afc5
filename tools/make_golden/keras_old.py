"""Write the golden files of Keras 2.2.4 and 2.13 into tests/golden/keras; run by a person, never by a test.

Run as ``python -m tools.make_golden.keras_old DIRECTORY``, it makes an environment for each version in
DIRECTORY (Python 3.7 and 3.8, of pyenv or on PATH) and runs itself in it; that part keeps to what Python 3.7
understands. ``expected.json`` holds type, shape and SHA-256 of what Keras itself holds.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "keras"
PYENV = Path.home() / ".pyenv" / "versions"
OLD = ("keras==2.2.4", "tensorflow==1.15.0", "h5py==2.10.0", "protobuf==3.20.3", "numpy==1.18.5")
ENVIRONMENTS = {"2.2.4": ("3.7", OLD), "2.13.1": ("3.8", ("tensorflow-cpu==2.13.1", "keras==2.13.1"))}


def write(version: str, folder: Path) -> None:
    """Train a small model for one step and save it in all kinds of file that this version writes."""
    keras = importlib.import_module("keras")
    layers, models = keras.layers, keras.models
    inputs = layers.Input((4, 3))
    x = layers.BatchNormalization(name="bn")(layers.LSTM(2, name="lstm")(inputs))
    inner = models.Sequential([layers.Dense(2, input_shape=(2,), name="in1")], name="inner")
    model = models.Model(inputs, layers.Dense(2, name="out")(inner(x)), name="net")
    model.compile("adam", "mse")
    model.fit(np.full((4, 4, 3), 0.5), np.zeros((4, 2)), verbose=0)
    kinds = (".h5",) if version == "2.2.4" else (".h5", ".keras", ".weights.h5")
    expected = {}
    for kind in kinds:
        path = folder / ("net" + kind)
        save = model.save_weights if "weights" in kind else model.save
        save(str(path))
        expected[path.name] = described(model)
    if version == "2.2.4":
        model.save_weights(str(folder / "only.h5"))
        expected["only.h5"] = dict(described(model), optimizer=[])
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items()]
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    versions = {
        "keras": version,
        "tensorflow": importlib.import_module("tensorflow").__version__,
        "h5py": importlib.import_module("h5py").__version__,
        "python": platform.python_version(),
    }
    write_manifest(folder, versions)


def described(model: Any) -> Any:  # noqa: ANN401 - of a library without types
    """Return name, type, shape and SHA-256 of all weights of a model and of its optimizer."""
    values = importlib.import_module("keras").backend.batch_get_value(model.weights)
    named = [[w.name, *digest(a)] for w, a in zip(model.weights, values)]  # noqa: B905 - Python 3.7
    optimizer = model.optimizer
    if hasattr(optimizer, "get_weights"):
        state = [["", *digest(a)] for a in optimizer.get_weights()]
    else:
        state = [[v.name, *digest(v.numpy())] for v in optimizer.variables]
    return {"weights": named, "optimizer": state}


def digest(array: Any) -> list[Any]:  # noqa: ANN401 - of a library without types
    """Return type, shape and SHA-256 of an array."""
    array = np.asarray(array)
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def write_manifest(folder: Path, versions: dict[str, str]) -> None:
    """Record versions, the command, and the files."""
    text = '# Written by tools/make_golden/keras_old.py.\ncommand = "python -m tools.make_golden.keras_old"\n'
    text += "".join(f'{name} = "{version}"\n' for name, version in versions.items())
    for path in sorted(folder.iterdir()):
        if path.name != "MANIFEST.toml":
            data = path.read_bytes()
            shown = hashlib.sha256(data).hexdigest()
            text += f'\n[files."{path.name}"]\nbytes = {len(data)}\nsha256 = "{shown}"\n'
    (folder / "MANIFEST.toml").write_text(text)


def make(version: str, place: Path) -> Path:
    """Return the Python of an environment that holds a version of Keras, made where it is not there."""
    number, packages = ENVIRONMENTS[version]
    environment = place / ("keras-" + version)
    python = environment / "bin" / "python"
    if not python.exists():
        found = [*PYENV.glob(number + ".*/bin/python"), Path("python" + number)]
        subprocess.run([str(found[0]), "-m", "venv", str(environment)], check=True)
        # An old pip lets a machine's own constraints replace what is asked for.
        clean = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True, env=clean)
    return python


def main() -> None:
    """Write the folders of both versions anew."""
    if sys.argv[1] == "--inside":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(sys.argv[2], Path(sys.argv[3]))
        return
    for version in ENVIRONMENTS:
        folder = GOLDEN / version
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        python = make(version, Path(sys.argv[1]))
        # -I: beside this file lies one called keras.py.
        subprocess.run([str(python), "-I", __file__, "--inside", version, str(folder)], check=True)


if __name__ == "__main__":
    main()
