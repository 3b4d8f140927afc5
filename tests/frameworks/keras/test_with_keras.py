"""Keras 3 and tf-keras judge: they load what we write, and we read what they write, bit for bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.paths import display

from .conftest import GOLDEN, described

if TYPE_CHECKING:
    from pathlib import Path

Module: TypeAlias = Any  # a library without types, and its objects

pytestmark = pytest.mark.framework
REASON = 'needs the extra "hdf5"'
pytest.importorskip("h5py", reason=REASON)
optimizer_state = pytest.importorskip("ckptfmt.frameworks.keras.optimizer", reason=REASON).optimizer_state


def functional(keras: Module) -> Module:
    """A bidirectional LSTM, attention, a nested model, a GRU, two layers of one class, one not trainable."""
    layers = keras.layers
    inputs = keras.Input((5, 4))
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True), name="bi")(inputs)
    x = layers.MultiHeadAttention(2, 3, name="mha")(x, x)
    x = layers.LayerNormalization(name="norm")(x)
    inner = keras.Sequential(
        [layers.Dense(3, name="in1"), layers.BatchNormalization(name="in2")], name="inner"
    )
    x = layers.GRU(3, name="gru")(inner(x))
    x = layers.Dense(4, name="frozen", trainable=False)(x)
    return keras.Model(inputs, layers.Dense(2, name="out")(x), name="model")


def trained(
    keras: Module, model: Module, optimizer: Module = "adam", shape: tuple[int, ...] = (5, 4)
) -> Module:
    """Return a model with an optimizer, every variable of both another number, as after some training."""
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())
    model(np.zeros((1, *shape), "f4"))
    model.optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(1)
    state = model.optimizer.variables
    for variable in [*model.weights, *(state() if callable(state) else state)]:
        variable.assign(rng.integers(1, 1 << 20, variable.shape).astype(np.asarray(variable.numpy()).dtype))
    return model


def values(variables: Module) -> list[bytes]:
    found = variables() if callable(variables) else variables
    return [np.asarray(variable.numpy()).tobytes() for variable in found]


def cleared(model: Module) -> None:
    for variable in model.weights:
        variable.assign(np.zeros(variable.shape))


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_whole_model_that_we_wrote_is_loaded(both: Module, ending: str, tmp_path: Path) -> None:
    """Every weight and every value of the optimizer; in safe mode, by name of layers and all."""
    model = trained(both, functional(both))
    model.save(tmp_path / f"theirs{ending}")
    to = "keras" if ending == ".keras" else "keras-h5"
    with ckptfmt.read(tmp_path / f"theirs{ending}") as checkpoint:
        assert ckptfmt.write(checkpoint.tree, tmp_path / f"ours{ending}", to=to) == ()
    loaded = both.models.load_model(tmp_path / f"ours{ending}", safe_mode=True)
    assert values(loaded.weights) == values(model.weights)
    if ending == ".keras" or both.__name__ == "tf_keras":  # Keras 3 restores no optimizer of such a model
        assert values(loaded.optimizer.variables) == values(model.optimizer.variables)


@pytest.mark.parametrize("whole", ["weights", "model"])
def test_legacy_weights_that_we_wrote_are_loaded_by_order_and_by_name(
    both: Module, whole: str, tmp_path: Path
) -> None:
    model = trained(both, functional(both))
    if whole == "model":
        model.save(tmp_path / "theirs.h5")
    elif both.__name__ == "tf_keras":
        model.save_weights(tmp_path / "theirs.h5")
    else:
        pytest.skip("Keras 3 writes no legacy weights alone")
    ckptfmt.convert(tmp_path / "theirs.h5", tmp_path / "ours.h5", to="keras-h5")
    wanted = values(model.weights)
    for by_name in (False, True):
        cleared(model)
        model.load_weights(tmp_path / "ours.h5", **({"by_name": True} if by_name else {}))
        assert values(model.weights) == wanted


def test_a_tree_of_weights_alone_is_loaded_as_legacy_weights(keras: Module, tmp_path: Path) -> None:
    """Without versions and lists in tags, as another reader's tree would be."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, name="d"), keras.layers.Dense(1, name="e")]
    )
    arrays = [np.full(shape, number, "f4") for number, shape in enumerate(((3, 2), (2,), (2, 1), (1,)), 1)]
    layers = {"d": {"kernel": arrays[0], "bias": arrays[1]}, "e": {"kernel": arrays[2], "bias": arrays[3]}}
    ckptfmt.write({"model_weights": layers}, tmp_path / "plain.h5", to="keras-h5")
    model.load_weights(tmp_path / "plain.h5")
    assert values(model.weights) == [array.tobytes() for array in arrays]


