"""The tree of an object-based checkpoint on its way back: which value has which key, by its own graph.

Values are taken from where each is once: the model, the optimizer, the counter. What the tree lacks is taken
out of the graph; what was put into ``model`` besides gets a key of its own name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptfmt.containers.noted.note import NOTE
from ckptfmt.errors import FormatError
from ckptfmt.frameworks.tensorflow.graph import GRAPH_KEY, VALUE, decode_graph, encode_graph, object_path
from ckptfmt.frameworks.tensorflow.names import COUNTER, MODEL, OPTIMIZER, names_of, owner_of
from ckptfmt.frameworks.tensorflow.nodes import same_text, storable
from ckptfmt.frameworks.tensorflow.objects import GRAPH, PATHS, SLOTS, tree_of_names
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import node_at

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from ckptfmt.frameworks.tensorflow.graph import Graph
    from ckptfmt.frameworks.tensorflow.names import Names
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["Regraphed", "regraphed"]


@dataclass(frozen=True, slots=True)
class Regraphed:
    """What an object-based checkpoint is written as.

    Attributes
    ----------
    message : bytes
        The graph.
    keys : mapping of path to str
        The key of each value at each of its paths.
    values : mapping of str to node
        By key.
    expected : dict
        What a reader makes of message and values.
    """

    message: bytes
    keys: Mapping[Path, str]
    values: Mapping[str, Tree]
    expected: dict[Key, Tree]


def regraphed(tree: Tree) -> Regraphed | None:
    """Return how a tree with an object graph is written, or None for any other tree."""
    message = tree.get(GRAPH) if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or type(message) is not bytes:
        return None
    try:
        graph = decode_graph(message)
        held = dict(_held(tree))
        names = names_of(graph, _told_keys(graph, held))
    except FormatError:
        return None
    if not graph:
        return None
    places = _places(names, held, tree.get(PATHS))
    values = {key: held[place] for key, place in places.items()}
    taken = set(places.values())
    held = {place: node for place, node in held.items() if place not in taken}
    others = {place: node for place, node in held.items() if place[0] == MODEL and _free(place[-1], values)}
    keys: dict[Path, str] = {place: key for key, place in places.items()}
    keys |= {place: place[-1] for place in others}
    values |= {place[-1]: node for place, node in others.items()}
    keys |= {path: key for path, key in _tied(names) if key in values and _same(tree, path, values[key])}
    kept = _pruned(graph, values)
    if kept != graph:
        message = encode_graph(kept)
    return Regraphed(message, keys, values, tree_of_names(names_of(kept, values.keys()), values, message))


def _held(tree: dict[Key, Tree]) -> Iterator[tuple[tuple[str, ...], Tree]]:
    """Yield the values that a bundle can hold, by the places in which a reader puts each once."""
    for group in (MODEL, OPTIMIZER):
        below = tree.get(group)
        for name, node in below.items() if isinstance(below, dict) else ():
            if isinstance(name, str) and storable(node):
                yield (group, name), node
    if storable(tree.get(COUNTER)):
        yield (COUNTER,), tree[COUNTER]


def _told_keys(graph: Graph, held: Mapping[tuple[str, ...], Tree]) -> set[str]:
    """Return the keys that a graph tells; those of tables and the like, which go by them, the tree tells."""
    every = {one.key: one for node in graph for one in node.attributes}
    found = {key for key, one in every.items() if one.name == VALUE or object_path(key) != key}
    return found | {place[-1] for place in held if owner_of(place[-1], every) is not None}


def _places(names: Names, held: Mapping[tuple[str, ...], Tree], paths: Tree) -> dict[str, tuple[str, ...]]:
    """Return where the tree has the value of each key: where its name says, or where its path is tied to.

    The name says it unless the bundle lacked a value, or had one besides, when it was read.
    """
    tied = {_identity(node): place for place, node in held.items()}
    found: dict[str, tuple[str, ...]] = {}
    for one in names.named:
        node = paths.get(object_path(one.key)) if isinstance(paths, dict) else None
        place = one.place
        if node is not None and (place not in held or _identity(held[place]) != _identity(node)):
            place = tied.get(_identity(node), place)
        if place in held:
            found[one.key] = place
    return found


def _identity(node: Tree) -> Hashable:
    return node.identity if isinstance(node, Tensor) and node.identity is not None else id(node)


def _free(name: str, values: Mapping[str, Tree]) -> bool:
    return bool(name) and "\0" not in name and name not in values and name not in (GRAPH_KEY, NOTE)


def _tied(names: Names) -> Iterator[tuple[Path, str]]:
    for path, key in names.paths.items():
        yield (PATHS, path), key
    for parameter, name, key in names.slots:
        yield (SLOTS, parameter, name), key


def _same(tree: Tree, path: Path, node: Tree) -> bool:
    """Whether what is at a path is a node itself, or tied to it."""
    try:
        found = node_at(tree, path)
    except ValueError:
        return False
    if isinstance(found, Tensor) and isinstance(node, Tensor) and found.identity is not None:
        return found.identity == node.identity
    return found is node or same_text(found, node)


def _pruned(graph: Graph, values: Mapping[str, Tree]) -> Graph:
    """Return the graph without attributes whose values are not there."""
    attributes = {one.key for node in graph for one in node.attributes}
    there = {owner_of(key, attributes) for key in values}
    return tuple(
        replace(node, attributes=kept)
        if len(kept := tuple(one for one in node.attributes if one.key in there)) != len(node.attributes)
        else node
        for node in graph
    )
