"""Which parameter a value of an optimizer belongs to: told where that is certain, refused where it is not.

``.weights.h5`` and ``.keras`` files number the values, and only the optimizer's class and the order of the
model's variables give the numbers a meaning. Legacy files name them, in three ways. No number is changed and
no file is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.frameworks.keras import config as configs
from ckptfmt.frameworks.keras.layout import places_of, refuse, trainable_paths
from ckptfmt.frameworks.keras.variables import placed
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptfmt.frameworks.keras.config import Config
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["OptimizerState", "optimizer_state", "slots"]

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
"""The members of a ``.keras`` file, and the keys of its tree."""

_SCALARS = {
    "iteration": "iteration",
    "iter": "iteration",
    "iterations": "iteration",
    "learning_rate": "learning_rate",
    "decay": "decay",
    "momentum": "momentum",
    "beta_1": "beta_1",
    "beta_2": "beta_2",
    "rho": "rho",
}
_NEW = [
    "momentum",
    "velocity",
    "velocity_hat",
    "norm",
    "accumulator",
    "accumulated_grad",
    "accumulated_delta_var",
    "linear",
    "average_gradient",
    "average",
    "gradient_accumulator",
]
_OLD = [
    "m",
    "v",
    "vhat",
    "momentum",
    "rms",
    "mg",
    "accumulator",
    "accum_grad",
    "accum_var",
    "velocity",
    "velocity_hat",
    "linear",
    "average",
]


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The values of an optimizer, each with what it belongs to.

    Attributes
    ----------
    scalars : dict
        What belongs to no parameter, by name: ``iteration``, ``learning_rate``.
    slots : dict
        By the path of a parameter in its tree: its values by name, such as ``momentum`` and ``velocity``.
    """

    scalars: dict[str, Tensor]
    slots: dict[Path, dict[str, Tensor]]


def optimizer_state(
    tree: Tree,
    *,
    variables: Sequence[str] | None = None,
    optimizer: str | None = None,
) -> OptimizerState:
    """Return the values of the optimizer of a Keras file, joined to the parameters that they belong to.

    Parameters
    ----------
    tree : Tree
        As the readers of ``keras``, ``keras-weights`` and ``keras-h5`` return it.
    variables : sequence of str, optional
        The displayed paths of the trainable variables, as in ``.weights.h5``, in the order of
        ``model.trainable_variables``. By default that order is taken from the configuration.
    optimizer : str, optional
        The optimizer's class, such as ``"Adam"``, with its defaults; by default as the configuration says.

    Raises
    ------
    ConversionError
        It is not certain what belongs to what; the message says what is missing or does not fit.
    """
    root = tree if isinstance(tree, dict) else {}
    if "optimizer_weights" in root:
        return _by_name(root)
    weights = root.get(WEIGHTS, root)
    if not isinstance(weights, dict):
        refuse("there are no weights in the tree")
    values = _numbered(weights)
    text = root.get(CONFIG)
    model = configs.parse(text, file=CONFIG) if isinstance(text, str) else None
    paths = _paths(weights, model, variables)
    kind, settings = _kind(model, optimizer)
    places = places_of(kind, settings, len(paths), old=_is_old(root))
    if len(places) != len(values):
        found = f"{len(values)} values where {kind} has {len(places)} for {len(paths)} trainable variables"
        refuse(f"the optimizer holds {found}: options, model or variables are others than told")
    return _joined(places, values, paths, weights, (WEIGHTS,) if WEIGHTS in root else ())


def slots(
    tree: Tree, *, variables: Sequence[str] | None = None, optimizer: str | None = None
) -> dict[str, dict[str, Tree]]:
    """Return the values of the optimizer by displayed path of their parameter, and by name.

    What belongs to no parameter is under the empty path. Parameters and errors are those of
    `optimizer_state`.
    """
    state = optimizer_state(tree, variables=variables, optimizer=optimizer)
    named = {display(path): dict[str, "Tree"](values) for path, values in state.slots.items()}
    return {"": dict(state.scalars), **named}


