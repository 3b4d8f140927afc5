"""Write the golden files of Keras 3 and tf-keras into tests/golden/keras; run by a person, never by a test.

Runs in the environment that `make test` makes for frameworks: ``.venv-test/bin/python -m
tools.make_golden.keras``. Small models are trained for one step and saved in every kind of file that their
library writes. ``expected.json`` holds what the library itself reads back: type, shape and SHA-256 of every
variable, in its own order. MANIFEST.toml records versions, command and SHA-256 of the files.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["main"]

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "keras"
SEED = 20261201
Foreign: TypeAlias = Any  # an object of a library without types
KINDS = (".keras", ".h5", ".weights.h5")


def described(array: np.ndarray) -> list[Any]:
    """Return type, shape and SHA-256 of the elements of an array."""
    array = np.asarray(array)
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def rnn(keras: ModuleType) -> Foreign:
    """Return a functional model: a nested one, a bidirectional LSTM, attention, normalisation and a GRU."""
    layers = keras.layers
    inputs = keras.Input((6, 4), name="tokens")
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True), name="bi")(inputs)
    x = layers.MultiHeadAttention(2, 3, name="mha")(x, x)
    x = layers.BatchNormalization(name="bn")(x)
    inner = keras.Sequential([layers.Dense(4, name="in1"), layers.Dropout(0.5, name="drop")], name="inner")
    x = layers.GRU(3, name="gru")(inner(x))
    return keras.Model(inputs, layers.Dense(2, name="out")(x), name="rnn")


def conv(keras: ModuleType, count: int) -> Foreign:
    """Return a sequential model of `count` layers of one class; eleven need sorting by number."""
    layers = keras.layers
    convolutions = [layers.Conv2D(2, 1, name=f"point{place}", use_bias=False) for place in range(count)]
    head = [layers.Flatten(name="flat"), layers.Dense(2, name="head")]
    return keras.Sequential([keras.Input((2, 2, 2)), *convolutions, *head], name="conv")


def subclassed(keras: ModuleType) -> Foreign:
    """Return a model whose attributes sort before and after ``layers``."""
    base: Foreign = keras.Model

    class Subclassed(base):  # type: ignore[misc] # of a library without types
        def __init__(self) -> None:
            super().__init__(name="subclassed")
            self.z = keras.layers.Dense(3, name="first")
            self.a = keras.layers.Dense(3, name="second")
            self.blocks = [keras.layers.Dense(3, name="third"), keras.layers.Dense(2, name="fourth")]

        def call(self, inputs: Foreign) -> Foreign:
            x = self.a(self.z(inputs))
            for block in self.blocks:
                x = block(x)
            return x

    return Subclassed()


def half(keras: ModuleType) -> Foreign:
    """Return a model of bfloat16."""
    dense = [keras.layers.Dense(3, name=name, dtype="bfloat16") for name in ("one", "two")]
    return keras.Sequential([keras.Input((4,)), *dense], name="half")


def trained(keras: ModuleType, model: Foreign, shape: tuple[int, ...], optimizer: Foreign) -> Foreign:
    """Return a model after one step on made-up data."""
    rng = np.random.default_rng(SEED)
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())
    inputs = rng.standard_normal((4, *shape)).astype("f4")
    outputs = np.asarray(model(inputs))
    model.fit(inputs, np.zeros(outputs.shape, "f4"), epochs=1, batch_size=4, verbose=0, shuffle=False)
    keras.backend.clear_session()
    return model


def variables(model: Foreign) -> list[Any]:
    """Return name, index and description of each layer's own variables, of nested layers, too."""
    found: list[Any] = []
    for layer in model._flatten_layers(include_self=False):  # noqa: SLF001 - no public way to nested ones
        word = "variables" if hasattr(layer, "_trainable_variables") else "weights"
        own = [
            *getattr(layer, f"_trainable_{word}"),
            *getattr(layer, f"_non_trainable_{word}"),
        ]  # as it saves
        found += [[layer.name, place, *described(value.numpy())] for place, value in enumerate(own)]
    return found


