"""A tree as the groups and lists of names of a legacy ``.h5`` file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.writer import MAX_ATTRIBUTE
from ckptfmt.frameworks.keras.emit import check_name, leaf_of, name_lists, refuse_leaf, tag_attributes
from ckptfmt.frameworks.keras.legacy import (
    CONFIGS,
    LAYERS,
    MODEL,
    OPTIMIZER,
    TOP_LEVEL,
    WEIGHTS_LIST,
    has_many_orders,
    leaf_names,
)
from ckptfmt.tree.nodes import tag_of

if TYPE_CHECKING:
    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.containers.hdf5.writer import Hdf5Writer
    from ckptfmt.frameworks.keras.emit import Leaf, Told
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["PlannedLegacy"]

_ROOT = frozenset({*CONFIGS, MODEL, OPTIMIZER})
_ORIGIN: dict[str, Attribute] = {"backend": b"tensorflow", "keras_version": b"3.0.0"}
"""What stands where a tree does not say: files without a version are taken for Keras 1's, and turned."""


class PlannedLegacy:
    """The groups and datasets of a tree, checked and in the order of its keys.

    Parameters
    ----------
    tree : Tree
        As the reader of ``keras-h5`` returns it.
    told : Told

    Raises
    ------
    ConversionError
        It is no tree of that kind; names the path.
    """

    def __init__(self, tree: Tree, told: Told) -> None:
        self.groups: list[tuple[str, dict[str, Attribute]]] = []
        self.leaves: list[Leaf] = []
        self._told = told
        if not isinstance(tree, dict) or MODEL not in tree or not _ROOT.issuperset(tree):
            others = [key for key in tree if key not in _ROOT] if isinstance(tree, dict) else []
            named = f"has {others[0]!r}" if others else f"has no {MODEL!r}"
            refuse_leaf((), f"a file of Keras holds {', '.join(sorted(_ROOT))}; this tree {named}")
        whole = len(tree) > 1
        if whole:
            attributes = _ORIGIN | _as_bytes(tag_attributes(tree, (), told))
            self.groups.append(("", {**attributes, **_configurations(tree)}))
        self._layers(tree[MODEL], MODEL if whole else "")
        if OPTIMIZER in tree:
            self._weights(tree[OPTIMIZER], (OPTIMIZER,), OPTIMIZER)

    def write(self, writer: Hdf5Writer) -> None:
        """Write everything."""
        for place, attributes in self.groups:
            writer.group(place, attributes)
        for leaf in self.leaves:
            leaf.write(writer)

    def _layers(self, layers: Tree, place: str) -> None:
        if not isinstance(layers, dict):
            refuse_leaf((MODEL,), "no mapping of layers")
        names = [name for name in layers if isinstance(name, str) and name != TOP_LEVEL]
        if len(names) + (TOP_LEVEL in layers) != len(layers):
            refuse_leaf((MODEL,), "a layer whose name is no text")
        attributes = _ORIGIN | _as_bytes(tag_attributes(layers, (MODEL,), self._told))
        self.groups.append((place, {**attributes, **name_lists(LAYERS, names)}))
        for name, layer in layers.items():
            assert isinstance(name, str)  # noqa: S101 - as was counted
            for part in name.split("/"):
                check_name(part, (MODEL, name))
            self._weights(layer, (MODEL, name), f"{place}/{name}" if place else name)

    def _weights(self, weights: Tree, path: Path, place: str) -> None:
        if not isinstance(weights, dict):
            refuse_leaf(path, "no mapping of weights")
        by_name: dict[str, tuple[Path, Tree]] = {}
        for below in leaf_names(weights):
            for key in below:
                if not isinstance(key, str):
                    refuse_leaf((*path, *below), "a key that is no text")
                check_name(key, (*path, *below))
            by_name["/".join(map(str, below))] = ((*path, *below), _at(weights, below))
        names = _ordered(weights, list(by_name))
        if names is None:
            names = list(by_name)
            if has_many_orders(weights):
                self._told.unordered(path)
        attributes = _as_bytes(tag_attributes(weights, path, self._told, without=(WEIGHTS_LIST,)))
        self.groups.append((place, {**attributes, **name_lists(WEIGHTS_LIST, names)}))
        for name in names:
            where, node = by_name[name]
            self.leaves.append(leaf_of(node, where, f"{place}/{name}", self._told))


def _at(group: dict[Key, Tree], path: Path) -> Tree:
    node: Tree = group
    for key in path:
        assert isinstance(node, dict)  # noqa: S101 - as the path was made
        node = node[key]
    return node


def _ordered(weights: dict[Key, Tree], names: list[str]) -> list[str] | None:
    """Return the names in the order of the list that the tag holds, if that is a list of these."""
    tag = tag_of(weights)
    listed = None if tag is None else tag.attributes.get(WEIGHTS_LIST)
    if not isinstance(listed, list):
        return None
    texts = [text for text in listed if isinstance(text, str)]
    return texts if sorted(texts) == sorted(names) and len(texts) == len(listed) else None


def _configurations(tree: dict[Key, Tree]) -> dict[str, Attribute]:
    """Return the configurations as attributes; bytes, as Keras 2 wants them, where they fit into a header."""
    made: dict[str, Attribute] = {}
    for name in CONFIGS:
        text = tree.get(name)
        if name not in tree:
            continue
        if not isinstance(text, str):
            refuse_leaf((name,), "a configuration is a text")
        made[name] = text
    return _as_bytes(made)


def _as_bytes(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return short texts as bytes of a fixed width: Keras 2 with h5py 2 decodes them."""
    return {
        name: value.encode()
        if isinstance(value, str) and 0 < len(value.encode()) <= MAX_ATTRIBUTE and not value.endswith("\0")
        else value
        for name, value in attributes.items()
    }
