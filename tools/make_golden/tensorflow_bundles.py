"""Write small bundles and V1 checkpoints with the real TensorFlow, and what it reads from them.

``python -m tools.make_golden.tensorflow_bundles`` in an environment with tensorflow-cpu 2.21 writes
``tests/golden/tensorflow/2.21/bundles``. Values are made from counters and fixed seeds, so that files are the
same each time; state files, which hold the time, are left out. No test runs this.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import dtypes as tf_dtypes

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "golden" / "tensorflow" / "2.21" / "bundles"
QUANTISED = {"qint8": "i1", "quint8": "u1", "qint32": "<i4", "qint16": "<i2", "quint16": "<u2"}
NARROW = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}
PLAIN = (
    *("float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64", "bool", "bfloat16"),
    *("uint16", "complex128", "float16", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"),
)
V1_KINDS = (
    *("float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64", "bool"),
    *("uint16", "complex128", "float16"),
)
v1 = tf.compat.v1


def elements(name: str, count: int = 6) -> np.ndarray:
    """Return counted elements of a type, with negative ones where it has them."""
    values = np.arange(count) - (0 if name[0] in "ub" else 2)
    if name in NARROW and "2" in name and name[0] != "f":
        values = values % 4 - (0 if name[0] == "u" else 2)
    known = getattr(ml_dtypes, name, None)
    return values.astype(np.float32 if name[0] in "fb" else np.int64).astype(known or name)


def constant(name: str, shape: tuple[int, ...]) -> tf.Tensor:
    """Return a tensor of counted elements."""
    count = int(np.prod(shape))
    if name in QUANTISED:
        data = tf.constant(np.arange(count).astype(QUANTISED[name]).reshape(shape))
        return tf.bitcast(data, getattr(tf_dtypes, name))
    return tf.constant(elements(name, count).reshape(shape), getattr(tf_dtypes, name))


def save(prefix: str, tensors: dict[str, tf.Tensor | tuple[str, str, tf.Tensor]]) -> None:
    """Save tensors, or slices of them given as (name, shape and slice, tensor), as a bundle."""
    rows = [value if isinstance(value, tuple) else (name, "", value) for name, value in tensors.items()]
    names, slices, values = zip(*rows, strict=True)
    tf.raw_ops.SaveV2(
        prefix=str(FOLDER / prefix), tensor_names=names, shape_and_slices=slices, tensors=values
    )


def kinds() -> None:
    """Save every type, as a matrix, a scalar and an empty tensor; strings; a variant."""
    tensors: dict[str, tf.Tensor] = {}
    for name in (*PLAIN, *QUANTISED, *NARROW):
        tensors[f"{name}/matrix"] = constant(name, (2, 3))
        tensors[f"{name}/scalar"] = constant(name, ())
        tensors[f"{name}/empty"] = constant(name, (0, 3))
    tensors["string/vector"] = tf.constant([b"hello", "wörld".encode(), b"", b"\xff\x00" * 100])
    tensors["string/scalar"] = tf.constant(b"x" * 300)
    tensors["string/empty"] = tf.zeros((2, 0), tf.string)
    tensors["variant"] = tf.raw_ops.TensorListFromTensor(
        tensor=tf.ones((2, 2)), element_shape=tf.constant([2])
    )
    tensors["ünïcode/ \\ name"] = tf.constant(1.5)
    save("kinds", tensors)


def sliced() -> None:
    """Save slices of matrices, cut both ways, and of packed elements at odd places."""
    whole = np.arange(200 * 7, dtype="f4").reshape(200, 7)
    odd = elements("int4", 9)
    save(
        "sliced",
        {
            "0": ("w", "200 7 0,100:0,3", tf.constant(whole[:100, :3])),
            "1": ("w", "200 7 0,100:3,4", tf.constant(whole[:100, 3:])),
            "2": ("w", "200 7 100,100:-", tf.constant(whole[100:])),
            "3": ("odd", "9 0,5", tf.constant(odd[:5], tf_dtypes.int4)),
            "4": ("odd", "9 5,4", tf.constant(odd[5:], tf_dtypes.int4)),
            "5": ("n\x00\xff", "4 0,1", tf.constant([1.0])),
            "6": ("n\x00\xff", "4 1,3", tf.constant([2.0, 3.0, 4.0])),
        },
    )


def with_saver(prefix: str, build: Callable[[], None], version: int, *, sharded: bool = False) -> None:
    """Save the variables that `build` makes with a Saver on three devices."""
    with tf.Graph().as_default():
        build()
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 3})) as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(write_version=version, sharded=sharded)
            saver.save(
                session, str(FOLDER / prefix), global_step=7, write_meta_graph=False, write_state=False
            )


def on_devices() -> None:
    """Make a variable on each of three devices, and one that is partitioned."""
    for number in range(3):
        with tf.device(f"/cpu:{number}"):
            start = tf.constant(np.arange(20, dtype="f4").reshape(4, 5) + 100 * number)
            v1.get_variable(f"d{number}/w", initializer=start)
    partitioned(7)


def partitioned(rows: int) -> None:
    """Make a partitioned variable."""
    v1.get_variable(
        "part",
        shape=(rows, 4),
        initializer=v1.random_normal_initializer(seed=2),
        partitioner=v1.fixed_size_partitioner(3),
    )


def of_v1() -> None:
    """Make a variable of each type that V1 has, strings, an empty one, and one that is partitioned."""
    for name in V1_KINDS:
        v1.get_variable(f"{name}/w", initializer=tf.constant(elements(name).reshape(2, 3)))
    v1.get_variable("scalar", initializer=tf.constant(3.5))
    v1.get_variable("empty", initializer=tf.zeros((0, 3)))
    v1.get_variable("strings", initializer=tf.constant([["a", "bö"], ["", "x" * 300]]))
    partitioned(30)


def policy() -> None:
    """Save an object with a policy that cuts its tensors over several files."""
    tensors = {f"v{n}": tf.Variable(np.arange(64, dtype="f4").reshape(8, 8) + n) for n in range(3)}
    callback = tf.train.experimental.MaxShardSizePolicy(max_shard_size=200)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=callback)
    tf.train.Checkpoint(**tensors).write(str(FOLDER / "policy"), options=options)


def told(prefix: str) -> dict[str, object]:
    """Return what TensorFlow reads of a checkpoint: type, shape and content of each tensor but variants."""
    reader = v1.train.NewCheckpointReader(prefix)
    made: dict[str, object] = {}
    kinds_of = reader.get_variable_to_dtype_map()
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        made[name] = [kinds_of[name].name, shape, *content(prefix, name, kinds_of[name])]
    return made


def content(prefix: str, name: str, kind: tf.DType) -> list[object]:
    """Return the bytes of a tensor, its strings, or a digest of what is long; nothing of a variant."""
    if kind == tf.variant:
        return []
    restored = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[kind])
    array = np.asarray(restored[0].numpy())
    if kind == tf.string:
        return [[text.hex() for text in array.reshape(-1).tolist()]]
    data = array.view(np.uint8) & np.uint8((1 << NARROW[kind.name]) - 1) if kind.name in NARROW else array
    return [data.tobytes().hex() if data.nbytes <= 96 else hashlib.sha256(data.tobytes()).hexdigest()]


def main() -> None:
    """Write the folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    kinds()
    sliced()
    policy()
    with_saver("devices", on_devices, v1.train.SaverDef.V2, sharded=True)
    with_saver("v1-one", of_v1, v1.train.SaverDef.V1)
    with_saver("v1-set", on_devices, v1.train.SaverDef.V1, sharded=True)
    prefixes = ["kinds", "sliced", "policy", "devices-7", "v1-one-7", "v1-set-7-?????-of-00004"]
    expected = {prefix: told(str(FOLDER / prefix)) for prefix in prefixes}
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=0, ensure_ascii=True) + "\n")
    lines = [
        'command = "python -m tools.make_golden.tensorflow_bundles"',
        "[versions]",
        f'tensorflow = "{tf.__version__}"',
        f'numpy = "{np.__version__}"',
        f'python = "{platform.python_version()}"',
        "[sha256]",
        *(
            f'"{path.name}" = "{hashlib.sha256(path.read_bytes()).hexdigest()}"'
            for path in sorted(FOLDER.iterdir())
        ),
    ]
    (FOLDER / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
