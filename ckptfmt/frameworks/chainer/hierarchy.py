"""Chainer's flat names as nested mappings, and back.

``DictionarySerializer`` of ``chainer/serializers/npz.py`` joins the names of links, parameters and objects by
``/``. Splitting is exact: joining the keys of any path gives the name again, whatever characters it has
(``optimizer:main``, ``(0)``, empty parts). Numbers of a ``ChainList`` stay strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ckptfmt.tree.nodes import tag_of
from ckptfmt.tree.walk import MAX_DEPTH, children, leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["is_trainer", "joined", "nested", "parts_of"]

_UPDATER = ("updater/model:", "updater/optimizer:", "updater/iterator:")


def is_trainer(names: Collection[str]) -> bool:
    """Whether names are those of a trainer's snapshot (``chainer/training/updaters/standard_updater.py``)."""
    return "updater/iteration" in names and any(name.startswith(_UPDATER) for name in names)


def parts_of(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the keys of a name among others.

    What is a name itself is no mapping: of ``a`` and ``a/b`` the second stays whole. What lies deeper than a
    tree can be stays in the last key.

    Parameters
    ----------
    name : str
    names : collection of str
        All of them; membership must be quick.
    """
    parts: list[str] = []
    start, at = 0, name.find("/")
    while at >= 0 and len(parts) < MAX_DEPTH - 1:
        if name[:at] not in names:
            parts.append(name[start:at])
            start = at + 1
        at = name.find("/", at + 1)
    return (*parts, name[start:])


def nested(flat: Mapping[str, Tree]) -> dict[Key, Tree]:
    """Return a flat mapping as nested ones, in the order of its names."""
    root: dict[Key, Tree] = {}
    for name, node in flat.items():
        *above, last = parts_of(name, flat)
        group = root
        for part in above:
            group = cast("dict[Key, Tree]", group.setdefault(part, {}))
        group[last] = node
    return root


def joined(tree: Tree) -> dict[str, Tree] | None:
    """Return nested mappings as a flat one, or None where `nested` would not give them back.

    Raises
    ------
    LimitError
        The tree is deeper than 64 levels or expands to more than 2^24 nodes.
    """
    if not isinstance(tree, dict) or not _is_plain(tree, set()):
        return None
    flat: dict[str, Tree] = {}
    paths = {}
    for path, node in leaves(tree):
        if not path:  # an empty tree
            return {}
        name = "/".join(cast("tuple[str, ...]", path))
        if name in flat or isinstance(node, dict):
            return None
        flat[name], paths[name] = node, path
    return flat if all(parts_of(name, flat) == path for name, path in paths.items()) else None


def _is_plain(tree: dict[Key, Tree], seen: set[int]) -> bool:
    """Whether nothing but mappings of strings without a class holds anything; shared ones are met once."""
    if id(tree) in seen:
        return True
    seen.add(id(tree))
    if tag_of(tree) is not None or not all(type(key) is str for key in tree):
        return False
    return all(_is_plain(n, seen) if isinstance(n, dict) else not children(n) for n in tree.values())
