"""The tree of an object-based checkpoint, from its graph and the values of its bundle.

::

    {"model": {name: value}, "optimizer": {name: value}, "save_counter": value,
     "object_paths": {path: value}, "optimizer_slots": {name: {slot: value}}, "object_graph": bytes}

Every value is in the first line once. ``object_paths`` has it again under each path that leads to it, the one
of its key included, and ``optimizer_slots`` has slot variables by the name of their parameter: ties, all of
them. ``object_graph`` is the message as it stands, from which the writer makes the same checkpoint again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.frameworks.tensorflow.graph import decode_graph
from ckptfmt.frameworks.tensorflow.names import COUNTER, MODEL, OPTIMIZER, names_of
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.frameworks.tensorflow.names import Names
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["GRAPH", "PATHS", "SLOTS", "object_tree", "tree_of_names"]

GRAPH = "object_graph"
PATHS = "object_paths"
SLOTS = "optimizer_slots"

_SHOWN = 5


def object_tree(message: bytes, values: Mapping[str, Tree]) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of an object-based checkpoint, and what is wrong with its graph.

    Parameters
    ----------
    message : bytes
        The graph.
    values : mapping of str to node
        What the bundle holds by key, the graph left out.

    Raises
    ------
    FormatError, LimitError
        The graph is malformed or out of measure.
    """
    names = names_of(decode_graph(message), values.keys())
    return tree_of_names(names, values, message), _missing(names)


def tree_of_names(names: Names, values: Mapping[str, Tree], message: bytes) -> dict[Key, Tree]:
    """Return the tree of values whose names are known."""
    groups: dict[str, dict[Key, Tree]] = {MODEL: {}, OPTIMIZER: {}}
    tree: dict[Key, Tree] = {}
    for one in names.named:
        if one.place == (COUNTER,):
            tree[COUNTER] = values[one.key]
        else:
            groups[one.place[0]][one.name] = values[one.key]
    slots: dict[Key, Tree] = {}
    for parameter, name, key in names.slots:
        below = slots.setdefault(parameter, {})
        assert isinstance(below, dict)  # noqa: S101 - made here
        below.setdefault(name, values[key])
    paths: dict[Key, Tree] = {path: values[key] for path, key in names.paths.items()}
    parts: dict[Key, Tree] = {MODEL: groups[MODEL]}
    parts |= {OPTIMIZER: groups[OPTIMIZER]} if groups[OPTIMIZER] else {}
    parts |= tree
    parts |= {SLOTS: slots} if slots else {}
    parts |= {PATHS: paths} if paths else {}
    return {**parts, GRAPH: message}


def _missing(names: Names) -> tuple[Finding, ...]:
    if not names.missing:
        return ()
    keys = [one.key for one in names.missing]
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    message = f"the object graph knows values that are not there: {', '.join(keys[:_SHOWN])}{more}"
    return (Finding("graph-mismatch", "", Severity.PROBLEM, message),)