def reread(keras: ModuleType, model: Foreign, path: Path) -> dict[str, Any]:
    """Return what the library reads from a file that it wrote, or what it wrote if it cannot read that."""
    readable = True
    state = optimizer_values(model)
    kept = [weight.numpy() for weight in model.weights]
    try:
        if ".weights." in path.name:
            for weight in model.weights:
                weight.assign(np.zeros(weight.shape))
            model.load_weights(path)
        else:
            model = keras.models.load_model(path)
    except (TypeError, ValueError):  # bfloat16 in .h5; in every file of tf-keras
        readable = False
        for weight, value in zip(model.weights, kept, strict=True):
            weight.assign(value)
    named = [[getattr(v, "path", v.name), *described(v.numpy())] for v in model.weights]
    return {"variables": variables(model), "weights": named, "optimizer": state, "readable": readable}


def optimizer_values(model: Foreign) -> list[Any]:
    """Return the values of a model's optimizer as it was saved: Keras 3 reads few of them back from .h5."""
    state = model.optimizer.variables
    state = state() if callable(state) else state
    return [[getattr(v, "path", v.name), *described(v.numpy())] for v in state]


def write_keras3(folder: Path) -> None:
    """Write the files of Keras 3."""
    keras = importlib.import_module("keras")
    expected: dict[str, Any] = {}
    keras.utils.set_random_seed(SEED)
    models = {
        "rnn": trained(keras, rnn(keras), (6, 4), "adam"),
        "conv": trained(keras, conv(keras, 11), (2, 2, 2), keras.optimizers.SGD(0.1, momentum=0.9)),
        "half": trained(keras, half(keras), (4,), "sgd"),
        "subclassed": trained(keras, subclassed(keras), (4,), keras.optimizers.Adam(amsgrad=True)),
    }
    for name, model in models.items():
        for kind in KINDS if name in ("rnn", "half") else (".weights.h5",):
            path = folder / f"{name}{kind}"
            model.save_weights(path) if kind == ".weights.h5" else model.save(path)
            expected[path.name] = reread(keras, model, path)
    sharded = folder / "sharded.weights.json"
    models["rnn"].load_weights(folder / "rnn.weights.h5")
    models["rnn"].save_weights(sharded, max_shard_size=2000 / 1024**3)
    expected[sharded.name] = reread(keras, models["rnn"], sharded)
    versions = {"keras": keras.__version__, "tensorflow": importlib.import_module("tensorflow").__version__}
    finish(folder, expected, versions)


def write_tf_keras(folder: Path) -> None:
    """Write the files of tf-keras, which is Keras 2."""
    keras = importlib.import_module("tf_keras")
    expected: dict[str, Any] = {}
    keras.utils.set_random_seed(SEED)
    models = {
        "rnn": trained(keras, rnn(keras), (6, 4), "adam"),
        "legacy": trained(keras, conv(keras, 2), (2, 2, 2), keras.optimizers.legacy.Adam()),
        "half": trained(keras, half(keras), (4,), keras.optimizers.SGD(0.1, momentum=0.9)),
    }
    for name, model in models.items():
        for kind in {"rnn": KINDS[:2], "legacy": (".h5",), "half": KINDS}[name]:
            path = folder / f"{name}{kind}"
            model.save_weights(path) if kind == ".weights.h5" else model.save(path)
            expected[path.name] = reread(keras, model, path)
    models["legacy"].save_weights(folder / "only.h5")
    expected["only.h5"] = expected["legacy.h5"] | {"optimizer": []}
    versions = {
        "tf_keras": keras.__version__,
        "tensorflow": importlib.import_module("tensorflow").__version__,
    }
    finish(folder, expected, versions)


def finish(folder: Path, expected: dict[str, Any], versions: dict[str, str]) -> None:
    """Write what was expected, and the manifest."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items()]
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    versions |= {"python": platform.python_version(), "h5py": importlib.import_module("h5py").__version__}
    text = "# Written by tools/make_golden/keras.py.\n"
    text += 'command = "python -m tools.make_golden.keras"\n'
    text += "".join(f'{name} = "{version}"\n' for name, version in versions.items())
    for path in sorted(folder.iterdir()):
        if path.name != "MANIFEST.toml":
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            text += f'\n[files."{path.name}"]\nbytes = {len(data)}\nsha256 = "{digest}"\n'
    (folder / "MANIFEST.toml").write_text(text)


def main() -> None:
    """Write both folders anew."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name, write in (("3.15.1", write_keras3), ("tf-keras-2.21", write_tf_keras)):
        folder = GOLDEN / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both say that .h5 is old
            write(folder)
        print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir())} bytes")


if __name__ == "__main__":
    main()
