"""A tree as the groups of a ``.weights.h5`` file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.frameworks.keras.emit import check_name, leaf_of, refuse_leaf, tag_attributes
from ckptfmt.frameworks.keras.groups import NUMBER, VARS, natural
from ckptfmt.tree.nodes import Strings

if TYPE_CHECKING:
    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.containers.hdf5.writer import Hdf5Writer
    from ckptfmt.frameworks.keras.emit import Leaf, Told
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["PlannedWeights"]

_OVERHEAD = 1 << 17  # of a header of 64 KiB, which no attribute passes, and its place in indices


class PlannedWeights:
    """The groups and datasets of a tree, checked and in canonical order.

    Parameters
    ----------
    tree : Tree
        Mappings of str; arrays below mappings called ``vars`` only, where numbers are whole numbers.
    told : Told
    above : tuple of Key
        Where the tree lies in a larger one, for messages.

    Raises
    ------
    ConversionError
        It is no tree of that kind; names the path.
    """

    def __init__(self, tree: Tree, told: Told, above: Path = ()) -> None:
        self.groups: list[tuple[str, dict[str, Attribute]]] = []
        self.leaves: list[Leaf] = []
        self._told = told
        if not isinstance(tree, dict):
            refuse_leaf(above, f"a {type(tree).__name__} where a mapping must be")
        pending: list[tuple[Path, str, dict[Key, Tree]]] = [(above, "", tree)]
        while pending:
            path, place, group = pending.pop()
            self.groups.append((place, tag_attributes(group, path, told)))
            inside = VARS in path
            for key in sorted(group, key=natural, reverse=True):
                below = (*path, key)
                name = _name(key, below)
                where = f"{place}/{name}" if place else name
                node = group[key]
                if isinstance(node, dict):
                    pending.append((below, where, node))
                elif inside:
                    self.leaves.append(leaf_of(node, below, where, told))
                else:
                    refuse_leaf(below, f"files of Keras hold arrays in groups called {VARS!r} only")
        self.leaves.sort(key=lambda leaf: natural(leaf.path))

    @property
    def most(self) -> int:
        """A number of bytes that the file has at most: tensors, and more than enough for all else."""
        names = sum(len(place) for place, _ in self.groups) + sum(len(leaf.path) for leaf in self.leaves)
        each = (len(self.groups) + len(self.leaves) + 1) * _OVERHEAD
        texts = sum(_text_bytes(value) for _, held in self.groups for value in held.values())
        return sum(leaf.nbytes for leaf in self.leaves) + each + 8 * names + texts

    def write(self, writer: Hdf5Writer) -> None:
        """Write everything."""
        for place, attributes in sorted(self.groups, key=lambda group: natural(group[0])):
            writer.group(place, attributes)
        for leaf in self.leaves:
            leaf.write(writer)


def _text_bytes(value: Attribute) -> int:
    """Return how many bytes the texts of an attribute take at most, which lie beside its header."""
    if isinstance(value, str):
        return 4 * len(value) + 64
    return sum(4 * len(text) + 64 for text in value.values) if isinstance(value, Strings) else 0


def _name(key: Key, path: Path) -> str:
    """Return the name of an entry; whole numbers stand directly in ``vars``, as texts nowhere there."""
    in_vars = path[-2:-1] == (VARS,)
    if type(key) is int and in_vars and 0 <= key < 10**9:
        return str(key)
    if not isinstance(key, str):
        refuse_leaf(path, "a key that is no text")
    if in_vars and NUMBER.fullmatch(key):
        refuse_leaf(path, f"the key of a variable is the number {key}, not a text")
    check_name(key, path)
    return key