def subclassed(keras: Module) -> Module:
    base: Any = keras.Model

    class Model(base):  # type: ignore[misc] # of a library without types
        def __init__(self) -> None:
            super().__init__()
            self.z = keras.layers.Dense(3, name="first")
            self.a = keras.layers.Dense(3, name="second")
            self.blocks = [keras.layers.Dense(3), keras.layers.LSTM(2)]

        def call(self, inputs: Module) -> Module:
            x = self.a(self.z(inputs))
            for block in self.blocks:
                x = block(x)
            return x

    return Model()


def sequential(keras: Module) -> Module:
    convolutions = [keras.layers.Conv1D(2, 1, use_bias=False) for _ in range(11)]
    return keras.Sequential([keras.Input((5, 4)), *convolutions, keras.layers.SimpleRNN(2)])


def half(keras: Module) -> Module:
    return keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3, dtype="bfloat16")])


@pytest.mark.parametrize("make", [functional, subclassed, sequential, half])
def test_a_weights_file_that_we_wrote_is_loaded_strictly(keras: Module, make: Module, tmp_path: Path) -> None:
    """Through our own format and back; with the optimizer."""
    model = trained(keras, make(keras), keras.optimizers.Adam(amsgrad=True))
    model.save_weights(tmp_path / "theirs.weights.h5")
    ckptfmt.convert(tmp_path / "theirs.weights.h5", tmp_path / "native")
    ckptfmt.convert(tmp_path / "native", tmp_path / "ours.weights.h5")
    wanted, state = values(model.weights), values(model.optimizer.variables)
    other = trained(keras, make(keras), keras.optimizers.Adam(amsgrad=True))
    cleared(other)
    other.load_weights(tmp_path / "ours.weights.h5")
    assert values(other.weights) == wanted
    assert values(other.optimizer.variables) == state


@pytest.mark.parametrize("size", [600, 2000])
def test_a_sharded_set_is_read_as_one_file(keras: Module, size: int, tmp_path: Path) -> None:
    model = trained(keras, functional(keras))
    model.save_weights(tmp_path / "one.weights.h5")
    model.save_weights(tmp_path / "many.weights.json", max_shard_size=size / 1024**3)
    assert len(list(tmp_path.glob("many_*.weights.h5"))) > 2
    with (
        ckptfmt.read(tmp_path / "one.weights.h5") as one,
        ckptfmt.read(tmp_path / "many.weights.json") as many,
    ):
        assert ckptfmt.digest(one).root == ckptfmt.digest(many).root
        assert list(one.tensors()) == list(many.tensors())
    ckptfmt.convert(tmp_path / "many.weights.json", tmp_path / "ours.weights.h5")
    wanted = values(model.weights)
    cleared(model)
    model.load_weights(tmp_path / "ours.weights.h5")
    assert values(model.weights) == wanted


def _optimizers(keras: Module) -> dict[str, Module]:
    made = keras.optimizers
    return {
        "sgd": made.SGD(0.1),
        "momentum": made.SGD(0.1, momentum=0.9),
        "adam": made.Adam(),
        "amsgrad": made.Adam(amsgrad=True),
        "adamw": made.AdamW(use_ema=True),
        "accumulated": made.Adam(gradient_accumulation_steps=2),
        "schedule": made.Adam(made.schedules.ExponentialDecay(0.1, 10, 0.9)),
        "rmsprop": made.RMSprop(momentum=0.9, centered=True),
        "adagrad": made.Adagrad(),
        "adadelta": made.Adadelta(),
        "adamax": made.Adamax(),
        "nadam": made.Nadam(),
        "ftrl": made.Ftrl(),
        "lion": made.Lion(),
    }


