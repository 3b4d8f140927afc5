"""What a checkpoint is made of: plain Python values, and a few kinds Python has no value for.

A tree is None, bool, int, float, complex, str, bytes, dict, list, tuple, set or frozenset, a `Tensor`,
or one of the kinds below. A container that came from a special class (an OrderedDict with attributes, a
torch.Size) is still a dict or tuple, with a `Tag` that writers may honour and no digest sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ckptfmt.tree.paths import Key
    from ckptfmt.tree.tensor import Tensor

__all__ = [
    "CYCLE",
    "Composite",
    "Opaque",
    "Strings",
    "Tag",
    "TaggedBytes",
    "TaggedDict",
    "TaggedList",
    "TaggedSet",
    "TaggedTuple",
    "Tree",
    "tag_of",
    "tagged",
]

Tree: TypeAlias = (
    "bool | int | float | complex | str | bytes | Tensor | Strings | Composite | Opaque"
    " | dict[Key, Tree] | list[Tree] | tuple[Tree, ...] | set[Tree] | frozenset[Tree] | None"
)

CYCLE = "cycle"
"""Name of the opaque node that stands for an enclosing container; its part `up` counts levels."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The class that a container or tensor had, outside every digest.

    Attributes
    ----------
    name : str
        The class, such as ``"collections.OrderedDict"`` or ``"torch.nn.parameter.Parameter"``.
    attributes : dict
        Its attributes as a tree without tensors, keyed by str.
    """

    name: str
    attributes: dict[Key, Tree] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """An n-dimensional array of strings of any length.

    Attributes
    ----------
    shape : tuple of int
    values : tuple of str or of bytes
        In C order, all of one type.
    """

    shape: tuple[int, ...]
    values: tuple[str, ...] | tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Composite:
    """One value made of several tensors: sparse, quantised, nested, structured.

    Attributes
    ----------
    name : str
        What it is, such as ``"sparse_coo"``.
    attributes : dict
        What is not a tensor, keyed by str.
    parts : dict
        The tensors (or composites), keyed by str.
    """

    name: str
    attributes: dict[Key, Tree]
    parts: dict[Key, Tree]


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A foreign object kept as data and never executed.

    Attributes
    ----------
    name : str
        Its class path, after the alias table of the specification, or `CYCLE`.
    parts : dict
        ``args`` and ``state`` as trees, keyed by str; for `CYCLE`, ``up``: the number of levels to the
        container meant, 1 being the innermost around this node.
    """

    name: str
    parts: dict[Key, Tree]


class TaggedDict(dict["Key", "Tree"]):
    """A dict that remembers its class."""

    __slots__ = ("tag",)
    tag: Tag


class TaggedList(list["Tree"]):
    """A list that remembers its class."""

    __slots__ = ("tag",)
    tag: Tag


class TaggedTuple(tuple["Tree", ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """A tuple that remembers its class."""

    tag: Tag


class TaggedSet(set["Tree"]):
    """A set that remembers its class."""

    __slots__ = ("tag",)
    tag: Tag


class TaggedBytes(bytes):
    """Bytes that remember their class."""

    tag: Tag


_TAGGED = (
    (dict, TaggedDict),
    (list, TaggedList),
    (tuple, TaggedTuple),
    (set, TaggedSet),
    (bytes, TaggedBytes),
)


def tagged(value: Tree, tag: Tag) -> Tree:
    """Return a copy of a dict, list, tuple, set or bytes that remembers `tag`."""
    for plain, with_tag in _TAGGED:
        if isinstance(value, plain):
            made: Tree = with_tag(value)  # type: ignore[arg-type] # of the class just asked for
            made.tag = tag  # type: ignore[union-attr] # one of the classes above
            return made
    raise TypeError(f"a {type(value).__name__} cannot carry a tag")


def tag_of(node: object) -> Tag | None:
    """Return the tag of a node, or None."""
    return getattr(node, "tag", None)
