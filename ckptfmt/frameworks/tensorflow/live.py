"""TensorFlow's and Keras's objects in memory, to a tree and back. The only module that imports TensorFlow.

Keras models, layers, optimizers and metrics are mappings of their variables by path; modules and
``tf.train.Checkpoint`` are what their own checkpoint gives when it is read. Keras itself is never imported:
its objects, of Keras 3 and of tf_keras, are known by their classes. Values are copied, none is cast.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import tensorflow as tf

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.tensorflow.reader import read
from ckptfmt.frameworks.tensorflow.restoring import VariableRestoration
from ckptfmt.frameworks.tensorflow.writer import write
from ckptfmt.tree.arrays import numpy_node
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.dtypes import dtype_of
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptfmt.tree.nodes import Tree

__all__ = ["adapt", "capture", "restore"]

_HOLDERS = frozenset({"Layer", "Metric", "Optimizer", "BaseOptimizer", "_BaseOptimizer", "OptimizerV2"})
_KERAS = frozenset({"keras", "tf_keras"})


class _Variable(Protocol):
    """A variable of TensorFlow or of Keras."""

    name: str
    shape: tuple[int, ...]

    def numpy(self) -> np.ndarray: ...

    def assign(self, value: object) -> object: ...


class _Saving(Protocol):
    """What saves and restores objects: ``tf.train.Checkpoint``."""

    def write(self, prefix: str) -> str: ...

    def read(self, prefix: str) -> _Status: ...


class _Status(Protocol):
    def assert_consumed(self) -> object: ...


# --- to a tree -------------------------------------------------------------------------------------------


def capture(obj: object) -> Tree:
    """Return the tree of a variable, module, model, optimizer, generator, or any containers of such.

    Parameters
    ----------
    obj : object

    Raises
    ------
    TreeError
        A value cannot be kept; the message names its path.
    """
    return as_tree(obj, adapt=adapt)[0]


def adapt(value: object) -> object:
    """Return what stands for one of TensorFlow's or Keras's objects in a tree, or NotImplemented for others.

    A Keras model, layer, optimizer or metric is a mapping of paths (``sequential/d1/kernel``) to values, the
    states of seed generators among them. A ``tf.random.Generator`` is its state and algorithm. A module or
    ``tf.train.Checkpoint`` is the tree of the checkpoint that TensorFlow writes of it.
    """
    kinds = _keras_kinds(value)
    if "Variable" in kinds or isinstance(value, tf.Variable):
        return _value(cast("_Variable", value))
    if "SeedGenerator" in kinds:
        return _value(cast("_Variable", value.state))  # type: ignore[attr-defined] # as Keras has it
    if kinds & _HOLDERS:
        return {name: _value(variable) for name, variable in _variables(value).items()}
    if isinstance(value, tf.random.Generator):
        return {"algorithm": int(value.algorithm), "state": _value(value.state)}
    if _is_eager(value):
        return _node(np.asarray(cast("_Variable", value).numpy()))
    if isinstance(value, tf.Module | tf.train.Checkpoint):
        return _own_checkpoint(value)
    if isinstance(value, tf.DType | tf.TensorShape):
        return value.name if isinstance(value, tf.DType) else tuple(value.as_list())
    return NotImplemented


def _keras_kinds(value: object) -> frozenset[str]:
    """Return the names of the classes of Keras that a value is of."""
    return frozenset(
        kind.__name__ for kind in type(value).__mro__ if kind.__module__.partition(".")[0] in _KERAS
    )


def _is_eager(value: object) -> bool:
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy")


def _value(variable: _Variable) -> Tensor | Strings:
    """Return a copy of a variable's value."""
    return _node(np.array(variable.numpy()))


def _node(array: np.ndarray) -> Tensor | Strings:
    if array.dtype.kind in "OSU":
        return Strings(array.shape, tuple(array.reshape(-1).tolist()))
    return cast("Tensor", numpy_node(array))


def _variables(holder: object) -> dict[str, _Variable]:
    """Return the variables of a model, optimizer or metric by path; a path met again is numbered."""
    found = getattr(holder, "variables", None)
    listed = cast("Iterable[_Variable]", found() if callable(found) else found)
    named: dict[str, _Variable] = {}
    for variable in [*listed, *_hyper_parameters(holder)]:
        path = str(getattr(variable, "path", variable.name)).removesuffix(":0")
        name, count = path, 1
        while name in named:
            name, count = f"{path}#{count}", count + 1
        named[name] = variable
    return named