@pytest.mark.parametrize(
    "name",
    [
        "sgd",
        "momentum",
        "adam",
        "amsgrad",
        "adamw",
        "accumulated",
        "schedule",
        "rmsprop",
        "adagrad",
        "adadelta",
        "adamax",
        "nadam",
        "ftrl",
        "lion",
    ],
)
def test_every_number_of_an_optimizer_gets_the_name_that_keras_gives_it(
    keras: Module, name: str, tmp_path: Path
) -> None:
    """Keras itself calls its variables after parameters: our order must say the same of each."""
    model = trained(keras, functional(keras), _optimizers(keras)[name])
    model.save(tmp_path / "model.keras")
    with ckptfmt.read(tmp_path / "model.keras") as checkpoint:
        state = optimizer_state(checkpoint.tree)
        assert len(state.slots) == len(model.trainable_variables)
        for path, parameter in zip(state.slots, model.trainable_variables, strict=True):
            assert described(checkpoint.at(path))[2] == described_array(parameter)
            called = parameter.path.replace("/", "_")
            for slot, value in state.slots[path].items():
                named = next(v for v in model.optimizer.variables if v.path.endswith(f"/{called}_{slot}"))
                assert described(value)[2] == described_array(named)
        assert set(state.scalars) >= {"iteration"}
        assert ("learning_rate" in state.scalars) is (name != "schedule")


def described_array(variable: Module) -> str:
    return described(ckptfmt.Tensor.of(np.asarray(variable.numpy())))[2]


def test_a_list_of_variables_says_what_numbers_belong_to(keras: Module, tmp_path: Path) -> None:
    """A subclassed model has no configuration: refused without the list, and with one that does not fit."""
    model = trained(keras, subclassed(keras), "adam")
    model.save_weights(tmp_path / "model.weights.h5")
    with ckptfmt.read(tmp_path / "model.weights.h5") as checkpoint:
        tree = checkpoint.tree
        with pytest.raises(ckptfmt.ConversionError, match="give them as `variables`"):
            optimizer_state(tree)
        names = ["layers/dense/vars/0", "layers/dense/vars/1", "a/vars/0", "a/vars/1", "blocks/dense/vars/0"]
        names += ["blocks/dense/vars/1", *(f"blocks/lstm/cell/vars/{place}" for place in range(3))]
        with pytest.raises(ckptfmt.ConversionError, match="as `optimizer`"):
            optimizer_state(tree, variables=names)
        with pytest.raises(ckptfmt.ConversionError, match="20 values where SGD has 2"):
            optimizer_state(tree, variables=names, optimizer="SGD")
        with pytest.raises(ckptfmt.ConversionError, match="has shape"):
            optimizer_state(tree, variables=names[::-1], optimizer="Adam")
        with pytest.raises(ckptfmt.ConversionError, match="'nowhere', which is not there"):
            optimizer_state(tree, variables=[*names, "nowhere"], optimizer="Adam")
        with pytest.raises(ckptfmt.ConversionError, match="twice"):
            optimizer_state(tree, variables=[*names[:-1], names[0]], optimizer="Adam")
        state = optimizer_state(tree, variables=names, optimizer="Adam")
        assert [display(path) for path in state.slots] == names
        for path, parameter in zip(state.slots, model.trainable_variables, strict=True):
            assert described(checkpoint.at(path))[2] == described_array(parameter)
            called = parameter.path.replace("/", "_")
            named = next(v for v in model.optimizer.variables if v.path.endswith(f"/{called}_momentum"))
            assert described(state.slots[path]["momentum"])[2] == described_array(named)


@pytest.mark.parametrize("make", [functional, subclassed, sequential])
def test_a_live_model_says_where_its_variables_lie(keras: Module, make: Module, tmp_path: Path) -> None:
    """Its list joins the numbers of the weights file; where a configuration tells, it tells the same."""
    from ckptfmt.frameworks.keras.live import variable_paths  # noqa: PLC0415 - it needs Keras

    model = trained(keras, make(keras), "adam")
    model.save_weights(tmp_path / "model.weights.h5")
    listed = variable_paths(model)
    with ckptfmt.read(tmp_path / "model.weights.h5") as checkpoint:
        state = optimizer_state(checkpoint.tree, variables=listed, optimizer="adam")
        assert [display(path) for path in state.slots] == listed
        for path, parameter in zip(state.slots, model.trainable_variables, strict=True):
            assert described(checkpoint.at(path))[2] == described_array(parameter)
    if make is not subclassed:
        model.save(tmp_path / "model.keras")
        with ckptfmt.read(tmp_path / "model.keras") as checkpoint:
            assert [display(path[1:]) for path in optimizer_state(checkpoint.tree).slots] == listed


