"""Live objects of the real TensorFlow and Keras: captured, saved, restored bit for bit, or not touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

import ckptfmt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.framework

Module: TypeAlias = Any  # a module without types, and what it makes
X = np.linspace(0, 1, 24, dtype="f4").reshape(8, 3)
Y = np.linspace(1, 0, 16, dtype="f4").reshape(8, 2)


@pytest.fixture(scope="module")
def live(tf: Module) -> Module:
    assert tf is not None
    from ckptfmt.frameworks.tensorflow import live  # noqa: PLC0415 - it imports TensorFlow

    return live


def keras_model(keras: Module, seed: int, units: int = 4) -> Module:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((3,)),
        keras.layers.Dense(units, name="d1"),
        keras.layers.Dropout(0.5, seed=seed),
        keras.layers.BatchNormalization(name="bn"),
        keras.layers.Dense(2, name="out"),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def trained(model: Module, steps: int) -> list[bytes]:
    for _ in range(steps):
        model.train_on_batch(X, Y)
    found = model.optimizer.variables
    variables = [*model.variables, *(found() if callable(found) else found)]
    return [variable.numpy().tobytes() for variable in variables]


def test_training_of_keras_goes_on_to_the_same_bits(keras: Module, live: Module, tmp_path: Path) -> None:
    """Weights, slots, moving statistics, and the states of seed generators."""
    model = keras_model(keras, 1)
    trained(model, 3)
    state = {"model": model, "optimizer": model.optimizer, "step": 3}
    ckptfmt.save(state, tmp_path / "x")
    wanted = trained(model, 3)
    other = keras_model(keras, 2)
    resumed = {"model": other, "optimizer": other.optimizer, "step": 0}
    with ckptfmt.load(tmp_path / "x") as checkpoint:
        live.restore(checkpoint.tree, resumed)
    assert resumed["step"] == 3
    assert trained(other, 3) == wanted


@pytest.mark.parametrize("legacy", [False, True])
def test_training_of_tf_keras_goes_on_to_the_same_bits(
    legacy: bool,  # noqa: FBT001 - a parameter of the test
    tf_keras: Module,
    live: Module,
    tmp_path: Path,
) -> None:
    def made(seed: int) -> Module:
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(seed)
        model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, name="d1")])
        kinds = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
        model.compile(kinds.Adam(0.01 * seed), "mse")
        trained(model, 2)
        return model

    model, other = made(1), made(2)
    ckptfmt.save({"model": model, "optimizer": model.optimizer}, tmp_path / "x")
    wanted = trained(model, 3)
    with ckptfmt.load(tmp_path / "x") as checkpoint:
        live.restore(checkpoint.tree, {"model": other, "optimizer": other.optimizer})
    assert trained(other, 3) == wanted  # the rate is a variable: it was restored, too


def test_a_keras_model_has_the_names_of_its_checkpoint(
    tf: Module, keras: Module, live: Module, tmp_path: Path
) -> None:
    model = keras_model(keras, 1)
    prefix = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "ck"))
    captured = live.capture({"model": model, "optimizer": model.optimizer})
    with ckptfmt.read(prefix) as checkpoint:
        names = {name for name in captured["model"] if "seed_generator" not in name}
        assert set(checkpoint["model"]) == names  # type: ignore[arg-type] # a dict
        assert set(checkpoint["optimizer"]) == set(captured["optimizer"])  # type: ignore[arg-type] # a dict


def test_a_checkpoint_object_is_the_tree_of_its_file(
    tf: Module, keras: Module, live: Module, tmp_path: Path
) -> None:
    model = keras_model(keras, 1)
    trained(model, 1)
    objects = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    prefix = objects.save(str(tmp_path / "ck"))
    with ckptfmt.read(prefix) as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(live.capture(objects)).root
        trained(model, 1)
        live.restore(checkpoint.tree, objects)
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(live.capture(objects)).root


def module_of(tf: Module, start: float) -> Module:
    made = tf.Module()
    made.w = tf.Variable(start, name="w")
    made.several = [tf.Variable(2 * start, name="w"), tf.Variable([3 * start])]
    made.odd = {"a/b": tf.Variable(int(start)), "c.d": made.w}
    made.words = tf.Variable(["x" * int(start)])
    made.rng = tf.random.Generator.from_seed(int(start))
    made.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    return made


def test_a_module_with_strings_tables_and_generators_comes_back(
    tf: Module, live: Module, tmp_path: Path
) -> None:
    one, other = module_of(tf, 1.0), module_of(tf, 7.0)
    one.table.insert(tf.constant(["a"]), tf.constant([5], tf.int64))
    ckptfmt.save({"net": one}, tmp_path / "x")
    with ckptfmt.load(tmp_path / "x") as checkpoint:
        live.restore(checkpoint.tree, {"net": other})
    assert other.w.numpy() == 1
    assert other.odd["c.d"] is other.w
    assert other.words.numpy().tolist() == [b"x"]
    assert other.table.lookup(tf.constant(["a"])).numpy() == [5]
    assert other.rng.normal(()).numpy() == one.rng.normal(()).numpy()


def test_plain_variables_generators_and_seeds_come_back(
    tf: Module, keras: Module, live: Module, tmp_path: Path
) -> None:
    def made(seed: int) -> dict[str, Module]:
        return {
            "v": tf.Variable(np.float32(seed)),
            "bf16": tf.Variable(tf.constant([seed], tf.bfloat16)),
            "k": keras.Variable(np.ones(2) * seed),
            "rng": tf.random.Generator.from_seed(seed),
            "seeds": keras.random.SeedGenerator(seed),
            "metric": keras.metrics.Mean(),
            "list": [tf.Variable([seed]), {"word": tf.Variable("x" * seed)}],
            "array": np.ones(2) * seed,
        }

    one, other = made(1), made(2)
    one["metric"].update_state([1.0, 2.0])
    one["rng"].normal((3,))
    ckptfmt.save(one, tmp_path / "x")
    with ckptfmt.load(tmp_path / "x") as checkpoint:
        live.restore(checkpoint.tree, other)
    assert ckptfmt.digest(live.capture(other)).root == ckptfmt.digest(live.capture(one)).root
    assert other["rng"].normal(()).numpy() == one["rng"].normal(()).numpy()
    assert other["metric"].result().numpy() == 1.5


def test_values_are_kept_bit_for_bit(tf: Module, live: Module) -> None:
    """A NaN with a payload, a negative zero, a denormal number."""
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1], "<u4")
    one, other = tf.Variable(bits.view("f4")), tf.Variable(tf.zeros(4))
    live.restore(live.capture([one]), [other])
    assert other.numpy().tobytes() == bits.tobytes()


def test_a_save_does_not_show_later_values(tf: Module, live: Module) -> None:
    variable = tf.Variable([1.0, 2.0])
    captured = live.capture({"v": variable, "t": tf.constant([3.0])})
    variable.assign([5.0, 6.0])
    assert captured["v"].numpy().tolist() == [1, 2]
    assert captured["t"].numpy().tolist() == [3]


def test_what_does_not_fit_is_listed_and_nothing_is_changed(tf: Module, keras: Module, live: Module) -> None:
    model = keras_model(keras, 1)
    before = ckptfmt.digest(live.capture(model)).root
    tree = live.capture({"m": model, "v": tf.Variable([1.0]), "g": tf.random.Generator.from_seed(1)})
    weights = tree["m"]
    del weights["sequential/d1/bias"]
    weights["other"] = weights["sequential/out/bias"]
    weights["sequential/d1/kernel"] = live.capture(tf.Variable(tf.zeros((3, 5))))
    tree["v"] = live.capture(tf.Variable([1]))
    tree["g"]["algorithm"] = 2
    target = {"m": model, "v": tf.Variable([1.0]), "g": tf.random.Generator.from_seed(1), "more": 1}
    with pytest.raises(ckptfmt.ConversionError) as caught:
        live.restore(tree, target)
    for line in (
        'm/"sequential/d1/bias": missing',
        "m/other: unexpected",
        'm/"sequential/d1/kernel": f32 (3, 5) where f32 (3, 4) must be',
        "v: i32 (1,) where f32 (1,) must be",
        "g/algorithm: it is 1 here",
        "more: missing",
    ):
        assert line in str(caught.value)
    assert ckptfmt.digest(live.capture(model)).root == before


def test_a_module_that_does_not_fit_is_not_changed(tf: Module, live: Module) -> None:
    one, other = tf.Module(), tf.Module()
    one.a, one.b = tf.Variable([1.0], name="a"), tf.Variable([2.0], name="b")
    other.a, other.c = tf.Variable([5.0, 6.0], name="a"), tf.Variable([7.0], name="c")
    with pytest.raises(ckptfmt.ConversionError) as caught:
        live.restore(live.capture(one), other)
    for line in ("model/a: f32 (1,) where f32 (2,) must be", "model/b: unexpected", "model/c: missing"):
        assert line in str(caught.value)
    assert other.a.numpy().tolist() == [5, 6]


def test_what_cannot_be_restored_in_place_is_told(live: Module) -> None:
    with pytest.raises(ckptfmt.ConversionError, match="a int cannot be restored in place"):
        live.restore(1, 1)


def test_shapes_and_types_are_plain_values(tf: Module, live: Module) -> None:
    assert live.capture([tf.float32, tf.TensorShape([1, None])]) == ["float32", (1, None)]
