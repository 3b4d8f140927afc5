"""In which order Keras counts: the trainable variables of a model, and the values of an optimizer.

Both are tables of facts about known classes. What they do not know is refused by name: a wrong order would
give every parameter the moments of another, and no shape need tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ckptfmt.errors import ConversionError
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptfmt.frameworks.keras.config import Config, Layer, Value
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["places_of", "trainable_paths"]

_SIMPLE = frozenset(
    [
        "Dense",
        "EinsumDense",
        "Embedding",
        "Conv1D",
        "Conv2D",
        "Conv3D",
        "Conv1DTranspose",
        "Conv2DTranspose",
        "Conv3DTranspose",
        "DepthwiseConv1D",
        "DepthwiseConv2D",
        "SeparableConv1D",
        "SeparableConv2D",
        "LayerNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "PReLU",
    ]
)
"""Layers all of whose own variables are trainable (keras/src/layers)."""

_CHILDREN = {
    "LSTM": (("cell",),),
    "GRU": (("cell",),),
    "SimpleRNN": (("cell",),),
    "Bidirectional": (("forward_layer", "cell"), ("backward_layer", "cell")),
    "MultiHeadAttention": (("query_dense",), ("key_dense",), ("value_dense",), ("output_dense",)),
}
"""Layers whose variables are those of their parts, in the order in which they make them."""

_SLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "adam": (("momentum", "velocity"),),
    "adamw": (("momentum", "velocity"),),
    "nadam": (("momentum", "velocity"),),
    "lamb": (("momentum", "velocity"),),
    "adamax": (("momentum", "norm"),),
    "adagrad": (("accumulator",),),
    "adadelta": (("accumulated_grad", "accumulated_delta_var"),),
    "ftrl": (("accumulator", "linear"),),
    "lion": (("momentum",),),
    "rmsprop": (("velocity",),),
    "sgd": (),
}
"""What each optimizer keeps: groups, each variable by variable (``build`` in keras/src/optimizers)."""

_NOT_TOLD = (
    "; give the trainable variables, in the model's own order, as `variables`, to say which value belongs to"
    " which parameter"
)


def refuse(message: str) -> NoReturn:
    """Raise a ConversionError."""
    raise ConversionError(message)


def trainable_paths(known: tuple[Layer, ...], weights: dict[Key, Tree]) -> tuple[Path, ...]:
    """Return the paths of the trainable variables of a model, in the order of ``model.trainable_variables``.

    Parameters
    ----------
    known : tuple of Layer
        What its configuration names.
    weights : dict
        The tree of its ``.weights.h5`` file.

    Raises
    ------
    ConversionError
        The configuration says nothing of layers (a subclassed model), or the order within one is not known.
    """
    if not known:
        refuse(f"the configuration names no layers, as of a subclassed model{_NOT_TOLD}")
    return tuple(path for layer in known for path in _of_layer(layer, weights))


def _of_layer(layer: Layer, weights: dict[Key, Tree]) -> Iterator[Path]:
    group = _at(weights, layer.path)
    if layer.nested:
        if _own(group):
            refuse(f"the model {display(layer.path)} has variables of its own{_NOT_TOLD}")
        return
    held = [path for path, _ in tensors(group)] if group is not None else []
    if group is None and (layer.kind in _SIMPLE or layer.kind in _CHILDREN):
        refuse(f"{display(layer.path)} ({layer.kind}) is not in the file{_NOT_TOLD}")
    if not held or not layer.trainable:
        return
    told = tuple(_told(layer.kind, group, layer.config))
    if layer.kind != "BatchNormalization" and set(told) != set(held):
        refuse(f"the order of the variables of {display(layer.path)} ({layer.kind}) is not known{_NOT_TOLD}")
    yield from ((*layer.path, *path) for path in told)


def _told(kind: str, group: Tree, config: Mapping[str, Value]) -> Iterator[Path]:
    if kind in _SIMPLE:
        yield from (("vars", place) for place in _own(group))
    elif kind == "BatchNormalization":  # its statistics come last
        count = (config.get("scale") is not False) + (config.get("center") is not False)
        yield from (("vars", place) for place in _own(group)[:count])
    elif kind == "TimeDistributed":
        inner = config.get("layer")
        if isinstance(inner, dict):
            own = inner.get("config")
            below = _at(group, ("layer",))
            found = _told(str(inner.get("class_name")), below, own if isinstance(own, dict) else {})
            yield from (("layer", *path) for path in found)
    for part in _CHILDREN.get(kind, ()):
        for named in (part, (f"_{part[0]}", *part[1:])):  # as tf-keras calls those of attention
            yield from ((*named, "vars", place) for place in _own(_at(group, named)))


def _at(node: Tree, path: Path) -> Tree:
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _own(group: Tree) -> tuple[Key, ...]:
    """Return the numbers of a layer's own variables, 0, 1, ...; empty if they are not all such."""
    held = group.get("vars") if isinstance(group, dict) else None
    if not isinstance(held, dict) or not all(isinstance(node, Tensor) for node in held.values()):
        return ()
    return tuple(range(len(held))) if set(held) == set(range(len(held))) else ()


def places_of(kind: str, config: Config, count: int, *, old: bool) -> list[tuple[str, int | None]]:
    """Return what each value of an optimizer is: a name, and the index of the variable that it belongs to.

    Parameters
    ----------
    kind : str
        Its class, such as ``"Adam"``; letters of either case.
    config : Config
        Its configuration; what it does not say is as Keras has it by default.
    count : int
        The number of trainable variables.
    old : bool
        Whether it is of Keras 2, whose files hold no learning rate.

    Raises
    ------
    ConversionError
        The layout of this optimizer is not known.
    """
    kind = kind.lower()
    if kind not in _SLOTS:
        refuse(f"the layout of the optimizer {kind!r} is not known; known are {', '.join(sorted(_SLOTS))}")
    groups = list(_SLOTS[kind])
    if config.get("gradient_accumulation_steps"):
        groups.insert(0, ("gradient_accumulator",))
    if config.get("use_ema"):
        groups.insert(0, ("average",))
    if kind in ("sgd", "rmsprop") and config.get("momentum"):
        groups.append(("momentum",))
    if kind == "rmsprop" and config.get("centered"):
        groups.append(("average_gradient",))
    if kind.startswith("adam") and config.get("amsgrad"):
        groups.append(("velocity_hat",))
    scalars = ["iteration"]
    if not old and not isinstance(config.get("learning_rate"), dict):  # a schedule is no variable
        scalars.append("learning_rate")
    places: list[tuple[str, int | None]] = [(name, None) for name in scalars]
    places += [(name, index) for group in groups for index in range(count) for name in group]
    return [*places, ("u_product", None)] if kind == "nadam" else places