def test_a_variable_that_is_not_written_is_named(keras: Module) -> None:
    from ckptfmt.frameworks.keras.live import variable_paths  # noqa: PLC0415 - it needs Keras

    base: Any = keras.layers.Dense

    class Own(base):  # type: ignore[misc] # of a library without types
        def save_own_variables(self, store: Module) -> None:
            store["both"] = np.zeros(1)

    model = keras.Sequential([keras.Input((2,)), Own(1, name="own")])
    with pytest.raises(ckptfmt.ConversionError, match="own/kernel is not among"):
        variable_paths(model)


def test_names_stay_with_their_values_when_a_layer_is_added(keras: Module, tmp_path: Path) -> None:
    """Groups are counted anew, so that ``layers/dense_1`` is another layer; its name is not."""
    from ckptfmt.frameworks.keras.variables import layer_names  # noqa: PLC0415 - of this test alone

    dense = keras.layers.Dense
    for stem, layers in (("short", ["b", "c"]), ("long", ["a", "b", "c"])):
        model = keras.Sequential([keras.Input((2,)), *(dense(2, name=name) for name in layers)])
        for layer in model.layers:
            layer.kernel.assign(np.full((2, 2), ord(layer.name), "f4"))
        model.save_weights(tmp_path / f"{stem}.weights.h5")
    found = []
    for stem in ("short", "long"):
        with ckptfmt.read(tmp_path / f"{stem}.weights.h5") as checkpoint:
            assert isinstance(checkpoint.tree, dict)
            names = layer_names(checkpoint.tree)
            found.append({name: path for path, name in names.items() if name in "abc"})
            for name, path in found[-1].items():
                kernel = checkpoint.at((*path, "vars", 0))
                assert isinstance(kernel, ckptfmt.Tensor)
                assert (kernel.numpy() == ord(name)).all()
    assert found[0]["c"] == ("layers", "dense_1")
    assert found[1]["c"] == ("layers", "dense_2")


def test_assets_are_loaded(keras: Module, tmp_path: Path) -> None:
    words = keras.layers.StringLookup(name="words")
    words.adapt(["a", "b", "a"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), words])
    model.save(tmp_path / "theirs.keras")
    ckptfmt.convert(tmp_path / "theirs.keras", tmp_path / "ours.keras", strict=True)
    with ckptfmt.read(tmp_path / "ours.keras") as checkpoint:
        assert any(path.startswith("assets/") for path in checkpoint.tensors())
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    assert loaded.layers[0].get_vocabulary() == words.get_vocabulary()


def test_a_lambda_layer_is_a_text(keras: Module, tmp_path: Path) -> None:
    """Keras refuses to load it in safe mode, from our file as from its own; we read its weights."""
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Lambda(lambda x: x * 2), keras.layers.Dense(1, name="d")]
    )
    model.save(tmp_path / "theirs.keras")
    ckptfmt.convert(tmp_path / "theirs.keras", tmp_path / "ours.keras")
    with ckptfmt.read(tmp_path / "ours.keras") as checkpoint:
        assert (
            "__lambda__"
            in json.loads(str(checkpoint["config.json"]))["config"]["layers"][1]["config"]["function"][
                "class_name"
            ]
        )
        assert len(checkpoint.tensors()) == 2
    with pytest.raises(ValueError, match="lambda"):
        keras.models.load_model(tmp_path / "ours.keras", safe_mode=True)


@pytest.mark.parametrize("file", ["2.13.1/net.h5", "2.2.4/net.h5"])
def test_old_files_written_again_are_loaded_by_tf_keras(both: Module, file: str, tmp_path: Path) -> None:
    """As it loads the old files themselves."""
    if both.__name__ != "tf_keras":
        pytest.skip("Keras 3 does not load whole models of Keras 2 for certain")
    target = tmp_path / file.rpartition("/")[2]
    ckptfmt.convert(GOLDEN / file, target, to="keras-h5")
    one, other = (both.models.load_model(path, compile=False) for path in (GOLDEN / file, target))
    assert values(one.weights) == values(other.weights)
    assert any(any(value) for value in values(one.weights))
