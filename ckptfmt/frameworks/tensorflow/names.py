"""What the values of an object graph are called in a tree, and which of them are an optimizer's.

Keys are paths of objects, and not even of those that a user would look at: the weights of a Keras 3 model lie
under its optimizer's ``_trainable_variables``. So a variable goes by its ``full_name`` where no other one has
it, else by the path that its key is made of. A pure function of the graph and the keys; no value is looked
at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.frameworks.tensorflow.graph import VALUE, object_path, shortest_paths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ckptfmt.frameworks.tensorflow.graph import Attribute, Graph, Node

__all__ = ["COUNTER", "MODEL", "OPTIMIZER", "Named", "Names", "names_of", "owner_of"]

MODEL = "model"
"""Where everything is that is no optimizer's."""

OPTIMIZER = "optimizer"
"""Where the variables of optimizers are: what their graph reaches through them alone, and slot variables."""

COUNTER = "save_counter"
"""The child of the root in which ``tf.train.Checkpoint.save`` counts; a place of its own in the tree."""

_TRAINABLE = "_trainable_variables"
_NO_SLOTS = frozenset({_TRAINABLE, "_variables"})
_LONGEST_ENDING = 64
_STEPS = frozenset({"iter", "_iterations"})
_RATES = frozenset({"learning_rate", "_learning_rate", "_variables"})


@dataclass(frozen=True, slots=True)
class Named:
    """A value of the bundle and its place in the tree.

    Attributes
    ----------
    key : str
        In the bundle.
    place : tuple of str
        In the tree: a group and a name, or `COUNTER` alone.
    """

    key: str
    place: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last key of the place."""
        return self.place[-1]


@dataclass(frozen=True, slots=True)
class Names:
    """The values of a graph.

    Attributes
    ----------
    named : tuple of Named
        Each key once, in the order of the graph's nodes, then those that no node knows.
    paths : dict of str to str
        The paths of variables through the graph, aliases included; to keys.
    slots : tuple of (str, str, str)
        The place's name of a parameter, what an optimizer calls the slot, and the slot's key.
    missing : tuple of Attribute
        Those without a value.
    """

    named: tuple[Named, ...]
    paths: dict[str, str]
    slots: tuple[tuple[str, str, str], ...]
    missing: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class _Owned:
    """A key, the node that it belongs to, the path that it is made of, and what the variable calls itself."""

    key: str
    node: int
    path: str
    full_name: str


def names_of(graph: Graph, keys: Collection[str]) -> Names:
    """Return what the values of a graph are called.

    Parameters
    ----------
    graph : Graph
    keys : collection of str
        What the bundle holds, the graph itself left out.

    Raises
    ------
    LimitError
        The graph is larger than any model's.
    """
    owned, missing = _owned(graph, keys)
    others = sorted(set(keys) - owned.keys())
    chosen = _chosen(owned, others)
    of_model = _of_model(graph)
    counter = _counter(graph, owned)
    named = [
        Named(one.key, _place(chosen[one.key], one.node in of_model, counter=one.key == counter))
        for one in owned.values()
    ]
    named += [Named(key, (MODEL, key)) for key in others]
    by_node = {one.node: one.key for one in owned.values() if one.path != one.key}
    slots = tuple(
        (chosen[by_node[parameter]], name, by_node[variable])
        for parameter, name, variable in _slots(graph)
        if parameter in by_node and variable in by_node
    )
    return Names(tuple(named), _paths(graph, by_node), slots, missing)


def owner_of(key: str, attributes: Collection[str]) -> str | None:
    """Return the key of the attribute that a key of the bundle belongs to.

    A variable has one value, under its own key. Tables, iterators and other objects may have several, whose
    keys add an ending: ``table-keys``, ``ITERATOR_STATE``.
    """
    if key in attributes:
        return key
    room = min(_LONGEST_ENDING, len(key) - key.rfind("/") - 1)
    shorter = (key[:-cut] for cut in range(1, room + 1))
    return next((one for one in shorter if one in attributes), None)


def _owned(graph: Graph, keys: Collection[str]) -> tuple[dict[str, _Owned], tuple[Attribute, ...]]:
    """Return the node of each key that has one, in the order of nodes, and the attributes without a value."""
    attributes: dict[str, tuple[int, Attribute]] = {}
    for at, node in enumerate(graph):
        for one in node.attributes:
            attributes.setdefault(one.key, (at, one))
    below: dict[str, list[str]] = {}
    for key in keys:
        owner = owner_of(key, attributes)
        if owner is not None:
            below.setdefault(owner, []).append(key)
    owned: dict[str, _Owned] = {}
    for owner, (at, one) in attributes.items():
        for key in below.get(owner, ()):
            whole = key == owner  # else one of several values, which go by their keys
            full_name = one.full_name if whole and one.name == VALUE else ""
            owned[key] = _Owned(key, at, object_path(key) if whole else key, full_name)
    return owned, tuple(one for key, (_, one) in attributes.items() if key not in below)


def _chosen(owned: dict[str, _Owned], others: list[str]) -> dict[str, str]:
    """Return a name for each key: all of them differ."""
    counts = Counter(one.full_name for one in owned.values())
    paths = Counter(one.path for one in owned.values())
    taken = {*others, *owned}  # a full name that is another variable's key or path would not tell them apart
    chosen = {}
    for key, one in owned.items():
        name, path = one.full_name, one.path
        free = name not in taken and (name == path or name not in paths)
        if name and counts[name] == 1 and free:
            chosen[key] = name
        else:
            chosen[key] = path if paths[path] == 1 and path not in taken else key
    return chosen


def _place(name: str, of_model: bool, *, counter: bool) -> tuple[str, ...]:  # noqa: FBT001 - private
    if counter:
        return (COUNTER,)
    return (MODEL if of_model else OPTIMIZER, name)


def _counter(graph: Graph, owned: dict[str, _Owned]) -> str | None:
    """Return the key of the counter of saves, if it is a variable."""
    at = next((at for name, at in graph[0].children if name == COUNTER), None) if graph else None
    return next((key for key, one in owned.items() if one.node == at and one.path != key), None)


def _paths(graph: Graph, by_node: dict[int, str]) -> dict[str, str]:
    """Return all paths to variables; a key's own path is the key's, whatever the edges say."""
    own = {object_path(key): key for key in by_node.values()}
    found = shortest_paths(graph)
    for at, key in by_node.items():
        for path in found.get(at, ()):
            own.setdefault(path, key)
    return own


# ---------------------------------------------------------------------- optimizers


def _is_optimizer(node: Node) -> bool:
    names = {name for name, _ in node.children}
    return bool(node.slots) or (bool(names & _STEPS) and bool(names & _RATES))


def _of_model(graph: Graph) -> set[int]:
    """Return the nodes that are no optimizer's: reached without going through one, or what one trains."""
    optimizers = {at for at, node in enumerate(graph) if _is_optimizer(node)}
    starts = [0] if graph else []
    starts += [target for at in optimizers for name, target in graph[at].children if name == _TRAINABLE]
    seen = set(starts)
    waiting = list(starts)
    while waiting:
        at = waiting.pop()
        if at in optimizers:
            continue
        for _, target in graph[at].children:
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen | _unreached(graph)


