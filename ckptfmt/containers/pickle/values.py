"""Nodes of Python's and numpy's own classes to what `ckptfmt.tree.capture` understands.

A table of exact names says which calls have a plain value; a framework adds its own. Every other call
becomes an opaque node: its class, arguments and state as data, so that tensors inside stay within reach.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.pickle import arrays
from ckptfmt.containers.pickle.arrays import bytes_of, text_of
from ckptfmt.containers.pickle.nodes import Call, FileBytes, Global, LegacyText, PersistentId, PickledDict
from ckptfmt.errors import FormatError
from ckptfmt.tree.arrays import numpy_node
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Opaque, Strings, Tag, tagged
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["Values"]

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLAIN_KEYS = _ATOMS - {complex}
_GETATTR = Global("builtins", "getattr")
_RECONSTRUCTOR = Global("copyreg", "_reconstructor")
_OBJECT = Global("builtins", "object")
_MOST_NESTED_TAGS = 2


class Values:
    """The meaning of calls, for `as_tree` to ask.

    Parameters
    ----------
    known : mapping
        What calls of a framework's functions stand for, by exact name. Each is given the `Call` and
        returns a value, perhaps with nodes inside, or NotImplemented to have it kept as opaque.
    outside : callable
        What a `PersistentId` stands for.
    """

    def __init__(
        self,
        known: Mapping[Global, Callable[[Call], object]],
        outside: Callable[[PersistentId], object],
    ) -> None:
        self._known = {**self._python(), **known}
        self._outside = outside
        self._opaque: Counter[str] = Counter()
        self._nested = 0

    def adapt(self, value: object) -> object:
        """Return what a node stands for, or NotImplemented for what is no node.

        Raises
        ------
        FormatError
            It contradicts itself.
        """
        if isinstance(value, Call):
            return self._call(value)
        if isinstance(value, PickledDict):
            return self._dict(value)
        if isinstance(value, FileBytes):
            value = value.read()
        if isinstance(value, LegacyText):
            return value.text()
        if type(value) is bytes:
            return value
        if isinstance(value, Global):
            return Opaque(str(value), {})
        if isinstance(value, PersistentId):
            return self._outside(value)
        return NotImplemented

    def findings(self) -> tuple[Finding, ...]:
        """Return which classes were kept as opaque data, with their numbers."""
        return tuple(
            Finding("opaque", "", Severity.INFO, f"kept as data, not as objects: {count} of {name}")
            for name, count in sorted(self._opaque.items())
        )

    def attributes(self, state: object) -> dict[Key, Tree] | None:
        """Return an object's state as attributes of a tag; None where they are not plain or hold tensors."""
        if state is None:
            return {}
        if not isinstance(state, dict) or not all(type(key) is str for key in state):
            return None
        if self._nested >= _MOST_NESTED_TAGS:
            return None
        self._nested += 1
        try:
            tree, _ = as_tree(dict(state), adapt=self.adapt)
        finally:
            self._nested -= 1
        if not isinstance(tree, dict) or survey(tree):
            return None
        return tree

    def opaque(self, call: Call) -> Opaque:
        """Return a call as data."""
        function, args = call.function, call.args
        if function == _RECONSTRUCTOR and len(args) == 3:
            function, base, content = args
            args = () if base == _OBJECT else (content,)
        name = class_name(function)
        self._opaque[name] += 1
        parts: dict[Key, object] = {"args": args, "state": call.state}
        if call.items is not None:
            parts["items"] = call.items
        if call.pairs is not None:
            parts["pairs"] = [tuple(pair) for pair in call.pairs]
        return Opaque(name, parts)  # type: ignore[arg-type] # as_tree turns the nodes inside to a tree

    def _call(self, call: Call) -> object:
        handler = self._known.get(call.function) if isinstance(call.function, Global) else None
        value = NotImplemented if handler is None else handler(call)
        return self.opaque(call) if value is NotImplemented else value

    def _dict(self, mapping: PickledDict) -> object:
        plain = self._entries(mapping.items())
        if plain is not None:
            return plain
        self._opaque["builtins.dict"] += 1
        pairs = list(mapping.items())
        return Opaque("builtins.dict", {"args": (), "state": None, "pairs": pairs})  # type: ignore[dict-item]

    def _entries(self, pairs: Iterable[tuple[object, object]]) -> dict[Key, Tree] | None:
        """Return a dict of pairs whose keys are all plain once resolved, else None."""
        made: dict[Key, Tree] = {}
        for key, value in pairs:
            if type(key) not in _PLAIN_KEYS:
                key = self._plain_key(key)  # noqa: PLW2901 - the same key, resolved
                if key is NotImplemented:
                    return None
            made[key] = value  # type: ignore[index, assignment] # a plain key; as_tree sees to the value
        return made

    def _plain_key(self, key: object) -> object:
        if isinstance(key, LegacyText):
            return key.text()
        if isinstance(key, Call):
            if key.function == arrays.SCALAR:
                scalar = arrays.scalar_of(key)
                key = scalar.item() if scalar is not None else None
                return key if type(key) in _PLAIN_KEYS else NotImplemented
            key = self.adapt(key)
        if isinstance(key, tuple):
            parts = tuple(self._plain_key(part) for part in key)
            return NotImplemented if NotImplemented in parts else parts
        return key if type(key) in _PLAIN_KEYS else NotImplemented

    # --- Python's own classes -------------------------------------------------------------------

    def _python(self) -> dict[Global, Callable[[Call], object]]:
        builtin = {
            "bytearray": self._bytearray,
            "bytes": self._bytes,
            "complex": _complex,
            "frozenset": self._set,
            "set": self._set,
        }
        collections = {"Counter": self._counter, "OrderedDict": self._ordered, "defaultdict": self._default}
        table: dict[Global, Callable[[Call], object]] = {Global("builtins", k): v for k, v in builtin.items()}
        table |= {Global("collections", name): handler for name, handler in collections.items()}
        table[Global("_codecs", "encode")] = self._bytes
        table[arrays.ARRAY] = table[arrays.BUFFER] = _array
        table[arrays.SCALAR] = _scalar
        return table

    def _bytes(self, call: Call) -> object:
        data = bytes_of(call)
        return NotImplemented if data is None or call.items or call.pairs else data

    def _bytearray(self, call: Call) -> object:
        data = self._bytes(call)
        return tagged(data, Tag("builtins.bytearray")) if isinstance(data, bytes) else NotImplemented

    def _mapping(self, call: Call, first: object = ()) -> dict[Key, Tree] | None:
        """Return the entries of a dict-like call, those of an argument first."""
        if call.items is not None:
            raise FormatError(f"items are appended to a {call.function}")
        if isinstance(first, dict):
            first = first.items()
        elif not isinstance(first, list | tuple) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in first
        ):
            return None
        return self._entries([*first, *(call.pairs or ())])

    def _ordered(self, call: Call) -> object:
        args = call.args
        if len(args) > 1:
            return NotImplemented
        entries = self._mapping(call, *args)
        attributes = self.attributes(call.state)
        if entries is None or attributes is None:
            return NotImplemented
        return tagged(entries, Tag("collections.OrderedDict", attributes))

    def _default(self, call: Call) -> object:
        factory = call.args[0] if call.args else None
        entries = self._mapping(call)
        if len(call.args) > 1 or not isinstance(factory, Global | None):
            return NotImplemented
        if entries is None or call.state is not None:
            return NotImplemented
        name = None if factory is None else str(factory)
        return tagged(entries, Tag("collections.defaultdict", {"default_factory": name}))

    def _counter(self, call: Call) -> object:
        args = call.args
        if len(args) > 1 or call.state is not None:
            return NotImplemented
        entries = self._mapping(call, *args)
        return NotImplemented if entries is None else tagged(entries, Tag("collections.Counter"))

    def _set(self, call: Call) -> object:
        args = call.args
        if len(args) > 1 or call.state is not None or call.pairs:
            return NotImplemented
        listed = args[0] if args else []
        if not isinstance(listed, list | tuple):
            return NotImplemented
        elements = [self._element(element) for element in [*listed, *(call.items or ())]]
        if NotImplemented in elements:
            return NotImplemented
        return set(elements) if call.function == Global("builtins", "set") else frozenset(elements)

    def _element(self, element: object) -> object:
        """Return an element of a set as a plain value, or NotImplemented."""
        if type(element) in _ATOMS:
            return element
        if isinstance(element, Call) and element.function == Global("builtins", "frozenset"):
            return self._set(element)
        return self._plain_key(element)