def _numbered(weights: dict[Key, Tree]) -> list[Tensor]:
    group = weights.get("optimizer")
    held = group.get("vars") if isinstance(group, dict) else None
    if not isinstance(held, dict) or set(held) != set(range(len(held))):
        refuse("there are no values 0, 1, ... of an optimizer in optimizer/vars")
    values = [node for _, node in sorted(held.items()) if isinstance(node, Tensor)]
    if len(values) != len(held):
        refuse("a value in optimizer/vars is no tensor of a known type")
    return values


def _paths(
    weights: dict[Key, Tree], model: Config | None, variables: Sequence[str] | None
) -> tuple[Path, ...]:
    if variables is None:
        if model is None:
            message = "optimizer/vars is numbered, and a weights file does not say in which order the model"
            refuse(f"{message} has its variables: give them as `variables`, or read the .keras file")
        return trainable_paths(placed(configs.layers(model), weights), weights)
    known = {display(path): path for path, _ in tensors(weights) if path[0] != "optimizer"}
    missing = [name for name in variables if name not in known]
    if missing or len(set(variables)) != len(variables):
        refuse(f"`variables` names {missing[0]!r}, which is not there" if missing else "a variable twice")
    return tuple(known[name] for name in variables)


def _kind(model: Config | None, optimizer: str | None) -> tuple[str, Config]:
    if optimizer is not None:
        return optimizer, {}
    found = None if model is None else configs.optimizer_of(model)
    if found is None:
        refuse(
            "no configuration says of which class the optimizer is: give it as `optimizer`, such as 'Adam'"
        )
    return found


def _is_old(root: dict[Key, Tree]) -> bool:
    """Whether a ``.keras`` file says that it is of Keras 2."""
    text = root.get(METADATA)
    if not isinstance(text, str):
        return False
    return str(configs.parse(text, file=METADATA).get("keras_version")).startswith("2.")


def _joined(
    places: Sequence[tuple[str, int | None]],
    values: Sequence[Tensor],
    paths: Sequence[Path],
    weights: dict[Key, Tree],
    above: Path,
) -> OptimizerState:
    parameters = dict(tensors(weights))
    state = OptimizerState({}, {(*above, *path): {} for path in paths})
    for number, ((name, index), value) in enumerate(zip(places, values, strict=True)):
        shape = () if index is None else parameters[paths[index]].shape
        if value.shape != shape:
            whose = "no parameter" if index is None else display(paths[index])
            refuse(f"optimizer/vars/{number} has shape {value.shape}, not {shape} as {name} of {whose}")
        if index is None:
            state.scalars[name] = value
        else:
            parameter = (*above, *paths[index])
            state.slots[parameter][name] = value
    return state


def _by_name(root: dict[Key, Tree]) -> OptimizerState:
    """Join the named values of a legacy file: each name must mean one parameter, and one only."""
    parameters = {path: node for path, node in tensors(root.get("model_weights")) if len(path) > 1}
    meanings: dict[str, list[tuple[Path, str]]] = {}
    for path in parameters:
        for spelled, slot in _spellings("/".join(map(str, path[1:]))):
            meanings.setdefault(spelled, []).append((("model_weights", *path), slot))
    state = OptimizerState({}, {})
    for path, value in tensors(root["optimizer_weights"]):
        name = "/".join(map(str, path))
        found = meanings.get(_without_owner(name), [])
        scalar = _SCALARS.get(str(path[-1]).removesuffix(":0"))
        if not found and scalar is not None and value.shape == ():
            state.scalars[scalar] = value
            continue
        if len(found) != 1:
            count = "no parameter" if not found else f"{len(found)} parameters, {display(found[0][0])} first"
            refuse(f"{name!r} of the optimizer could belong to {count}")
        (whose, slot) = found[0]
        if parameters[whose[1:]].shape != value.shape:
            refuse(f"{name!r} has shape {value.shape}, not that of {display(whose)}")
        state.slots.setdefault(whose, {})[slot] = value
    return state


def _spellings(name: str) -> Iterator[tuple[str, str]]:
    """Yield the names that slots of a parameter have, without that of the optimizer before them."""
    bare = name.removesuffix(":0")
    yield from ((f"{bare.replace('/', '_')}_{slot}", slot) for slot in _NEW)
    for slot in _OLD:
        yield f"{slot}/{bare}:0", slot  # Keras 2.11 and later
        yield f"{bare}/{slot}:0", slot  # before


def _without_owner(name: str) -> str:
    return name.removeprefix("training/").partition("/")[2]