def _hyper_parameters(holder: object) -> list[_Variable]:
    """Return the rates that an optimizer of tf_keras saves and does not count among its variables."""
    hyper = getattr(holder, "_hyper", None)
    if not isinstance(hyper, dict):
        rate = getattr(holder, "_learning_rate", None)
        return [cast("_Variable", rate)] if isinstance(rate, tf.Variable) else []
    return [cast("_Variable", hyper[name]) for name in sorted(hyper) if isinstance(hyper[name], tf.Variable)]


def _saving(target: object) -> _Saving:
    made = target if isinstance(target, tf.train.Checkpoint) else tf.train.Checkpoint(target)
    return cast("_Saving", made)


def _own_checkpoint(value: object) -> Tree:
    """Return the tree of the checkpoint that TensorFlow writes of an object, read whole."""
    with tempfile.TemporaryDirectory(prefix="ckptfmt-") as place:
        prefix = _saving(value).write(str(Path(place, "captured")))
        with read(prefix) as checkpoint:
            done: dict[object, Tensor] = {}
            return _in_memory(checkpoint.tree, done)


def _in_memory(node: Tree, done: dict[object, Tensor]) -> Tree:
    if isinstance(node, dict):
        return {key: _in_memory(child, done) for key, child in node.items()}
    if not isinstance(node, Tensor):
        return node
    key = node.identity if node.identity is not None else id(node)
    if key not in done:
        done[key] = Tensor.of(np.array(node.numpy()), tag=node.tag)
    return done[key]


# --- back into objects -----------------------------------------------------------------------------------


def restore(tree: Tree, target: object) -> None:
    """Put a tree into variables, models, optimizers, modules, or containers of such, in place.

    Everything is checked before anything is changed: all names, shapes and types must be the same. A model
    or an optimizer must be built, so that it has its variables.

    Parameters
    ----------
    tree : Tree
        What `capture` of an equal object, or a reader of its file, returned.
    target : object
        A variable, model, layer, optimizer, metric, generator, module, ``tf.train.Checkpoint``, or a dict or
        list of such. Other values in a dict or list are replaced.

    Raises
    ------
    ConversionError
        Something is missing, unexpected, or of another shape or type; the message lists all of it.
    """
    restoration = VariableRestoration(_Objects())
    if not restoration.plan(tree, target):
        raise ConversionError(f"a {type(target).__name__} cannot be restored in place")
    restoration.run()


class _Objects:
    """TensorFlow's objects, as far as restoring has to know them."""

    def variable(self, target: object) -> str | None:
        """Return the type and shape of a variable, or None for anything else."""
        variable = _variable(target)
        if variable is None:
            return None
        kind = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)  # type: ignore[attr-defined] # both have it
        name = "string" if kind.kind == "O" else dtype_of(kind).name
        return f"{name} {tuple(variable.shape)}"

    def assign(self, node: Tensor | Strings, target: object) -> None:
        """Give a variable a value of its type and shape."""
        variable = _variable(target)
        assert variable is not None  # noqa: S101 - it was asked about before
        variable.assign(tf.constant(_array(node)))

    def parts(self, target: object) -> Mapping[str, object] | None:
        """Return the variables of a model, optimizer, metric or generator by name, or None for others."""
        if _keras_kinds(target) & _HOLDERS:
            return _variables(target)
        return None

    def constants(self, target: object) -> Mapping[str, object] | None:
        """Return what a generator is, besides its state."""
        if isinstance(target, tf.random.Generator):
            return {"algorithm": int(target.algorithm), "state": target.state}
        return None

    def is_saved(self, target: object) -> bool:
        """Whether an object is restored by TensorFlow itself, from a checkpoint."""
        return isinstance(target, tf.Module | tf.train.Checkpoint)

    def saved(self, target: object) -> Tree:
        """Return the tree of such an object as it is."""
        return _own_checkpoint(target)

    def load(self, tree: Tree, target: object) -> None:
        """Restore such an object from a tree of its own graph."""
        with tempfile.TemporaryDirectory(prefix="ckptfmt-") as place:
            prefix = str(Path(place, "restored"))
            write(tree, prefix)
            _saving(target).read(prefix).assert_consumed()

    def value(self, node: Tree) -> object:
        """Return a node as a plain object: tensors and strings as arrays."""
        return _array(node) if isinstance(node, Tensor | Strings) else node


def _variable(target: object) -> _Variable | None:
    kinds = _keras_kinds(target)
    if "SeedGenerator" in kinds:
        return cast("_Variable", target.state)  # type: ignore[attr-defined] # as Keras has it
    if "Variable" in kinds or isinstance(target, tf.Variable):
        return cast("_Variable", target)
    return None


def _array(node: Tensor | Strings) -> np.ndarray:
    if isinstance(node, Strings):
        return np.array(node.values, object).reshape(node.shape)
    return np.array(node.numpy())
