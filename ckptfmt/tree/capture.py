"""Any Python value to a tree: what `save` does to what it is given.

numpy arrays become tensors without a copy, special containers keep a tag, foreign objects become
opaque data (as pickle would describe them, but nothing is executed when they are read), containers
met twice stay shared, and a container inside itself becomes a `cycle` node.
"""

from __future__ import annotations

import copyreg
import math
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ckptfmt.errors import FormatError, LimitError, TreeError
from ckptfmt.tree.aliases import canonical_class
from ckptfmt.tree.arrays import numpy_node
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import (
    CYCLE,
    Composite,
    Opaque,
    Strings,
    Tag,
    Tree,
    tag_of,
    tagged,
)
from ckptfmt.tree.paths import display, encode_key
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import MAX_DEPTH, MAX_REFERENCES, children, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.tree.paths import Key, Path

__all__ = ["as_tree"]


def as_tree(
    value: object, *, adapt: Callable[[object], object] | None = None
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of a Python value, and what is worth telling about it.

    Parameters
    ----------
    value : object
        Nested containers, scalars, numpy arrays, tree nodes, and whatever `adapt` understands.
    adapt : callable, optional
        Called with each value of a class that is not Python's or numpy's; returns what stands for it, or
        NotImplemented. A FormatError from it passes, with the path.

    Raises
    ------
    TreeError
        A value cannot be kept; the message names its path.
    LimitError
        The value is nested more than 64 levels deep, or expands to more than 2^24 nodes.
    """
    capture = _Capture(adapt)
    tree = capture.node(value, ())
    return tree, tuple(capture.findings)


class _Made(NamedTuple):
    """What was made of a value.

    Attributes
    ----------
    value : object
        Kept so that its id stays its own.
    node : Tree
    outside : int
        One bit for each depth around it that it refers to: where it is met again, the same must be there.
    members : set of int
        What is inside it and in a cycle. Around one of these, the same value ends earlier.
    """

    value: object
    node: Tree
    outside: int = 0
    members: set[int] | frozenset[int] = frozenset()


class _Capture:
    def __init__(self, adapt: Callable[[object], object] | None) -> None:
        self.findings: list[Finding] = []
        self._adapt = adapt
        self._done: dict[int, _Made] = {}
        self._done_here: dict[tuple[int, int], _Made] = {}  # by depth too: what refers to containers around
        self._bound: dict[int, list[tuple[int, int]]] = {}  # which of them go with the container of a depth
        self._open: dict[int, int] = {}  # depths of the containers around
        self._mask = 0  # one bit for each depth that is referred to from inside the container being made
        self._members: set[int] = set()  # what was made inside it and refers to a container around
        self._count = 0

    def node(self, value: object, path: Path) -> Tree:
        kind = type(value)
        if kind in _ATOMS:
            if kind is str:
                self._check_text(value, path)  # type: ignore[arg-type] # kind is str
            return value  # type: ignore[return-value] # an atom is a node
        self._count += 1
        if self._count > MAX_REFERENCES:
            message = f"the tree expands to more than {MAX_REFERENCES} nodes"
            raise LimitError(message, rule="R-015")
        key = id(value)
        if key in self._open:
            self._mask |= 1 << self._open[key]
            return Opaque(CYCLE, {"up": len(path) - self._open[key]})
        known = self._known(key, len(path))
        if known is not None:
            self._mask |= known.outside
            self._members |= known.members
            return known.node
        if isinstance(value, _ARRAYS):
            made = _located(numpy_node, value, path)
            self._done[key] = _Made(value, made)
            return made
        return self._container(value, path)

    def _known(self, key: int, depth: int) -> _Made | None:
        """Return what was made of a value, if the same would be made of it here."""
        done = self._done.get(key)
        if done is not None and (not done.members or done.members.isdisjoint(self._open)):
            return done
        if not self._done_here:
            return None
        here = self._done_here.get((key, depth))
        return here if here is not None and here.members.isdisjoint(self._open) else None

    def _container(self, value: object, path: Path) -> Tree:
        depth, key = len(path), id(value)
        if depth > MAX_DEPTH:
            message = f"deeper than {MAX_DEPTH} levels at {display(path[:4])}/..."
            raise LimitError(message, rule="R-015")
        around = self._mask, self._members
        self._mask, self._members = 0, set()
        self._open[key] = depth
        node = self._build(value, path)
        del self._open[key]
        for bound in self._bound.pop(depth, ()):
            self._done_here.pop(bound, None)
        mask, members = self._mask, self._members
        self._mask, self._members = around
        if mask:
            members.add(key)
        self._remember(_Made(value, node, mask & ((1 << depth) - 1), members if mask else frozenset()), depth)
        return node

    def _remember(self, made: _Made, depth: int) -> None:
        key = id(made.value)
        if not made.outside:
            self._done[key] = made
            return
        self._done_here[key, depth] = made
        self._bound.setdefault(made.outside.bit_length() - 1, []).append((key, depth))
        self._mask |= made.outside
        self._members |= made.members

    def _build(self, value: object, path: Path) -> Tree:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Strings):
            self._check_strings(value, path)
            return value
        if isinstance(value, Composite | Opaque):
            self._check_text(value.name, path)
        if isinstance(value, Composite):
            attributes = self._entries(value.attributes, (*path, "attributes"))
            return Composite(value.name, attributes, self._entries(value.parts, (*path, "parts")))
        if isinstance(value, Opaque):
            if value.name == CYCLE:
                self._check_cycle(value, path)
            return Opaque(value.name, self._entries(value.parts, path))
        return self._python(value, path)

    def _adapted(self, value: object, path: Path) -> object:
        if self._adapt is None:
            return NotImplemented
        try:
            return self._adapt(value)
        except FormatError as error:
            raise error.located(tensor=display(path) or "the root") from None

    def _python(self, value: object, path: Path) -> Tree:
        tag = tag_of(value) if isinstance(value, _TAGGABLE) else None
        if tag is not None:
            tag = Tag(tag.name, self._attributes(tag.attributes, path))
        elif type(value) not in _PLAIN:
            adapted = self._adapted(value, path)
            if adapted is not NotImplemented:
                return self.node(adapted, path)
            tag = self._stdlib_tag(value, path)
        made: Tree
        if isinstance(value, dict):
            made = self._entries(value, path)
        elif isinstance(value, list | tuple):
            items = [self.node(item, (*path, index)) for index, item in enumerate(value)]
            made = tuple(items) if isinstance(value, tuple) else items
        elif isinstance(value, set | frozenset):
            made = self._set(value, path)
        elif isinstance(value, bytes | bytearray | memoryview):
            made = bytes(memoryview(value))
        else:
            return self._foreign(value, path)
        return made if tag is None else tagged(made, tag)

    def _stdlib_tag(self, value: object, path: Path) -> Tag | None:
        if isinstance(value, OrderedDict):
            attributes = self._attributes(getattr(value, "__dict__", {}), path)
            return Tag("collections.OrderedDict", attributes)
        if isinstance(value, Counter):
            return Tag("collections.Counter")
        if isinstance(value, defaultdict):
            factory = value.default_factory
            return Tag("collections.defaultdict", {"default_factory": factory and _class_path(factory)})
        if isinstance(value, bytearray):
            return Tag("builtins.bytearray")
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple) and isinstance(fields, tuple):
            return Tag(_class_path(type(value)), {"fields": fields})
        if isinstance(value, dict | list | tuple | set | frozenset):
            message = f"kept as a plain container: {_class_path(type(value))}"
            self.findings.append(Finding("class", display(path), Severity.INFO, message))
        return None

    def _attributes(self, mapping: dict, path: Path) -> dict[Key, Tree]:
        """Return the attributes of a class tag, which hold no tensors: those that do are left out."""
        made = self._entries(mapping, path)
        for key, child in list(made.items()):
            if (children(child) or isinstance(child, Tensor)) and survey(child):
                del made[key]
                message = "an attribute of a class that holds tensors is not kept"
                self.findings.append(Finding("attribute", display((*path, key)), Severity.LOSS, message))
        return made

    def _set(self, value: set | frozenset, path: Path) -> set[Tree] | frozenset[Tree]:
        elements = [self.node(item, (*path, index)) for index, item in enumerate(value)]
        try:
            made = frozenset(elements) if isinstance(value, frozenset) else set(elements)
            encode_tree(made, lambda _: 0)  # refuses what no set holds
        except (TreeError, TypeError) as error:
            raise TreeError(f"{error} at {display(path) or 'the root'}") from None
        return made

    def _entries(self, mapping: dict, path: Path) -> dict[Key, Tree]:
        made: dict[Key, Tree] = {}
        for key, child in mapping.items():
            plain = _plain_key(key, path)
            if plain in made:
                shown = display((*path, plain))
                raise TreeError(f"two keys of one mapping are alike: {shown}")
            made[plain] = self.node(child, (*path, plain))
        return made

    def _foreign(self, value: object, path: Path) -> Tree:
        """Describe an object by its own pickle recipe, without pickling it."""
        if (
            isinstance(value, str | int | float | complex)
            and type(value).__reduce_ex__ is object.__reduce_ex__
        ):
            base = next(kind for kind in (str, int, float, complex) if isinstance(value, kind))
            if type(value).__module__ != "enum" and not hasattr(type(value), "__members__"):
                return self.node(_plain_value(value, base), path)
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            self._tell_opaque(_class_path(value), path)
            return Opaque(_class_path(value), {})
        try:
            recipe = value.__reduce_ex__(2)
        except Exception as error:
            message = f"a {_class_path(type(value))} cannot be kept at {display(path) or 'the root'}: {error}"
            raise TreeError(message) from error
        if not isinstance(recipe, tuple):  # the name of a global
            self._tell_opaque(f"{type(value).__module__}.{recipe}", path)
            return Opaque(f"{type(value).__module__}.{recipe}", {})
        self._tell_opaque(_class_path(type(value)), path)
        return self._from_recipe(recipe, path)

    def _tell_opaque(self, name: str, path: Path) -> None:
        self.findings.append(Finding("opaque", display(path), Severity.INFO, f"kept as data: {name}"))

    def _from_recipe(self, recipe: tuple, path: Path) -> Opaque:
        function, args, *rest = recipe
        if function is copyreg.__newobj__:  # type: ignore[attr-defined] # private in the stubs
            function, args = args[0], args[1:]
        state, items, pairs = (*rest, None, None, None)[:3]
        parts: dict[Key, object] = {"args": args, "state": state}
        if items is not None and (listed := list(items)):
            parts["items"] = listed
        if pairs is not None and (listed := list(pairs)):
            parts["pairs"] = listed
        return Opaque(_class_path(function), self._entries(parts, path))

    def _check_cycle(self, node: Opaque, path: Path) -> None:
        levels = node.parts.get("up")
        if list(node.parts) != ["up"] or type(levels) is not int or not 1 <= levels <= len(path):
            message = f"a cycle that leads out of the tree at {display(path) or 'the root'}"
            raise TreeError(message)

    def _check_strings(self, node: Strings, path: Path) -> None:
        kinds = {type(value) for value in node.values}
        if kinds not in (set(), {str}, {bytes}) or math.prod(node.shape) != len(node.values):
            message = f"{len(node.values)} strings do not fill the shape {node.shape}, or are of two types"
            raise TreeError(f"{message}, at {display(path) or 'the root'}")
        if kinds == {str}:
            self._check_text("".join(node.values), path)  # type: ignore[arg-type] # all of them are

    def _check_text(self, text: str, path: Path) -> None:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                message = f"a string that is not valid Unicode at {display(path) or 'the root'}"
                raise TreeError(message) from None


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLAIN = frozenset({dict, list, tuple, set, frozenset, memoryview})
_ARRAYS = (np.ndarray, np.generic)
_TAGGABLE = (dict, list, tuple, set, bytes)


def _class_path(value: object) -> str:
    module = getattr(value, "__module__", "") or "builtins"
    name = getattr(value, "__qualname__", type(value).__name__)
    return ".".join(canonical_class(module, name))


def _plain_key(key: object, path: Path) -> Key:
    """Return a key as a plain value: subclasses of str and numbers lose their class."""
    if type(key) is str and key.isascii():
        return key
    try:
        plain = _key_of(key, len(path))
        encode_key(plain)  # it refuses what is no key
    except TreeError as error:
        message = f"{error} (in the mapping at {display(path) or 'the root'})"
        raise TreeError(message) from None
    return plain


def _key_of(key: object, depth: int) -> Key:
    if isinstance(key, np.generic):
        key = key.item()
    for kind in (bool, str, int, float, bytes):
        if isinstance(key, kind):
            return _plain_value(key, kind)  # type: ignore[return-value] # of that kind
    if isinstance(key, tuple):
        if depth >= MAX_DEPTH:
            raise LimitError(f"a key of tuples deeper than {MAX_DEPTH} levels in all", rule="R-015")
        return tuple(_key_of(part, depth + 1) for part in key)
    return key  # type: ignore[return-value] # None, or what encode_key refuses


def _plain_value(value: object, kind: type) -> object:
    """Return a value of a subclass as one of its base: what it holds, not what its class converts to."""
    return value if type(value) is kind else _BASES[kind](value)


_BASES: dict[type, Callable[[object], object]] = {
    bytes: lambda value: bytes(memoryview(value)),  # type: ignore[arg-type] # bytes of a subclass
    str: str.__str__,
    int: int.__pos__,  # type: ignore[dict-item] # as the key says, here and below
    float: float.__pos__,  # type: ignore[dict-item]
    complex: complex.__pos__,  # type: ignore[dict-item]
}


def _located(
    function: Callable[[np.ndarray | np.generic], Tree], value: np.ndarray | np.generic, path: Path
) -> Tree:
    try:
        return function(value)
    except TreeError as error:
        message = f"{error} at {display(path) or 'the root'}"
        raise TreeError(message) from None
