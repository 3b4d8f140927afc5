"""Any Python value to a tree: what `save` does to what it is given.

numpy arrays become tensors without a copy, special containers keep a tag, foreign objects become
opaque data (as pickle would describe them, but nothing is executed when they are read), containers
met twice stay shared, and a container inside itself becomes a `cycle` node.
"""

from __future__ import annotations

import copyreg
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import FormatError, LimitError, TreeError
from ckptfmt.tree.aliases import canonical_class
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
from ckptfmt.tree.walk import MAX_DEPTH, MAX_REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptfmt.tree.paths import Key, Path

__all__ = ["as_tree", "numpy_node"]

_DEEPEST = MAX_DEPTH + 1


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


class _Capture:
    def __init__(self, adapt: Callable[[object], object] | None) -> None:
        self.findings: list[Finding] = []
        self._adapt = adapt
        self._done: dict[int, tuple[object, Tree]] = {}  # the value is kept so that its id stays its own
        self._open: dict[int, int] = {}
        self._lowest = _DEEPEST
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
            raise LimitError(message)
        key = id(value)
        done = self._done.get(key)
        if done is not None:
            return done[1]
        if isinstance(value, _ARRAYS):
            made = _located(numpy_node, value, path)
            self._done[key] = (value, made)
            return made
        if key in self._open:
            self._lowest = min(self._lowest, self._open[key])
            return Opaque(CYCLE, {"up": len(path) - self._open[key]})
        return self._container(value, path)

    def _container(self, value: object, path: Path) -> Tree:
        depth = len(path)
        if depth > MAX_DEPTH:
            message = f"deeper than {MAX_DEPTH} levels at {display(path[:4])}/..."
            raise LimitError(message)
        outer, self._lowest = self._lowest, _DEEPEST
        self._open[id(value)] = depth
        made = self._build(value, path)
        del self._open[id(value)]
        if self._lowest >= depth:  # nothing inside refers to what is outside
            self._done[id(value)] = (value, made)
            self._lowest = outer
        else:
            self._lowest = min(outer, self._lowest)
        return made

    def _build(self, value: object, path: Path) -> Tree:
        if isinstance(value, Tensor | Strings):
            return value
        if isinstance(value, Composite):
            attributes = self._entries(value.attributes, (*path, "attributes"))
            return Composite(value.name, attributes, self._entries(value.parts, (*path, "parts")))
        if isinstance(value, Opaque):
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
        if tag is None and type(value) not in _PLAIN:
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
            elements = [self.node(item, (*path, index)) for index, item in enumerate(value)]
            made = frozenset(elements) if isinstance(value, frozenset) else set(elements)
        elif isinstance(value, bytes | bytearray | memoryview):
            made = bytes(value)
        else:
            return self._foreign(value, path)
        return made if tag is None else tagged(made, tag)

    def _stdlib_tag(self, value: object, path: Path) -> Tag | None:
        if isinstance(value, OrderedDict):
            attributes = self._entries(getattr(value, "__dict__", {}), path)
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
        return None

    def _entries(self, mapping: Iterable[tuple[object, object]] | dict, path: Path) -> dict[Key, Tree]:
        made: dict[Key, Tree] = {}
        for key, child in mapping.items():  # type: ignore[union-attr] # every caller passes a dict
            plain = _plain_key(key, path)
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
                plain: object = base(value)  # type: ignore[arg-type] # its own base
                return self.node(plain, path)
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            self._tell_opaque(_class_path(value), path)
            return Opaque(_class_path(value), {})
        try:
            recipe = value.__reduce_ex__(2)
        except Exception as error:
            message = f"a {_class_path(type(value))} cannot be kept at {display(path) or 'the root'}: {error}"
            raise TreeError(message) from error
        if not isinstance(recipe, tuple):
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
        if isinstance(key, np.generic):
            key = key.item()
        for kind in (bool, str, int, float, bytes):
            if isinstance(key, kind):
                key = kind(key)  # type: ignore[arg-type] # of that kind
                break
        if isinstance(key, tuple):
            key = tuple(_plain_key(part, path) for part in key)
        encode_key(key)  # type: ignore[arg-type] # it refuses what is no key
    except TreeError as error:
        message = f"{error} (in the mapping at {display(path) or 'the root'})"
        raise TreeError(message) from None
    return key  # type: ignore[return-value] # checked by encode_key


def _located(
    function: Callable[[np.ndarray | np.generic], Tree], value: np.ndarray | np.generic, path: Path
) -> Tree:
    try:
        return function(value)
    except TreeError as error:
        message = f"{error} at {display(path) or 'the root'}"
        raise TreeError(message) from None


def numpy_node(value: np.ndarray | np.generic) -> Tree:
    """Return the node of a numpy array or scalar.

    Unicode and object arrays of strings become `Strings`; structured, void, and time types composites;
    everything else a tensor, without a copy.

    Raises
    ------
    TreeError
        Objects that are not strings, or a platform's own long double.
    """
    kind = value.dtype.kind
    if kind in "fiubc" and isinstance(value, np.ndarray):
        return Tensor.of(value)
    if isinstance(value, np.str_ | np.bytes_):
        return value.item()
    if isinstance(value, np.generic):
        node = numpy_node(np.asarray(value))
        if isinstance(node, Tensor):
            node.tag = Tag("numpy.scalar")
            node.identity = None
        return node
    if value.dtype.names is not None:
        parts: dict[Key, Tree] = {name: numpy_node(value[name]) for name in value.dtype.names}
        return Composite("numpy.structured", {"descr": str(value.dtype.descr)}, parts)
    if kind in "mM":
        unit = np.datetime_data(value.dtype)
        attributes: dict[Key, Tree] = {
            "kind": value.dtype.name.partition("[")[0],
            "unit": f"{unit[1]}{unit[0]}",
        }
        return Composite(
            "numpy.time",
            attributes,
            {"values": Tensor.of(value.view(value.dtype.byteorder.replace("|", "=") + "i8"))},
        )
    if kind in "UO":
        return _strings(value)
    if kind == "V" and value.dtype.itemsize and value.dtype.subdtype is None:
        return _void(value)
    return Tensor.of(value)


def _void(value: np.ndarray) -> Tree:
    try:
        return Tensor.of(value)  # the types of ml_dtypes are of kind V, too
    except TreeError:
        width = value.dtype.itemsize
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(*value.shape, width)
        return Composite("numpy.void", {}, {"bytes": Tensor.of(raw)})


def _strings(value: np.ndarray) -> Strings:
    values = value.reshape(-1).tolist()
    for kind in (str, bytes):
        if all(type(item) is kind for item in values):
            return Strings(value.shape, tuple(values))
    message = f"an array of {value.dtype} objects that are not strings cannot be kept"
    raise TreeError(message)
