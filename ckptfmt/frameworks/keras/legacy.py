"""The layout of legacy ``.h5`` files: a list of layers, each a group with a list of its weights' names.

Keras loads by the order of the lists, not by names. A tree keeps that order in its keys, and where groups
could be listed in several orders, in the tag of its mapping as well. Configurations stay texts.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.walk import Dataset, Group
from ckptfmt.errors import FormatError
from ckptfmt.frameworks.keras.groups import (
    MAX_LEVELS,
    attributes_of,
    names_of,
    split_name,
    with_tag,
)
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptfmt.containers.hdf5.reader import Hdf5File
    from ckptfmt.frameworks.keras.config import Layer
    from ckptfmt.frameworks.keras.groups import Untyped
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = [
    "CONFIGS",
    "LAYERS",
    "MODEL",
    "OPTIMIZER",
    "TOP_LEVEL",
    "WEIGHTS_LIST",
    "has_many_orders",
    "leaf_names",
    "legacy_tree",
]

MODEL, OPTIMIZER = "model_weights", "optimizer_weights"
"""The groups of a whole model's file."""
TOP_LEVEL = "top_level_model_weights"
"""The group of a model's own weights, which no list of layers names."""
LAYERS, WEIGHTS_LIST = "layer_names", "weight_names"
CONFIGS = ("model_config", "training_config")
"""Attributes of a whole model's file that are entries of its tree."""


class _Legacy:
    """One file on its way to a tree."""

    def __init__(self, file: Hdf5File, untyped: Untyped, known: Sequence[Layer]) -> None:
        self.file = file
        self.untyped = untyped
        self.findings: list[Finding] = []
        self.used: set[int] = set()
        self.brain = _brain_layers(known)

    def layers(self, group: Group) -> dict[Key, Tree]:
        names = names_of(group, LAYERS, self.file.name)
        if names is None:
            message = f"there is no attribute {LAYERS!r}: the file is of no Keras that we know"
            raise FormatError(message, file=self.file.name, tensor=group.path or "/")
        if TOP_LEVEL in group.members and TOP_LEVEL not in names:
            names = [*names, TOP_LEVEL]
        made: dict[Key, Tree] = {}
        for name in names:
            if name in made:
                raise FormatError(f"layer {name!r} is listed twice", file=self.file.name, tensor=group.path)
            layer = _at(group, split_name(name, group, self.file.name))
            if not isinstance(layer, Group):
                message = f"there is no group of the layer {name!r} that {LAYERS!r} lists"
                raise FormatError(message, file=self.file.name, tensor=group.path or "/")
            made[name] = self.weights(layer, sure=name in self.brain)
        return with_tag(made, self.others(group, (LAYERS, *(CONFIGS if not group.path else ()))))

    def weights(self, group: Group, *, sure: bool) -> dict[Key, Tree]:
        """Return the weights of a layer or optimizer, nested as their names are."""
        names = names_of(group, WEIGHTS_LIST, self.file.name) or []
        made: dict[Key, Tree] = {}
        for name in names:
            parts = split_name(name, group, self.file.name)
            found = _at(group, parts)
            if not isinstance(found, Dataset):
                message = f"there is no dataset {name!r}, which {WEIGHTS_LIST!r} lists"
                raise FormatError(message, file=self.file.name, tensor=group.path)
            if len(parts) > MAX_LEVELS:
                raise FormatError(f"{name[:80]!r} is too deep", file=self.file.name, tensor=group.path)
            if not _put(made, parts, self.untyped.node((*group.path.split("/"), *parts), found, sure=sure)):
                raise FormatError(f"{name!r} is listed twice", file=self.file.name, tensor=group.path)
            self.used.add(id(found))
        attributes = self.others(group, (WEIGHTS_LIST,))
        if has_many_orders(made):
            attributes[WEIGHTS_LIST] = list(names)
        return with_tag(made, attributes)

    def others(self, group: Group, lists: tuple[str, ...]) -> dict[Key, Tree]:
        """Return the attributes of a group that are none of `lists`, which may be split."""
        found = attributes_of(group, self.file.name, self.findings)
        return {
            name: value
            for name, value in found.items()
            if str(name) not in lists and str(name).rstrip("0123456789") not in lists
        }

    def unlisted(self) -> Iterator[Finding]:
        """Yield a finding for the datasets that no list names: Keras never loads them."""
        left = [name for name, found in self.file.datasets.items() if id(found) not in self.used]
        if left:
            message = (
                f"{len(left)} datasets that no list of weights names are left out, {left[0]!r} among them"
            )
            yield Finding("unlisted", left[0], Severity.LOSS, message, file=self.file.name)