def _unreached(graph: Graph) -> set[int]:
    """Return the nodes to which nothing leads, neither an edge nor a slot."""
    led_to = {target for node in graph for _, target in node.children}
    led_to |= {slot.variable for node in graph for slot in node.slots}
    return set(range(1, len(graph))) - led_to


def _slots(graph: Graph) -> Iterator[tuple[int, str, int]]:
    """Yield parameter, name and slot variable: from slots where there are any, else from lists."""
    by_full_name: dict[str, int] = {}
    for at, node in enumerate(graph):
        for one in node.attributes:
            by_full_name.setdefault(one.full_name, at)
    done: set[int] = set()  # a list is one optimizer's, so that no graph makes us look at it twice
    for node in graph:
        if not _is_optimizer(node):
            continue
        for slot in node.slots:
            yield slot.original, slot.name, slot.variable
        yield from _listed_slots(graph, node, by_full_name, done)


def _listed_slots(
    graph: Graph, node: Node, by_full_name: dict[str, int], done: set[int]
) -> Iterator[tuple[int, str, int]]:
    """Yield the slots of lists such as ``_momentums``: by position in Keras 3, by full name in tf_keras.

    Source: keras/src/backend/tensorflow/optimizer_distribute.py and tf_keras/src/optimizers/optimizer.py.
    """
    trained = None
    for name, target in node.children:
        if name == _TRAINABLE and target not in done:
            done.add(target)
            trained = dict(graph[target].children)
    for name, target in node.children:
        if name in _NO_SLOTS or target in done:
            continue
        done.add(target)
        for index, variable in graph[target].children:
            if not index.isdecimal():
                break
            parameter = _by_tail(graph[variable], by_full_name) if trained is None else trained.get(index)
            if parameter is not None and parameter != variable:
                yield parameter, name, variable


def _by_tail(node: Node, by_full_name: dict[str, int]) -> int | None:
    """Return the parameter that a full name such as ``Adam/m/d1/kernel`` ends with."""
    full_name = node.attributes[0].full_name if node.attributes else ""
    parts = full_name.split("/", 2)
    return by_full_name.get(parts[2]) if len(parts) == 3 else None
