"""Traversals of a tree: its tensors by path, its children, a copy with other leaves.

Shared containers are visited once for each path, as digests and bags count them; the number of
references is bounded, so a small file cannot expand into an endless tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ckptfmt.errors import LimitError, TreeError
from ckptfmt.tree.nodes import Composite, Opaque, Tree, tag_of, tagged
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ckptfmt.tree.paths import Key, Path

__all__ = [
    "MAX_DEPTH",
    "MAX_REFERENCES",
    "Place",
    "children",
    "leaves",
    "node_at",
    "replaced",
    "select",
    "survey",
    "tensors",
]

MAX_DEPTH = 64
"""Greatest number of keys in a path."""
MAX_REFERENCES = 1 << 24
"""Greatest number of nodes that a tree expands to."""


def children(node: Tree) -> Iterable[tuple[Key, Tree]]:
    """Return the keys and child nodes of a node; none for a leaf.

    A composite has the children ``attributes`` and ``parts``, an opaque node its parts, a list its
    indices, a set the ordinals of its elements.
    """
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list | tuple | set | frozenset):
        return tuple(enumerate(node))
    if isinstance(node, Composite):
        return (("attributes", node.attributes), ("parts", node.parts))
    if isinstance(node, Opaque):
        return node.parts.items()
    return ()


def leaves(tree: Tree) -> Iterator[tuple[Path, Tree]]:
    """Yield the path and value of every node without children, empty containers included.

    Raises
    ------
    LimitError
        The tree is deeper than `MAX_DEPTH` or expands to more than `MAX_REFERENCES` nodes.
    """
    count = 0
    stack: list[Iterator[tuple[Path, Tree]]] = [iter([((), tree)])]
    while stack:
        for path, node in stack[-1]:
            count += 1
            if count > MAX_REFERENCES:
                message = f"the tree expands to more than {MAX_REFERENCES} nodes"
                raise LimitError(message, rule="R-015")
            below = children(node)
            if not below:
                yield path, node
                continue
            if len(path) >= MAX_DEPTH:
                message = f"the tree is deeper than {MAX_DEPTH} levels at {display(path[:4])}/..."
                raise LimitError(message, rule="R-015")
            stack.append(_extend(path, below))
            break
        else:
            stack.pop()


def _extend(path: Path, below: Iterable[tuple[Key, Tree]]) -> Iterator[tuple[Path, Tree]]:
    for key, child in below:
        yield (*path, key), child


def tensors(tree: Tree) -> Iterator[tuple[Path, Tensor]]:
    """Yield every tensor with its path, through shared containers too."""
    for path, leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            yield path, leaf


class Place(NamedTuple):
    """A tensor of a tree.

    Attributes
    ----------
    path : Path
        The first of its paths in canonical order.
    tensor : Tensor
    count : int
        The number of its paths, those through shared containers included.
    """

    path: Path
    tensor: Tensor
    count: int  # type: ignore[assignment] # hides tuple's method, which nobody needs here


def survey(tree: Tree) -> list[Place]:
    """Return every tensor object of a tree once, in time that does not grow with what is shared.

    Raises
    ------
    LimitError
        As `leaves`, but without expanding anything.
    """
    if isinstance(tree, Tensor):
        return [Place((), tree, 1)]
    found: dict[int, tuple[Path, Tensor, int]] = {}
    known: dict[int, tuple[Path, int, int]] = {id(tree): ((), 1, 0)}  # path, count, greatest depth
    total = 1
    for node in reversed(_containers_last_first(tree)):
        path, count, depth = known[id(node)]
        if depth >= MAX_DEPTH:
            raise LimitError(
                f"the tree is deeper than {MAX_DEPTH} levels at {display(path[:4])}/...", rule="R-015"
            )
        for key, child in children(node):
            total += count
            if isinstance(child, Tensor):
                _meet(found, child, (*path, key), count)
            elif children(child):
                _pass(known, child, (*path, key), count, depth + 1)
        if total > MAX_REFERENCES:
            raise LimitError(f"the tree expands to more than {MAX_REFERENCES} nodes", rule="R-015")
    return [Place(path, tensor, count) for path, tensor, count in found.values()]


def _meet(found: dict[int, tuple[Path, Tensor, int]], tensor: Tensor, path: Path, count: int) -> None:
    earlier = found.get(id(tensor))
    if earlier is not None:
        count += earlier[2]
        path = min(earlier[0], path, key=encode_path)
    found[id(tensor)] = (path, tensor, count)


def _pass(known: dict[int, tuple[Path, int, int]], node: Tree, path: Path, count: int, depth: int) -> None:
    # Two paths to one container: neither begins with the other, or it would contain itself. So the lesser
    # of them stays the lesser whatever key follows.
    earlier = known.get(id(node))
    if earlier is not None:
        count += earlier[1]
        depth = max(depth, earlier[2])
        path = min(earlier[0], path, key=encode_path)
    known[id(node)] = (path, count, depth)


def _containers_last_first(tree: Tree) -> list[Tree]:
    """Return each container once, after everything below it."""
    order: list[Tree] = []
    seen: set[int] = set()

    def visit(node: Tree, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise LimitError(f"the tree is deeper than {MAX_DEPTH} levels", rule="R-015")
        for _, child in children(node):
            if not isinstance(child, Tensor) and id(child) not in seen and children(child):
                visit(child, depth + 1)
        seen.add(id(node))
        order.append(node)

    if children(tree):
        visit(tree, 0)
    return order


def node_at(tree: Tree, path: Path) -> Tree:
    """Return the node at a path.

    Raises
    ------
    TreeError
        There is none.
    """
    node = tree
    for depth, key in enumerate(path):
        if isinstance(node, dict) and type(key) is str and key in node:
            node = node[key]
        else:
            node = _child(node, key, path[: depth + 1])
    return node


def _child(node: Tree, key: Key, path: Path) -> Tree:
    if isinstance(node, list | tuple) and isinstance(key, int) and 0 <= key < len(node):
        return node[int(key)]
    for candidate, child in children(node):
        if candidate == key and type(candidate) is type(key):
            return child
    raise TreeError(f"nothing at {display(path)}")


def replaced(tree: Tree, leaf: Callable[[Tensor], Tree]) -> Tree:
    """Return a copy with other nodes in place of tensors; what is shared stays shared, tags stay.

    Parameters
    ----------
    tree : Tree
    leaf : callable
        Called once for each tensor object.
    """
    return _replaced(tree, leaf, {})


def _replaced(node: Tree, leaf: Callable[[Tensor], Tree], done: dict[int, Tree]) -> Tree:
    if not isinstance(node, Tensor) and not children(node):
        return node
    earlier = done.get(id(node))
    if earlier is not None:
        return earlier
    made: Tree
    if isinstance(node, Tensor):
        made = leaf(node)
    elif isinstance(node, dict):
        made = {key: _replaced(child, leaf, done) for key, child in node.items()}
    elif isinstance(node, list | tuple):
        items = [_replaced(child, leaf, done) for child in node]
        made = items if isinstance(node, list) else tuple(items)
    elif isinstance(node, Composite):
        parts = {key: _replaced(child, leaf, done) for key, child in node.parts.items()}
        made = Composite(node.name, node.attributes, parts)
    elif isinstance(node, Opaque):
        made = Opaque(node.name, {key: _replaced(child, leaf, done) for key, child in node.parts.items()})
    else:
        made = node  # a set holds no tensors
    tag = None if isinstance(node, Tensor) else tag_of(node)
    done[id(node)] = made if tag is None else tagged(made, tag)
    return done[id(node)]


def select(tree: Tree, keep: Callable[[Path, Tree], bool]) -> Tree:
    """Return a copy without the leaves for which `keep` is false; emptied mappings go, others stay.

    Elements of sequences that hold nothing any more become None, so that the others keep their index.
    """
    kept = _select(tree, (), keep)
    return {} if kept is _GONE else kept  # type: ignore[return-value]


_GONE = object()


def _select(node: Tree, path: Path, keep: Callable[[Path, Tree], bool]) -> Tree | object:
    if not children(node):
        return node if keep(path, node) else _GONE
    if isinstance(node, Composite | Opaque | set | frozenset):
        return node if any(keep((*path, *below), leaf) for below, leaf in leaves(node)) else _GONE
    below = {key: _select(child, (*path, key), keep) for key, child in children(node)}
    if all(child is _GONE for child in below.values()):
        return _GONE
    copy: Tree
    if isinstance(node, dict):
        copy = {key: child for key, child in below.items() if child is not _GONE}  # type: ignore[misc]
    else:
        items = [None if child is _GONE else child for child in below.values()]
        copy = tuple(items) if isinstance(node, tuple) else items  # type: ignore[arg-type, assignment]
    tag = tag_of(node)
    return copy if tag is None else tagged(copy, tag)