def _brain_layers(known: Sequence[Layer]) -> frozenset[str]:
    """Return the names of the layers at the top all of whose variables are bfloat16."""
    dtypes: dict[str, set[str | None]] = {}
    top = ""
    for layer in known:
        top = layer.name if len(layer.path) == 2 else top
        if not layer.nested:
            dtypes.setdefault(top, set()).add(layer.dtype)
    return frozenset(name for name, found in dtypes.items() if found == {"bfloat16"})


def _at(group: Group, parts: tuple[str, ...]) -> Group | Dataset | None:
    node: Group | Dataset | None = group
    for part in parts:
        node = node.members.get(part) if isinstance(node, Group) else None
    return node


def _put(into: dict[Key, Tree], parts: tuple[str, ...], node: Tree) -> bool:
    """Put a node at its place; False if something is there."""
    for part in parts[:-1]:
        below = into.setdefault(part, {})
        if not isinstance(below, dict):
            return False
        into = below
    if parts[-1] in into:
        return False
    into[parts[-1]] = node
    return True


def leaf_names(group: dict[Key, Tree]) -> Iterator[Path]:
    """Yield the paths of all that is no mapping, in the order of the keys."""
    stack: list[tuple[Path, Tree]] = [((), group)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, dict):
            stack += [((*path, key), below) for key, below in reversed(node.items())]
        else:
            yield path


def has_many_orders(group: dict[Key, Tree]) -> bool:
    """Whether lists of different orders give this nesting: leaves of one group may stand apart in a list.

    As those of an optimizer do: ``m/a, v/a, m/b, v/b`` becomes ``m: {a, b}, v: {a, b}``.
    """
    node: Tree = group
    while isinstance(node, dict) and len(node) == 1:
        node = next(iter(node.values()))
    return isinstance(node, dict) and any(map(_has_two_leaves, node.values()))


def _has_two_leaves(node: Tree) -> bool:
    return isinstance(node, dict) and len(list(islice(leaf_names(node), 2))) == 2


def legacy_tree(
    file: Hdf5File, untyped: Untyped, known: Sequence[Layer]
) -> tuple[dict[Key, Tree], tuple[Finding, ...]]:
    """Return the tree of a legacy file.

    Parameters
    ----------
    file : Hdf5File
    untyped : Untyped
        Is told of raw bytes.
    known : sequence of Layer
        What the configuration says of the layers.

    Returns
    -------
    dict
        Of a whole model: ``model_config``, ``training_config`` (texts), ``model_weights``,
        ``optimizer_weights``; of weights alone just ``model_weights``.
    tuple of Finding

    Raises
    ------
    FormatError
        Lists of names and groups do not fit each other; names the entry.
    """
    legacy = _Legacy(file, untyped, known)
    model = file.root.members.get(MODEL)
    if not isinstance(model, Group):
        made: dict[Key, Tree] = {MODEL: legacy.layers(file.root)}
        return made, (*legacy.findings, *legacy.unlisted())
    made = {}
    for name in CONFIGS:
        text = file.root.attributes.get(name)
        if isinstance(text, str):
            made[name] = text
        elif text is not None:
            raise FormatError(f"attribute {name!r} is no text", file=file.name)
    made[MODEL] = legacy.layers(model)
    optimizer = file.root.members.get(OPTIMIZER)
    if isinstance(optimizer, Group):
        made[OPTIMIZER] = legacy.weights(optimizer, sure=bool(legacy.brain))
    tree = with_tag(made, legacy.others(file.root, CONFIGS))
    return tree, (*legacy.findings, *legacy.unlisted())