def class_name(function: object) -> str:
    """Return the path of the class or function that a node names.

    Raises
    ------
    FormatError
        It names none: something that was made is called.
    """
    if isinstance(function, Global):
        return str(function)
    if isinstance(function, Call) and function.function == _GETATTR and len(function.args) == 2:
        owner, name = function.args[0], text_of(function.args[1])
        if name is not None and isinstance(owner, Global):
            return f"{owner}.{name}"  # how protocols before 4 name a class inside a class
    if isinstance(function, PersistentId) and isinstance(function.value, tuple) and len(function.value) > 1:
        kind, cls = function.value[:2]
        if text_of(kind) == "module":  # a class with its source, in streams of PyTorch before 1.6
            return class_name(cls)
        if isinstance(kind, Global) and len(function.value) == 3:  # the same in its tar archives
            return str(kind)
    raise FormatError("a call of something that is not the name of a class or function")


def _complex(call: Call) -> object:
    if len(call.args) != 2:
        return NotImplemented
    real, imaginary = call.args
    if not isinstance(real, int | float) or not isinstance(imaginary, int | float):
        return NotImplemented
    try:
        return complex(real, imaginary)
    except OverflowError:
        return NotImplemented


def _array(call: Call) -> object:
    node: object = arrays.array_in_file(call)
    if node is None:
        array = arrays.array_of(call)
        if array is None:
            return _strings(call)
        node = _numpy_node(array)
    cls = call.args[0] if call.function == arrays.ARRAY and call.args else None
    name = str(cls) if isinstance(cls, Global) else "numpy.ndarray"
    if isinstance(node, Tensor):
        node.tag = Tag(name)
    return node


def _strings(call: Call) -> object:
    """Return an array of objects that are all text, or NotImplemented."""
    if call.function != arrays.ARRAY or not isinstance(call.state, tuple) or len(call.state) != 5:
        return NotImplemented
    _, shape, _, fortran, items = call.state
    if not isinstance(items, list) or fortran:
        return NotImplemented
    values = tuple(text_of(item) for item in items)
    checked = arrays.checked_shape(shape, 8)
    if not values or None in values or int(np.prod(checked, dtype=object)) != len(values):
        return NotImplemented
    return Strings(checked, values)  # type: ignore[arg-type] # no None inside


def _scalar(call: Call) -> object:
    scalar = arrays.scalar_of(call)
    return NotImplemented if scalar is None else _numpy_node(scalar)


def _numpy_node(value: np.ndarray | np.generic) -> object:
    try:
        return numpy_node(value)
    except (UnicodeError, ValueError) as error:  # TreeError is a ValueError, too
        raise FormatError(f"an array that cannot be read: {error}") from None
