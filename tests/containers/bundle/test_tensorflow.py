"""The real TensorFlow reads what we write, and we read what it writes, bit for bit."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

from ckptfmt.containers.bundle.kinds import NAMES, STRING, VARIANT, dtype_of_number, tag_of_number
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.containers.checkpoint_v1.reader import read_checkpoint_v1
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.framework

TensorFlow: TypeAlias = Any  # a module without types
SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (5,), (3, 5)]
NUMBERS = [number for number in NAMES if number not in (STRING, VARIANT)]


@pytest.fixture(scope="module")
def tf() -> Iterator[TensorFlow]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns about when it is imported is not ours
        pytest.importorskip("tensorflow", reason="needs TensorFlow (the extra `tensorflow`)")
        yield importlib.import_module("tensorflow")


def kind_of(tf: TensorFlow, number: int) -> TensorFlow:
    return tf.dtypes.as_dtype(number)


def random_of(number: int, shape: tuple[int, ...]) -> Tensor:
    kind = dtype_of_number(number)
    assert kind is not None
    rng = np.random.default_rng(number)
    data = rng.integers(0, 2 if kind.name == "bool" else 256, kind.nbytes(shape), np.uint8)
    return Tensor(kind, shape, BytesSource(data.data), tag=tag_of_number(number))


def bits(array: np.ndarray, tensor: Tensor) -> bytes:
    """The bytes of an array, of narrow elements those bits only that count."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return (data & np.uint8((1 << tensor.dtype.bits) - 1) if tensor.dtype.packed else data).tobytes()


def restored(tf: TensorFlow, prefix: Path | str, name: str, kind: TensorFlow) -> np.ndarray:
    with tf.device("cpu:0"):
        found = tf.raw_ops.RestoreV2(
            prefix=str(prefix), tensor_names=[name], shape_and_slices=[""], dtypes=[kind]
        )
    return np.asarray(found[0].numpy())


@pytest.mark.parametrize("number", NUMBERS)
def test_tensorflow_reads_every_type_that_we_write(tf: TensorFlow, number: int, tmp_path: Path) -> None:
    tensors = {f"t{place}": random_of(number, shape) for place, shape in enumerate(SHAPES)}
    write_bundle(tmp_path / "x", [Item(name, tensor) for name, tensor in tensors.items()])
    reader = tf.train.load_checkpoint(str(tmp_path / "x"))
    assert {kind.as_datatype_enum for kind in reader.get_variable_to_dtype_map().values()} == {number}
    for name, tensor in tensors.items():
        array = np.asarray(reader.get_tensor(name))
        assert array.shape == tensor.shape
        assert bits(array, tensor) == bits(tensor.numpy(), tensor)


@pytest.mark.parametrize("number", NUMBERS)
def test_we_write_the_bytes_that_tensorflow_writes(tf: TensorFlow, number: int, tmp_path: Path) -> None:
    tensors = {f"t{place}": random_of(number, shape) for place, shape in enumerate(SHAPES)}
    write_bundle(tmp_path / "ours", [Item(name, tensor) for name, tensor in tensors.items()])
    kind = kind_of(tf, number)
    found = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "ours"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        dtypes=[kind] * len(tensors),
    )
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=found,
    )
    for end in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()
    with read_bundle(tmp_path / "theirs") as bundle:
        for name, tensor in tensors.items():
            node = bundle.entries[name].node
            assert isinstance(node, Tensor)
            assert node.tag == tensor.tag
            assert bits(node.numpy(), tensor) == bits(tensor.numpy(), tensor)


def test_tables_of_many_blocks_are_those_of_tensorflow(tf: TensorFlow, tmp_path: Path) -> None:
    names = [f"model/layer_{number}/block{number % 7}/Kernel\u00fc" for number in range(9000)]
    items = [Item(name, Tensor.of(np.float32(place))) for place, name in enumerate(names)]
    write_bundle(tmp_path / "ours", items)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(np.float32(place)) for place in range(len(names))],
    )
    ours = (tmp_path / "ours.index").read_bytes()
    assert ours == (tmp_path / "theirs.index").read_bytes()
    assert len(ours) > 262144
    with read_bundle(tmp_path / "theirs") as bundle:
        assert list(bundle.entries) == sorted(names, key=str.encode)


