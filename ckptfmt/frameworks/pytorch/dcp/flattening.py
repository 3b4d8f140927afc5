"""A tree to named items and back, as DCP's planners flatten state dicts.

The rules of ``torch/distributed/checkpoint/{_traverse,_nested_dict}.py`` since 2.4: mappings are entered, and
lists that hold mappings or tensors; everything else is an item. Its name is its path with ``.`` between the
keys, each as text. The path itself is kept beside the name, so that nothing is split at dots when reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.errors import ConversionError, FormatError, LimitError
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite
from ckptfmt.tree.paths import display, dotted
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["DcpPath", "Item", "flatten", "unflatten"]

DcpPath = tuple["str | int", ...]
"""Keys of mappings as text, indices of lists as int."""

_FREE_GAPS = 1 << 16


@dataclass(frozen=True, slots=True)
class Item:
    """One value that is stored by itself.

    Attributes
    ----------
    name : str
    path : tuple of str and int
        What the name was made from.
    origin : Path
        Where it is in the tree.
    node : Tree
    """

    name: str
    path: DcpPath
    origin: Path
    node: Tree


def flatten(tree: dict[Key, Tree], *, taken: frozenset[str] = frozenset()) -> list[Item]:
    """Return the items of a tree in its order.

    Parameters
    ----------
    tree : dict
    taken : frozenset of str
        Names that no item may have.

    Raises
    ------
    ConversionError
        Two paths have one name, which DCP refuses, too.
    LimitError
        The tree is too deep.
    """
    made: dict[str, Item] = {}
    for path, origin, node in _entered(tree, (), ()):
        name = ".".join(map(str, path))
        earlier = made.setdefault(name, Item(name, path, origin, node))
        if earlier.origin != origin or _kinds(earlier.origin) != _kinds(origin) or name in taken:
            other = "the structure note" if name in taken else display(earlier.origin)
            message = f"{display(origin)} and {other} would both be called {name!r}, which DCP refuses"
            raise ConversionError(message)
    return list(made.values())


def _kinds(path: Path) -> list[type]:
    return [type(key) for key in path]


def _entered(node: Tree, path: DcpPath, origin: Path) -> Iterator[tuple[DcpPath, Path, Tree]]:
    if len(path) > MAX_DEPTH:
        raise LimitError(f"the tree is deeper than {MAX_DEPTH} levels at {display(origin[:4])}/...")
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _entered(child, (*path, _text(key)), (*origin, key))
    elif isinstance(node, list) and _has_more(node):
        for index, child in enumerate(node):
            yield from _entered(child, (*path, index), (*origin, index))
    else:
        yield path, origin, node


def _text(key: Key) -> str:
    """Return a key as ``str`` has it; an integer of any length."""
    return dotted((key,)) if isinstance(key, int) and not isinstance(key, bool) else str(key)


def _has_more(items: list[Tree], depth: int = 0) -> bool:
    """Whether a list holds mappings or tensors, at any depth of lists."""
    if depth > MAX_DEPTH:
        raise LimitError(f"lists that are nested more than {MAX_DEPTH} levels deep")
    return any(
        isinstance(entry, dict | Tensor | Composite)
        or (isinstance(entry, list) and _has_more(entry, depth + 1))
        for entry in items
    )


class _Map(dict["str | int", object]):
    """A mapping in the making: no leaf is one, whatever it is."""


class _List(dict["str | int", object]):
    """A list in the making, by index."""


def unflatten(
    values: Mapping[str, Tree], paths: Mapping[str, DcpPath]
) -> tuple[dict[Key, Tree], tuple[Finding, ...]]:
    """Return the tree of named values, and what was found.

    Parameters
    ----------
    values : mapping of str to Tree
    paths : mapping of str to tuple
        The path of each name; a name that has none is a key of the root.

    Raises
    ------
    FormatError
        Two paths contradict each other.
    LimitError
        Lists with far more gaps than elements.
    """
    root = _Map()
    for name, value in values.items():
        _put(root, paths.get(name, (name,)), value, name)
    finishing = _Finishing(_FREE_GAPS + len(values))
    tree = {key: finishing.node(child, (key,)) for key, child in root.items()}
    return tree, tuple(finishing.findings)  # type: ignore[return-value] # keys of a root are str


def _put(root: _Map, path: DcpPath, value: Tree, name: str) -> None:
    node: _Map | _List = root
    for index, key in enumerate(path):
        if isinstance(key, int) != isinstance(node, _List):
            raise FormatError("its path goes by keys where another goes by indices", tensor=name[:200])
        if index + 1 == len(path):
            break
        child = node.setdefault(key, _List() if isinstance(path[index + 1], int) else _Map())
        if not isinstance(child, _Map | _List):
            raise FormatError("its path goes through another item", tensor=name[:200])
        node = child
    if path[-1] in node:
        raise FormatError("its path is another item's, too, or leads to it", tensor=name[:200])
    node[path[-1]] = value


class _Finishing:
    """Turns what is in the making to what it is."""

    def __init__(self, gaps: int) -> None:
        self.findings: list[Finding] = []
        self._gaps = gaps

    def node(self, made: object, path: Path) -> Tree:
        if isinstance(made, _Map):
            return {key: self.node(child, (*path, key)) for key, child in made.items()}
        if isinstance(made, _List):
            return self._list(made, path)
        return made  # type: ignore[return-value] # a value that was put there

    def _list(self, made: _List, path: Path) -> Tree:
        count = max(map(int, made)) + 1
        gaps = count - len(made)
        self._gaps -= gaps
        if self._gaps < 0:
            raise LimitError(f"a list of {count} with {len(made)} elements", tensor=display(path))
        if gaps:
            message = f"{gaps} elements of a list were not stored and are None: DCP keeps no empty mappings"
            self.findings.append(Finding("list-gap", display(path), Severity.INFO, message))
        items: list[Tree] = [None] * count
        for index, child in made.items():
            items[int(index)] = self.node(child, (*path, index))
        return items
