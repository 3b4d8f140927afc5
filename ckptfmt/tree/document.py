"""A tree as JSON: the `tree` member of a manifest, and the structure note of poorer containers.

Section 5.3 of ``spec/ckptfmt-1.0.md``. Tensors are references into a table that the caller keeps; key
order is kept; a container met a second time is a reference to the first, so sharing survives.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.errors import FormatError, LimitError, TreeError
from ckptfmt.tree.canonical import JSON, MAX_JSON_INT, dumps
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, Tree, tag_of, tagged
from ckptfmt.tree.paths import display, int_payload
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import MAX_DEPTH, children, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptfmt.tree.paths import Key, Path

__all__ = ["decode_document", "decode_key", "decode_tree", "encode_key_json", "encode_tree"]


def encode_tree(tree: Tree, index_of: Callable[[Tensor], int]) -> JSON:
    """Return the JSON form of a tree.

    Parameters
    ----------
    tree : Tree
    index_of : callable
        The row of a tensor in the caller's table.

    Raises
    ------
    TreeError
        A set holds a tensor, or a string is not valid Unicode (when dumped).
    LimitError
        The tree is deeper than 64 levels.
    """
    return _Encoder(index_of).node(tree, 0)


class _Encoder:
    def __init__(self, index_of: Callable[[Tensor], int]) -> None:
        self._index_of = index_of
        self._seen: dict[int, int] = {}

    def node(self, node: Tree, depth: int) -> JSON:
        tag = tag_of(node)
        if tag is None or id(node) in self._seen:
            return self._untagged(node, depth)
        if any(children(child) or isinstance(child, Tensor) for child in tag.attributes.values()) and survey(
            tag.attributes
        ):
            raise TreeError(f"an attribute of a tag {tag.name} holds a tensor")
        return ["tagged", tag.name, self._pairs(tag.attributes, depth), self._untagged(node, depth)]

    def _untagged(self, node: Tree, depth: int) -> JSON:
        if isinstance(node, Tensor):
            return ["tensor", self._index_of(node)]
        if isinstance(node, dict | list | set | Composite | Opaque):
            earlier = self._seen.get(id(node))
            if earlier is not None:
                return ["shared", earlier]
            self._seen[id(node)] = len(self._seen)
        if isinstance(node, dict):
            return ["map", self._pairs(node, depth)]
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return [kind, self._items(node, depth)]
        if isinstance(node, set | frozenset):
            kind = "set" if isinstance(node, set) else "frozenset"
            return [kind, self._elements(node, depth)]
        if isinstance(node, Composite):
            _check_levels(depth + 1)
            attributes = self._pairs(node.attributes, depth + 1)
            return ["composite", node.name, attributes, self._pairs(node.parts, depth + 1)]
        if isinstance(node, Opaque):
            return ["opaque", node.name, self._pairs(node.parts, depth)]
        return _encode_leaf(node)

    def _pairs(self, mapping: dict[Key, Tree], depth: int) -> JSON:
        if mapping:
            _check_levels(depth + 1)
        node = self.node
        return [[encode_key_json(key), node(child, depth + 1)] for key, child in mapping.items()]

    def _items(self, items: Sequence[Tree], depth: int) -> JSON:
        if items:
            _check_levels(depth + 1)
        return [self.node(child, depth + 1) for child in items]

    def _elements(self, elements: set[Tree] | frozenset[Tree], depth: int) -> JSON:
        if elements:
            _check_levels(depth + 1)
        if not all(map(_fits_in_set, elements)):
            message = "a set cannot hold tensors, composites or opaque nodes: its elements have no names"
            raise TreeError(message)
        made = sorted((self.node(child, depth + 1) for child in elements), key=dumps)
        if any(one == other for one, other in pairwise(made)):
            message = "a set holds two NaN of the same bits"
            raise TreeError(message)
        return made


def _fits_in_set(node: Tree) -> bool:
    """Whether a set can hold a node: nothing below that is mutable, shared or stored elsewhere."""
    if isinstance(node, tuple | frozenset):
        return all(map(_fits_in_set, node))
    return not isinstance(node, Tensor | dict | list | set | Composite | Opaque)


def _check_levels(levels: int) -> None:
    if levels > MAX_DEPTH:
        message = f"the tree is deeper than {MAX_DEPTH} levels"
        raise LimitError(message, rule="R-015")


def _encode_leaf(node: Tree) -> JSON:
    if node is None or isinstance(node, bool | str):
        return node
    if isinstance(node, int):
        return node if abs(node) <= MAX_JSON_INT else ["int", int_payload(node).decode()]
    if isinstance(node, float):
        return ["float", struct.pack("<d", node).hex()]
    if isinstance(node, complex):
        return ["complex", struct.pack("<dd", node.real, node.imag).hex()]
    if isinstance(node, bytes):
        return ["bytes", node.hex()]
    if isinstance(node, Strings):
        kind = "bytes" if any(isinstance(value, bytes) for value in node.values) else "str"
        values: list[JSON] = [v.hex() if isinstance(v, bytes) else v for v in node.values]
        return ["strings", list(node.shape), kind, values]
    message = f"{type(node).__name__} is not a node of a tree"
    raise TreeError(message)


def encode_key_json(key: Key) -> JSON:
    """Return the JSON form of a key."""
    if key is None or isinstance(key, bool | str):
        return key
    if isinstance(key, tuple):
        return ["tuple", [encode_key_json(part) for part in key]]
    if isinstance(key, int | float | bytes):
        return _encode_leaf(key)
    raise TreeError(f"{type(key).__name__} cannot be a key")


def decode_tree(document: JSON, tensors: Sequence[Tensor]) -> Tree:
    """Return the tree of a JSON form.

    Parameters
    ----------
    document : JSON
        What `encode_tree` returned, after any JSON round trip.
    tensors : sequence of Tensor
        The caller's table.

    Raises
    ------
    FormatError
        It is not the JSON form of a tree; the message names the path, `rule` the broken rule.
    LimitError
        It is deeper than 64 levels.
    """
    return decode_document(document, tensors)[0]


def decode_document(
    document: JSON, tensors: Sequence[Tensor]
) -> tuple[Tree, list[tuple[Path, Tensor]] | None]:
    """Return a tree as `decode_tree`, and every reference to a tensor with its path.

    The references are None where containers are shared, so that there are more paths than the document has
    places.
    """
    decoder = _Decoder(tensors)
    tree = decoder.node(document, ())
    return tree, None if decoder.shares else decoder.references


def _fail(message: str, path: Path, rule: str = "R-020") -> NoReturn:
    raise FormatError(f"{message} at {display(path) or 'the root'}", rule=rule)


class _Decoder:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._containers: list[Tree] = []
        self.references: list[tuple[Path, Tensor]] = []
        self.shares = False
        self._in_attributes = 0
        self._met = 0  # references to tensors, and to containers that hold some
        self._before: list[int] = []  # of each container, `_met` where it began
        self._holding: set[int] = set()  # containers with a tensor below
        self._kinds: dict[str, Callable[[list[JSON], Path], Tree]] = {
            "tensor": self._tensor,
            "map": self._map,
            "list": self._list,
            "tuple": self._tuple,
            "set": self._set,
            "frozenset": self._frozenset,
            "composite": self._composite,
            "opaque": self._opaque,
            "shared": self._shared,
            "tagged": self._tagged,
            "strings": _decode_strings,
            "int": _decode_int,
            "float": _decode_float,
            "complex": _decode_complex,
            "bytes": _decode_bytes,
        }

    def node(self, form: JSON, path: Path) -> Tree:
        if not isinstance(form, list):
            return _decode_plain(form, path)
        kind = form[0] if form else None
        decode = self._kinds.get(kind) if isinstance(kind, str) else None
        if decode is None:
            _fail(f"unknown kind of node {str(kind)[:40]!r}", path)
        return decode(form, path)

    def _tensor(self, form: list[JSON], path: Path) -> Tensor:
        index = form[1] if len(form) == 2 else None
        if type(index) is not int:
            _fail("malformed tensor reference", path)
        if self._in_attributes:
            _fail("an attribute of a tag that holds a tensor", path)
        if not 0 <= index < len(self._tensors):
            _fail(f"there is no tensor {index}", path, "R-023")
        tensor = self._tensors[index]
        self._met += 1
        self.references.append((path, tensor))
        return tensor

    def _map(self, form: list[JSON], path: Path) -> dict[Key, Tree]:
        made: dict[Key, Tree] = {}
        if len(form) != 2:
            _fail("malformed map", path)
        slot = self._open()
        self._fill(made, form[1], path)
        self._close(slot, made)
        return made

    def _open(self) -> int:
        """Number a container in order of its beginning; it can be shared once it is complete."""
        self._containers.append(None)
        self._before.append(self._met)
        return len(self._containers) - 1

    def _close(self, slot: int, made: Tree) -> None:
        self._containers[slot] = made
        if self._met > self._before[slot]:
            self._holding.add(slot)

    def _fill(self, made: dict[Key, Tree], pairs: JSON, path: Path) -> None:
        if not isinstance(pairs, list):
            _fail("malformed mapping", path)
        if pairs:
            _check_levels(len(path) + 1)
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                _fail("malformed entry", path)
            key = pair[0] if type(pair[0]) is str else decode_key(pair[0], path)
            if key in made:
                _fail(f"key {key!r} is there twice, or equals another key", path, "R-021")
            made[key] = self.node(pair[1], (*path, key))

    def _items(self, form: list[JSON], path: Path) -> list[Tree]:
        items = form[1] if len(form) == 2 else None
        if not isinstance(items, list):
            _fail(f"malformed {form[0]}", path)
        if items:
            _check_levels(len(path) + 1)
        return [self.node(item, (*path, index)) for index, item in enumerate(items)]

    def _list(self, form: list[JSON], path: Path) -> list[Tree]:
        slot = self._open()
        made = self._items(form, path)
        self._close(slot, made)
        return made

    def _tuple(self, form: list[JSON], path: Path) -> tuple[Tree, ...]:
        return tuple(self._items(form, path))

    def _elements(self, form: list[JSON], path: Path) -> list[Tree]:
        made = self._items(form, path)
        encoded = [dumps(item) for item in form[1]]  # type: ignore[union-attr] # _items saw a list
        if not all(map(_fits_in_set, made)):
            _fail("a set holds a tensor, or a container that is no tuple or frozenset", path, "R-021")
        if len(set(made)) != len(made) or len(set(encoded)) != len(encoded):
            _fail("two elements of a set are equal", path, "R-021")
        if any(low > high for low, high in pairwise(encoded)):
            _fail("the elements of a set are not in order", path, "R-024")
        return made

    def _set(self, form: list[JSON], path: Path) -> set[Tree]:
        slot = self._open()
        made = set(self._elements(form, path))
        self._close(slot, made)
        return made

    def _frozenset(self, form: list[JSON], path: Path) -> frozenset[Tree]:
        return frozenset(self._elements(form, path))

    def _composite(self, form: list[JSON], path: Path) -> Composite:
        if len(form) != 4 or not isinstance(form[1], str):
            _fail("malformed composite", path)
        slot = self._open()
        made = Composite(form[1], {}, {})
        _check_levels(len(path) + 1)
        self._fill(made.attributes, form[2], (*path, "attributes"))
        self._fill(made.parts, form[3], (*path, "parts"))
        self._check_names({**made.attributes, **made.parts}, path)
        self._close(slot, made)
        return made

    def _opaque(self, form: list[JSON], path: Path) -> Opaque:
        if len(form) != 3 or not isinstance(form[1], str):
            _fail("malformed opaque node", path)
        slot = self._open()
        made = Opaque(form[1], {})
        self._fill(made.parts, form[2], path)
        self._check_names(made.parts, path)
        if made.name == CYCLE:
            up = made.parts.get("up")
            if list(made.parts) != ["up"] or type(up) is not int or not 1 <= up <= len(path):
                _fail("a cycle must count levels that there are", path, "R-026")
        self._close(slot, made)
        return made

    @staticmethod
    def _check_names(names: dict[Key, Tree], path: Path) -> None:
        if not all(type(name) is str for name in names):
            _fail("attributes and parts have names that are strings", path)

    def _shared(self, form: list[JSON], path: Path) -> Tree:
        index = form[1] if len(form) == 2 else None
        if type(index) is not int:
            _fail("malformed shared reference", path)
        if not 0 <= index < len(self._containers) or self._containers[index] is None:
            _fail(f"there is no complete container {index} before this one", path, "R-022")
        self.shares = True
        if index in self._holding:
            if self._in_attributes:
                _fail("an attribute of a tag that refers to a tensor", path)
            self._met += 1
        return self._containers[index]

    def _tagged(self, form: list[JSON], path: Path) -> Tree:
        if len(form) != 4 or not isinstance(form[1], str):
            _fail("malformed tag", path)
        attributes: dict[Key, Tree] = {}
        self._in_attributes += 1
        self._fill(attributes, form[2], path)
        self._in_attributes -= 1
        self._check_names(attributes, path)
        slot = len(self._containers)
        inner = form[3]
        if not isinstance(inner, list) or not inner or inner[0] in ("tagged", "shared"):
            _fail("a tag on something that cannot carry one", path)
        made = self.node(inner, path)
        tag = Tag(form[1], attributes)
        if isinstance(made, Tensor):
            made = Tensor(
                made.dtype, made.shape, made.source, tag=tag, identity=made.identity, digest=made.digest
            )
            self.references[-1] = (path, made)
            return made
        if not isinstance(made, dict | list | tuple | set | bytes):
            _fail("a tag on something that cannot carry one", path)
        result = tagged(made, tag)
        if isinstance(made, dict | list | set):
            self._containers[slot] = result
        return result


def _decode_plain(form: JSON, path: Path) -> Tree:
    if form is None or isinstance(form, bool | str):
        return form
    if isinstance(form, int):
        if abs(form) > MAX_JSON_INT:
            _fail("an integer that must be written in hexadecimal", path, "R-024")
        return form
    _fail("a JSON object is no node", path)


def decode_key(form: JSON, path: Path) -> Key:
    """Return the key of a JSON form.

    Raises
    ------
    FormatError
        It is not one.
    """
    if not isinstance(form, list):
        return _decode_plain(form, path)  # type: ignore[return-value] # plain forms are keys
    kind = form[0] if len(form) == 2 else None
    if kind == "tuple" and isinstance(form[1], list):
        _check_levels(len(path) + 1)
        return tuple(decode_key(part, (*path, None)) for part in form[1])
    decoders: dict[str, Callable[[list[JSON], Path], Key]] = {
        "int": _decode_int,
        "float": _decode_float,
        "bytes": _decode_bytes,
    }
    decode = decoders.get(str(kind))
    if decode is None:
        _fail("malformed key", path)
    key: Key = decode(form, path)
    if key != key:  # noqa: PLR0124 - NaN
        _fail("NaN as a key", path, "R-021")
    return key


def _payload(form: list[JSON], path: Path, length: int | None = None) -> bytes:
    text = form[1] if len(form) == 2 else None
    if isinstance(text, str) and text == text.lower() and " " not in text and text.isascii():
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = None
        if data is not None and data.hex() == text and length in (None, len(data)):
            return data
    _fail(f"malformed {form[0]}", path)


def _decode_int(form: list[JSON], path: Path) -> int:
    text = form[1] if len(form) == 2 else None
    if not isinstance(text, str) or not text.isascii() or "_" in text:
        _fail("malformed integer", path)
    try:
        value = int(text, 16)
    except ValueError:
        _fail("malformed integer", path)
    if int_payload(value).decode() != text or abs(value) <= MAX_JSON_INT:
        _fail("an integer that is not in canonical form", path, "R-024")
    return value


def _decode_float(form: list[JSON], path: Path) -> float:
    value: float = struct.unpack("<d", _payload(form, path, 8))[0]
    return value


def _decode_complex(form: list[JSON], path: Path) -> complex:
    return complex(*struct.unpack("<dd", _payload(form, path, 16)))


def _decode_bytes(form: list[JSON], path: Path) -> bytes:
    return _payload(form, path)


def _decode_strings(form: list[JSON], path: Path) -> Strings:
    if len(form) != 4:
        _fail("malformed strings", path)
    _, shape, kind, values = form
    if not isinstance(shape, list) or not isinstance(values, list) or kind not in ("str", "bytes"):
        _fail("malformed strings", path)
    if len(shape) > 64:
        _fail("strings of more than 64 dimensions", path)
    count = 1
    for extent in shape:
        if type(extent) is not int or not 0 <= extent <= MAX_JSON_INT or len(shape) > 64:
            _fail("malformed strings", path)
        count *= extent
    if count != len(values) or not all(isinstance(value, str) for value in values):
        _fail("strings do not fill their shape", path)
    if kind == "str":
        return Strings(tuple(shape), tuple(values))  # type: ignore[arg-type] # checked above
    if not values:
        _fail("empty strings are of kind str", path, "R-024")
    return Strings(tuple(shape), tuple(_payload(["bytes", value], path) for value in values))  # type: ignore[arg-type]