def test_strings_and_variants_are_read_and_written(tf: TensorFlow, tmp_path: Path) -> None:
    texts = [b"", b"\xff\x00" * 90, "wörld".encode(), b"x" * 70_000]
    handle = tf.raw_ops.TensorListFromTensor(tensor=tf.reshape(tf.range(6.0), (3, 2)), element_shape=[2])
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=["s", "e", "v"],
        shape_and_slices=["", "", ""],
        tensors=[tf.reshape(tf.constant(texts), (2, 2)), tf.zeros((0, 3), tf.string), handle],
    )
    with read_bundle(tmp_path / "theirs") as bundle:
        nodes = {name: entry.node for name, entry in bundle.entries.items()}
    assert isinstance(nodes["s"], Strings)
    assert (nodes["s"].shape, list(nodes["s"].values)) == ((2, 2), texts)
    items = [Item(name, node) for name, node in nodes.items() if isinstance(node, Strings | Opaque)]
    write_bundle(tmp_path / "ours", items)
    assert restored(tf, tmp_path / "ours", "s", tf.string).reshape(-1).tolist() == texts
    assert restored(tf, tmp_path / "ours", "e", tf.string).shape == (0, 3)
    again = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "ours"), tensor_names=["v"], shape_and_slices=[""], dtypes=[tf.variant]
    )[0]
    stacked = tf.raw_ops.TensorListStack(input_handle=again, element_shape=[2], element_dtype=tf.float32)
    assert stacked.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_tensorflow_reads_several_files_of_data(tf: TensorFlow, size: int, tmp_path: Path) -> None:
    arrays = {f"w{number}": np.arange(number * 10, dtype="f4") for number in range(8)}
    write_bundle(tmp_path / "x", [Item(n, Tensor.of(a)) for n, a in arrays.items()], shard_size=size)
    reader = tf.train.load_checkpoint(str(tmp_path / "x"))
    for name, array in arrays.items():
        assert reader.get_tensor(name).tobytes() == array.tobytes()


def test_tensorflow_finds_the_bit_that_we_find(tf: TensorFlow, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", [Item("w", Tensor.of(np.arange(9.0)))])
    path = tmp_path / "x.data-00000-of-00001"
    changed = bytearray(path.read_bytes())
    changed[9] ^= 1
    path.write_bytes(changed)
    with pytest.raises(tf.errors.DataLossError):
        restored(tf, tmp_path / "x", "w", tf.float64)


# ---------------------------------------------------------------------- slices and savers


def cut(rng: np.random.Generator, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Boxes that cover a shape: the largest dimension of one is halved, again and again."""
    boxes = [tuple(slice(0, extent) for extent in shape)]
    for _ in range(int(rng.integers(1, 9))):
        box = boxes.pop(int(rng.integers(len(boxes))))
        axis = int(np.argmax([part.stop - part.start for part in box]))
        part = box[axis]
        if part.stop - part.start < 2:
            boxes.append(box)
            continue
        at = int(rng.integers(part.start + 1, part.stop))
        halves = (slice(part.start, at), slice(at, part.stop))
        boxes += [(*box[:axis], half, *box[axis + 1 :]) for half in halves]
    return boxes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["float32", "int4", "complex128"])
def test_tensors_in_slices_of_any_cut_are_read(tf: TensorFlow, seed: int, kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(extent) for extent in rng.integers(2, 9, int(rng.integers(1, 4))))
    numbers = rng.integers(-8, 8, shape)
    whole = tf.cast(tf.constant(numbers), kind)
    boxes = cut(rng, shape)
    told = " ".join(map(str, shape))
    slices = [f"{told} " + ":".join(f"{p.start},{p.stop - p.start}" for p in box) for box in boxes]
    parts = [tf.cast(tf.constant(numbers[box]), kind) for box in boxes]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "x"), tensor_names=["w"] * len(boxes), shape_and_slices=slices, tensors=parts
    )
    with read_bundle(tmp_path / "x") as bundle:
        node = bundle.entries["w"].node
        assert isinstance(node, Tensor)
        assert list(bundle.entries) == ["w"]
        assert bits(node.numpy(), node) == bits(np.asarray(whole.numpy()), node)


def saved(
    tf: TensorFlow, prefix: Path, build: Callable[[], None], version: int, *, sharded: bool = False
) -> dict[str, np.ndarray]:
    """Save variables with a Saver on three devices; return their values, partitioned ones joined."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build()
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 3})) as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(write_version=version, sharded=sharded)
            saver.save(session, str(prefix), write_meta_graph=False, write_state=False)
            found = {variable.op.name: session.run(variable) for variable in v1.global_variables()}
    names = sorted(found)
    joined = {name.split("/part_")[0]: found[name] for name in names if "/part_" not in name}
    parts = [found[name] for name in names if "/part_" in name]
    return joined | ({"part": np.concatenate(parts)} if parts else {})


