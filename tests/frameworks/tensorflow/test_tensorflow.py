"""The real TensorFlow 2.21 restores what we write, and what it saves is read, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pytest

import ckptfmt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.framework

Module: TypeAlias = Any  # a module without types, and what it makes
X = np.linspace(0, 1, 24, dtype="f4").reshape(8, 3)
Y = np.linspace(1, 0, 16, dtype="f4").reshape(8, 2)


def bits(variables: Any) -> list[bytes]:  # noqa: ANN401 - of any framework
    return [variable.numpy().tobytes() for variable in variables]


def through_our_format(prefix: str, place: Path) -> str:
    """Convert a checkpoint to our own format and back, and return the new prefix."""
    ckptfmt.convert(prefix, place / "native")
    ckptfmt.convert(place / "native", place / "back.index", strict=True)
    return str(place / "back")


def test_a_mapping_by_name_restores_through_saver_reader_and_modules(tf: Module, tmp_path: Path) -> None:
    tree = {"layer/kernel": np.arange(6, dtype="f4").reshape(2, 3), "step": np.array(7, "i8")}
    ckptfmt.write(tree, tmp_path / "x.index")
    reader = tf.train.load_checkpoint(str(tmp_path / "x"))
    assert {name: reader.get_tensor(name).tobytes() for name in tree} == {
        name: array.tobytes() for name, array in tree.items()
    }
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        found = {name: v1.get_variable(name, array.shape, array.dtype) for name, array in tree.items()}
        v1.train.Saver().restore(session, str(tmp_path / "x"))
        assert {name: value.tobytes() for name, value in session.run(found).items()} == {
            name: array.tobytes() for name, array in tree.items()
        }
    module = tf.Module()
    module.kernel = tf.Variable(tf.zeros((2, 3)), name="layer/kernel")
    module.step = tf.Variable(tf.constant(0, tf.int64), name="step")
    tf.train.Checkpoint(module).read(str(tmp_path / "x")).assert_consumed()
    assert bits([module.kernel, module.step]) == [array.tobytes() for array in tree.values()]


def test_a_nested_tree_restores_with_everything_consumed(tf: Module, tmp_path: Path) -> None:
    w = np.arange(6, dtype="f4").reshape(2, 3)
    half = np.float16(3)
    tree = {
        "net": {"w.1/x": w, "tied": w, "l": [np.ones(3), {"z": half}], "t": (np.ones(2, bool),)},
        "words": np.array(["a", "é"]),
        "epoch": 3,
    }
    ckptfmt.write(tree, tmp_path / "x.index")
    one = tf.Variable(tf.zeros((2, 3)))
    rest = [tf.Variable(tf.zeros(3, tf.float64)), tf.Variable(tf.zeros((), tf.float16))]
    flags, words = tf.Variable([False, False]), tf.Variable(["", ""])
    objects = {
        "net": {"w.1/x": one, "tied": one, "l": [rest[0], {"z": rest[1]}], "t": (flags,)},
        "words": words,
    }
    restored = tf.train.Checkpoint(**objects)
    restored.restore(str(tmp_path / "x")).assert_consumed()
    assert bits([one, *rest, flags]) == [w.tobytes(), np.ones(3).tobytes(), half.tobytes(), b"\1\1"]
    assert words.numpy().tolist() == [b"a", "é".encode()]
    assert restored.save(str(tmp_path / "again")) == str(tmp_path / "again-2")  # the counter was 1


def test_a_module_restores_from_a_tree_of_its_names(tf: Module, tmp_path: Path) -> None:
    module = tf.Module()
    module.w = tf.Variable(tf.zeros((2, 2)))
    module.b = tf.Variable(tf.zeros(2))
    ckptfmt.write({"m": {"w": np.eye(2, dtype="f4"), "b": np.ones(2, "f4")}}, tmp_path / "x.index")
    tf.train.Checkpoint(m=module).restore(str(tmp_path / "x")).assert_consumed()
    assert module.w.numpy().tolist() == [[1, 0], [0, 1]]
    assert module.b.numpy().tolist() == [1, 1]


def of_keras3(keras: Module, seed: int) -> tuple[Module, Module]:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    dense = keras.layers.Dense(4, name="d1")
    norm = keras.layers.BatchNormalization(name="bn")
    model = keras.Sequential([keras.Input((3,)), dense, norm, keras.layers.Dense(2, name="out")])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model, model.optimizer


def of_tf_keras(tf_keras: Module, seed: int, *, legacy: bool) -> tuple[Module, Module]:
    tf_keras.utils.set_random_seed(seed)
    model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, name="d1")])
    kinds = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
    optimizer = kinds.Adam(0.01)
    model.compile(optimizer, "mse")
    return model, optimizer


def trained(model: Module, steps: int) -> None:
    for _ in range(steps):
        model.train_on_batch(X, Y)


def everything(model: Module, optimizer: Module) -> list[bytes]:
    found = optimizer.variables
    return bits([*model.variables, *(found() if callable(found) else found)])


@pytest.mark.parametrize("kind", ["keras3", "tf_keras", "tf_keras legacy"])
def test_training_goes_on_to_the_same_bits_after_a_round_trip(
    kind: str, tf: Module, keras: Module, tf_keras: Module, tmp_path: Path
) -> None:
    def made(seed: int) -> tuple[Module, Module]:
        legacy = kind.endswith("legacy")
        return of_keras3(keras, seed) if kind == "keras3" else of_tf_keras(tf_keras, seed, legacy=legacy)

    model, optimizer = made(1)
    trained(model, 3)
    prefix = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "ck"))
    trained(model, 3)
    again, its_optimizer = made(2)
    trained(again, 1)  # tf_keras makes slots at the first step
    assert everything(again, its_optimizer) != everything(model, optimizer)
    restored = tf.train.Checkpoint(model=again, optimizer=its_optimizer)
    restored.restore(through_our_format(prefix, tmp_path)).assert_consumed()
    trained(again, 3)
    assert everything(again, its_optimizer) == everything(model, optimizer)


def test_weights_of_keras_are_found_by_the_paths_that_keras_shows(
    tf: Module, keras: Module, tmp_path: Path
) -> None:
    """Keras 3 has no weights under the model's keys: its trained ones are the optimizer's children."""
    model, optimizer = of_keras3(keras, 1)
    trained(model, 1)
    prefix = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "ck"))
    with ckptfmt.read(prefix) as checkpoint:
        weights = cast("dict[str, ckptfmt.Tensor]", checkpoint["model"])
        assert {name: node.numpy().tobytes() for name, node in weights.items()} == {
            one.path: one.numpy().tobytes() for one in model.variables
        }
        slots = cast("dict[str, Any]", checkpoint["optimizer_slots"])
        for parameter, momentum in zip(model.trainable_variables, optimizer._momentums, strict=True):
            found = slots[parameter.path]["_momentums"].numpy()
            assert found.tobytes() == momentum.numpy().tobytes()


def test_an_exported_keras_model_is_read_by_its_directory(keras: Module, tmp_path: Path) -> None:
    model, _ = of_keras3(keras, 1)
    model.export(str(tmp_path / "exported"), verbose=False)
    with ckptfmt.read(tmp_path / "exported") as checkpoint:
        values = {node.numpy().tobytes() for node in checkpoint.tensors().values()}
        assert {one.numpy().tobytes() for one in model.variables} <= values


def test_a_state_of_pytorch_s_kind_restores_by_its_names(tf: Module, tmp_path: Path) -> None:
    """Keys with dots are names of children like any other."""
    state = {"model": {"layers.0.weight": np.ones((2, 2), "f4"), "layers.0.bias": np.zeros(2, "f4")}}
    ckptfmt.save(state, tmp_path / "native")
    ckptfmt.convert(tmp_path / "native", tmp_path / "x.index")
    variables = {
        "layers.0.weight": tf.Variable(tf.zeros((2, 2))),
        "layers.0.bias": tf.Variable(tf.ones(2)),
    }
    tf.train.Checkpoint(model=variables).restore(str(tmp_path / "x")).assert_consumed()
    assert variables["layers.0.weight"].numpy().tolist() == [[1, 1], [1, 1]]


def test_iterators_and_tables_come_back(tf: Module, tmp_path: Path) -> None:
    """Variants are kept as they are, and never looked into."""
    iterator = iter(tf.data.Dataset.range(10).shuffle(5, seed=1))
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
    next(iterator)
    prefix = tf.train.Checkpoint(iterator=iterator, table=table).save(str(tmp_path / "ck"))
    rest = [one.numpy() for one in iterator]
    with ckptfmt.read(prefix) as checkpoint:
        assert checkpoint.findings == ()
    again = iter(tf.data.Dataset.range(10).shuffle(5, seed=1))
    empty = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    restored = tf.train.Checkpoint(iterator=again, table=empty)
    restored.restore(through_our_format(prefix, tmp_path)).assert_consumed()
    assert [one.numpy() for one in again] == rest
    assert empty.lookup(tf.constant(["a", "b", "c"])).numpy().tolist() == [1, 2, -1]


def test_sharded_and_sliced_saves_of_objects_are_read(tf: Module, tmp_path: Path) -> None:
    variables = {f"v{at}": tf.Variable(np.arange(64, dtype="f4").reshape(8, 8) + at) for at in range(3)}
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=200)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    prefix = tf.train.Checkpoint(**variables).save(str(tmp_path / "ck"), options=options)
    with ckptfmt.read(prefix) as checkpoint:
        paths = cast("dict[str, ckptfmt.Tensor]", checkpoint["object_paths"])
        for name, variable in variables.items():
            assert paths[name].numpy().tobytes() == variable.numpy().tobytes()


def test_a_checkpoint_of_before_bundles_is_read_and_written_as_one(tf: Module, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.arange(6, dtype="f4").reshape(2, 3))
        step = v1.train.get_or_create_global_step()
        session.run([w.initializer, step.initializer])
        session.run(step.assign_add(5))
        for sharded in (False, True):
            (tmp_path / f"{sharded}").mkdir()
            saver = v1.train.Saver(write_version=v1.train.SaverDef.V1, sharded=sharded)
            saver.save(session, str(tmp_path / f"{sharded}" / "m.ckpt"), global_step=5)
    for given in ("False", "False/m.ckpt-5", "True", "True/m.ckpt-5"):
        assert ckptfmt.detect(tmp_path / given).name == "tensorflow-v1"
        with ckptfmt.read(tmp_path / given) as checkpoint:
            assert checkpoint.step == 5
            assert checkpoint["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]  # type: ignore[union-attr] # a tensor
    ckptfmt.convert(tmp_path / "True", tmp_path / "new.index")
    assert tf.train.load_checkpoint(str(tmp_path / "new")).get_tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ckptfmt.ConversionError, match="never written; write tensorflow"):
        ckptfmt.write({}, tmp_path / "y", to="tensorflow-v1")
