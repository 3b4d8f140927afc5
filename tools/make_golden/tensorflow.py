"""Write small checkpoints of objects and of variables by name with the real TensorFlow and Keras.

``python -m tools.make_golden.tensorflow`` in an environment with tensorflow-cpu 2.21, Keras 3.15 and tf-keras
2.21 writes ``tests/golden/tensorflow/2.21/objects``. Beside them stand what TensorFlow reads under each key,
and what the objects themselves call their variables. Times in state files are set to 0. No test runs this.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
import tf_keras

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "golden" / "tensorflow" / "2.21" / "objects"
X = np.linspace(0, 1, 24, dtype="f4").reshape(8, 3)
Y = np.linspace(1, 0, 16, dtype="f4").reshape(8, 2)
v1 = tf.compat.v1

Told = dict[str, str]


def digest(value: object) -> str:
    """Return the SHA-256 of an array's bytes."""
    return hashlib.sha256(np.asarray(value).tobytes()).hexdigest()


def called(variables: Iterable[object]) -> Told:
    """Return digests of variables by what they call themselves."""
    return {
        str(getattr(one, "path", getattr(one, "name", ""))).removesuffix(":0"): digest(one.numpy())  # type: ignore[attr-defined] # a variable
        for one in variables
    }


def keras3() -> dict[str, Told]:
    """Train a Keras 3 model with Adam, and save it with its optimizer."""
    keras.utils.set_random_seed(1)
    dense, norm = keras.layers.Dense(4, name="d1"), keras.layers.BatchNormalization(name="bn")
    model = keras.Sequential([keras.Input((3,)), dense, norm, keras.layers.Dense(2, name="out")])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(X, Y, epochs=2, batch_size=4, shuffle=False, verbose=0)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(FOLDER / "keras3"))
    return {"model": called(model.variables), "optimizer": called(model.optimizer.variables)}


def of_tf_keras(prefix: str, optimizer: object) -> dict[str, Told]:
    """Train a model of tf_keras, and save it with its optimizer."""
    tf_keras.utils.set_random_seed(2)
    model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, name="d1")])
    model.compile(optimizer, "mse")
    model.fit(X, Y, epochs=2, batch_size=4, shuffle=False, verbose=0)
    tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(FOLDER / prefix))
    found = optimizer.variables  # type: ignore[attr-defined] # of both kinds of optimizer
    return {"model": called(model.variables), "optimizer": called(found() if callable(found) else found)}


class Net(tf.Module):  # type: ignore[misc] # TensorFlow has no types
    """A module with lists, mappings, odd names, one variable under two names, strings, a table."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w")
        self.several = [tf.Variable(2.0, name="w"), tf.Variable([3, 4], dtype=tf.int64, name="counts")]
        self.odd = {"a/b": tf.Variable(1.5), "c.d": self.w}
        self.words = tf.Variable(["x", "é"], name="words")
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.table.insert(tf.constant(["one", "two"]), tf.constant([1, 2], tf.int64))
        self.rng = tf.random.Generator.from_seed(3)


def module() -> dict[str, Told]:
    """Save a module alone, and as a SavedModel."""
    net = Net()
    tf.train.Checkpoint(net=net).save(str(FOLDER / "module"))
    plain = tf.Module()
    plain.w, plain.b = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w"), tf.Variable(5.0, name="b")
    tf.saved_model.save(plain, str(FOLDER / "saved_model"))
    (FOLDER / "saved_model" / "fingerprint.pb").unlink(missing_ok=True)  # it is another one each time
    return {"model": {"w": digest(net.w.numpy()), "counts": digest(net.several[1].numpy())}}


def by_name() -> dict[str, Told]:
    """Save variables by name, with slots of Adam and of Momentum, moving averages and a global step."""
    with tf.Graph().as_default():
        v1.set_random_seed(5)
        with v1.variable_scope("layer"):
            weight = v1.get_variable("kernel", (3, 2))
            bias = v1.get_variable("bias", (2,))
        loss = v1.reduce_sum((tf.constant(X) @ weight + bias - tf.constant(Y)) ** 2)
        step = v1.train.get_or_create_global_step()
        first = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
        second = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.control_dependencies([first, second]):
            average = v1.train.ExponentialMovingAverage(0.9).apply([weight, bias])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(average)
            v1.train.Saver().save(session, str(FOLDER / "by_name"), global_step=3, write_meta_graph=False)
            values = session.run({one.op.name: one for one in v1.global_variables()})
    (FOLDER / "checkpoint").unlink()
    return {"": {name: digest(value) for name, value in values.items()}}


def manager() -> None:
    """Save three checkpoints of which the manager keeps two."""
    one = tf.Variable(0.0, name="v")
    managed = tf.train.CheckpointManager(tf.train.Checkpoint(v=one), str(FOLDER / "managed"), max_to_keep=2)
    for number in range(3):
        one.assign(number + 0.5)
        managed.save()
    state = FOLDER / "managed" / "checkpoint"
    state.write_text(re.sub(r"(timestamps?): [0-9.]+", r"\1: 0.0", state.read_text()))


def told(prefix: str) -> dict[str, object]:
    """Return what TensorFlow reads under each key: type, shape and digest, or strings."""
    reader = tf.train.load_checkpoint(str(FOLDER / prefix))
    made: dict[str, object] = {}
    kinds = reader.get_variable_to_dtype_map()
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        value = reader.get_tensor(name)
        strings = kinds[name] == tf.string
        listed = [one.hex() for one in np.asarray(value, object).reshape(-1).tolist()] if strings else []
        made[name] = [kinds[name].name, shape, listed if strings else digest(value)]
    return made


def main() -> None:
    """Write the folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    names = {
        "keras3-1": keras3(),
        "tf_keras-1": of_tf_keras("tf_keras", tf_keras.optimizers.Adam(0.01)),
        "tf_keras_legacy-1": of_tf_keras("tf_keras_legacy", tf_keras.optimizers.legacy.Adam(0.01)),
        "module-1": module(),
        "by_name-3": by_name(),
    }
    manager()
    (FOLDER / "checkpoint").unlink(missing_ok=True)
    prefixes = [*names, "managed/ckpt-2", "managed/ckpt-3", "saved_model/variables/variables"]
    expected = {prefix: {"names": names.get(prefix, {}), "keys": told(prefix)} for prefix in prefixes}
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")
    packages = ("tensorflow_cpu", "keras", "tf_keras", "numpy")
    lines = [
        'command = "python -m tools.make_golden.tensorflow"',
        "[versions]",
        *(f'{name} = "{version(name)}"' for name in packages),
        f'python = "{platform.python_version()}"',
        "[sha256]",
        *(
            f'"{path.relative_to(FOLDER).as_posix()}" = "{hashlib.sha256(path.read_bytes()).hexdigest()}"'
            for path in sorted(FOLDER.rglob("*"))
            if path.is_file()
        ),
    ]
    (FOLDER / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