def on_devices(tf: TensorFlow) -> None:
    v1 = tf.compat.v1
    for number in range(3):
        with tf.device(f"/cpu:{number}"):
            v1.get_variable(f"d{number}/w", initializer=tf.random.normal((4, 5), seed=number))
            kinds = ("float64", "int32", "uint8", "int16", "int8", "int64", "bool", "complex64", "uint16")
            for kind in (*kinds, "float16", "complex128"):
                v1.get_variable(f"d{number}/{kind}", initializer=tf.cast(tf.range(3) * (60 + number), kind))
    v1.get_variable(
        "part",
        shape=(7, 4),
        initializer=v1.random_normal_initializer(seed=2),
        partitioner=v1.fixed_size_partitioner(3),
    )
    v1.get_variable("large", shape=(300, 400), initializer=v1.random_normal_initializer(seed=3))
    v1.get_variable("empty", initializer=tf.zeros((0, 3)))


@pytest.mark.parametrize("sharded", [False, True])
def test_what_a_saver_writes_is_read(tf: TensorFlow, sharded: bool, tmp_path: Path) -> None:  # noqa: FBT001
    expected = saved(tf, tmp_path / "x", lambda: on_devices(tf), 2, sharded=sharded)
    with read_bundle(tmp_path / "x") as bundle:
        assert bundle.header.shards == (4 if sharded else 1)
        found = {name: entry.node for name, entry in bundle.entries.items()}
        check(found, expected)


@pytest.mark.parametrize("sharded", [False, True])
def test_what_a_saver_of_old_writes_is_read(tf: TensorFlow, sharded: bool, tmp_path: Path) -> None:  # noqa: FBT001
    expected = saved(tf, tmp_path / "x", lambda: on_devices(tf), 1, sharded=sharded)
    with read_checkpoint_v1(tmp_path / "x") as checkpoint:
        assert len(checkpoint.files) == (4 if sharded else 1)
        check({name: entry.node for name, entry in checkpoint.entries.items()}, expected)


def check(found: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        node = found[name]
        assert isinstance(node, Tensor)
        assert node.shape == array.shape
        assert node.numpy().tobytes() == array.tobytes(), name


def test_a_policy_that_cuts_tensors_is_read(tf: TensorFlow, tmp_path: Path) -> None:
    arrays = {f"v{number}": np.arange(640, dtype="f4").reshape(64, 10) + number for number in range(3)}
    callback = tf.train.experimental.MaxShardSizePolicy(max_shard_size=700)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=callback)
    variables = {name: tf.Variable(array) for name, array in arrays.items()}
    tf.train.Checkpoint(**variables).write(str(tmp_path / "x"), options=options)
    with read_bundle(tmp_path / "x") as bundle:
        assert bundle.header.shards > 8
        for name, array in arrays.items():
            node = bundle.entries[f"{name}/.ATTRIBUTES/VARIABLE_VALUE"].node
            assert isinstance(node, Tensor)
            assert node.numpy().tobytes() == array.tobytes()


def test_a_saver_restores_what_we_write(tf: TensorFlow, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    arrays = {"a/w": np.arange(20, dtype="f4").reshape(4, 5), "b": np.float64(2.5), "c": np.arange(3)}
    write_bundle(tmp_path / "x", [Item(name, Tensor.of(np.asarray(a))) for name, a in arrays.items()])
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {name: v1.get_variable(name, initializer=np.zeros_like(a)) for name, a in arrays.items()}
        v1.train.Saver(variables).restore(session, str(tmp_path / "x"))
        for name, variable in variables.items():
            assert np.asarray(session.run(variable)).tobytes() == np.asarray(arrays[name]).tobytes()
