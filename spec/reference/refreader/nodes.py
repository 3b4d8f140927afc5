"""Sections 5.3 and 6: the forms of a tree become nodes, which know their digests, limits and tensors."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, TypeAlias

from refreader.document import JSON, MAX_INT, digest, encode, field, is_shape, refuse, require, u64

MAX_DEPTH, MAX_NODES = 64, 2**24
CONTAINERS = {"map", "list", "set", "composite", "opaque"}  # those that can be shared
TAGGED = ("map", "list", "tuple", "set", "tensor", "bytes")
Path = tuple[bytes, ...]
Children: TypeAlias = "Sequence[tuple[bytes, Node]]"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node, its children by encoded key, and what is known of everything below it."""

    kind: str
    payload: bytes
    digest: bytes
    children: Children
    equal: Hashable  # keys, or elements of a set, are equal if these are
    kinds: frozenset[str]  # of the node and all below
    size: int  # nodes
    depth: int  # keys in the longest path
    ordinal: int = -1


class Key(NamedTuple):
    """A key: its kind and payload (section 6.2), and its value for equality."""

    kind: str
    payload: bytes
    equal: Hashable

    @property
    def encoded(self) -> bytes:
        """Section 6.2."""
        return field(self.kind.encode()) + field(self.payload)

    @property
    def text(self) -> str:
        """Section 8.4; only for keys of bounded length."""
        known = {"str": self.payload.decode, "int": lambda: decimal(int(self.payload, 16))}
        return known.get(self.kind, lambda: f"{self.kind}:{self.payload.hex()}")()


def make(kind: str, payload: bytes, equal: Hashable = None, children: Children = ()) -> Node:
    """Return a node of section 6.1, within the limits."""
    nodes = [node for _, node in children]
    size, depth = 1 + sum(node.size for node in nodes), max((1 + node.depth for node in nodes), default=0)
    require(size <= MAX_NODES and depth <= MAX_DEPTH, "R-015", "the tree")
    kinds = frozenset({kind}).union(*(node.kinds for node in nodes))
    own = digest(field(kind.encode()) + payload, "ckptfmt 1 node")
    return Node(kind, payload, own, children, equal, kinds, size, depth)


def read_key(form: JSON, depth: int) -> Key:
    """Read the form of a key that ends a path of `depth` keys; tuples in it count as further ones."""
    require(depth <= MAX_DEPTH, "R-015", "more than 64 levels")
    match form:
        case ["tuple", [*items]]:
            keys = [read_key(item, depth + 1) for item in items]
            payload = u64(len(keys)) + b"".join(key.encoded for key in keys)
            return Key("tuple", payload, tuple(key.equal for key in keys))
    node = read_scalar(form)
    require(node.kind not in {"complex", "strings"}, "R-020", f"a {node.kind} as a key")
    require(node.equal == node.equal, "R-021", "a NaN as a key")
    return Key(node.kind, node.payload, node.equal)


def read_name(form: JSON, depth: int) -> Key:
    """Read the name of an attribute or part."""
    require(isinstance(form, str), "R-020", "a name that is no string")
    return read_key(form, depth)


def decimal(number: int) -> str:
    """Return an integer in decimal, in pieces that Python converts whatever its limit of digits."""
    high, low = divmod(abs(number), 10**4000)
    return "-" * (number < 0) + (f"{high}{low:04000d}" if high else str(low))


def unhex(text: str) -> bytes:
    """Return the bytes that lower-case hexadecimal digits stand for."""
    require(re.fullmatch("(?:[0-9a-f]{2})*", text), "R-020", "not hexadecimal")
    return bytes.fromhex(text)


def read_scalar(form: JSON) -> Node:
    """Read a form without nodes inside."""
    match form:
        case None:
            return make("none", b"", None)
        case bool():
            return make("bool", bytes([form]), form)
        case int():
            return make("int", f"{form:x}".encode(), form)
        case str():
            return make("str", form.encode(), form)
        case ["int", str(text)]:
            require(re.fullmatch("-?[1-9a-f][0-9a-f]*", text), "R-020", "not the payload of an int")
            require(abs(int(text, 16)) > MAX_INT, "R-024", "an int that is written as a number")
            return make("int", text.encode(), int(text, 16))
        case ["float" | "complex" as kind, str(text)]:
            require(len(text) == (16 if kind == "float" else 32), "R-020", f"the length of a {kind}")
            numbers = [number for (number,) in struct.iter_unpack("<d", unhex(text))]
            return make(kind, unhex(text), complex(*numbers) if kind == "complex" else numbers[0])
        case ["bytes", str(text)]:
            return make("bytes", unhex(text), unhex(text))
        case ["strings", [*shape], "str" | "bytes" as of, [*values]]:
            return read_strings(shape, of, values)
    return refuse("R-020", f"no form of a node or key: {str(form)[:60]}")


def read_strings(shape: list[JSON], of: str, values: list[JSON]) -> Node:
    """Read an array of strings."""
    sizes = [size for size in shape if isinstance(size, int)]
    texts = [text for text in values if isinstance(text, str)]
    fits = is_shape(list(shape)) and prod(sizes) == len(texts) == len(values)
    require(fits, "R-020", "strings that do not fill their shape")
    require(texts or of == "str", "R-024", "bytes without values")
    items = [text.encode() if of == "str" else unhex(text) for text in texts]
    payload = field(u64(*sizes)) + b"".join(map(field, items))
    return make("strings", payload, (tuple(sizes), of, tuple(texts)))


class TreeReader:
    """Reads the forms of a tree in the order of the document; `digests` are those of the rows."""

    def __init__(self, digests: list[bytes]) -> None:
        self.digests = digests
        self.containers: list[Node | None] = []

    def node(self, form: JSON, depth: int = 0) -> Node:
        """Read the form of a node whose path has `depth` keys."""
        require(depth <= MAX_DEPTH, "R-015", "more than 64 levels")
        match form:
            case ["tensor", int(ordinal)] if not isinstance(ordinal, bool):
                require(0 <= ordinal < len(self.digests), "R-023", "a tensor without a row")
                return replace(make("tensor", self.digests[ordinal]), ordinal=ordinal)
            case ["shared", int(number)] if not isinstance(number, bool):
                known = self.containers[number] if 0 <= number < len(self.containers) else None
                return known or refuse("R-022", f"no complete container {number}")
            case ["tagged", str(), [*entries], [kind, *_] as inside]:
                attributes = self.mapping(entries, depth, read_name)
                require("tensor" not in attributes.kinds, "R-020", "a tensor below an attribute")
                require(kind in TAGGED, "R-020", "a tag on a node that bears none")
                return self.node(inside, depth)
            case [str(kind), *rest] if kind in CONTAINERS:
                self.containers.append(None)  # complete only when its last child is
                number = len(self.containers) - 1
                made = self.containers[number] = self.container(kind, rest, depth)
                return made
            case ["tuple" | "frozenset" as kind, *rest]:
                return self.container(kind, rest, depth)
        return read_scalar(form)

    def container(self, kind: str, rest: list[JSON], depth: int) -> Node:
        """Read a container from what follows its kind."""
        match kind, rest:
            case "map", [[*entries]]:
                return self.mapping(entries, depth)
            case "list" | "tuple", [[*items]]:
                nodes = [self.node(item, depth + 1) for item in items]
                payload = u64(len(nodes)) + b"".join(node.digest for node in nodes)
                return make(kind, payload, tuple(node.equal for node in nodes), indexed(nodes))
            case "set" | "frozenset", [[*items]]:
                return self.collection(kind, items, depth)
            case "composite", [str(name), [*attributes], [*parts]]:
                halves = [self.mapping(half, depth + 1, read_name) for half in (attributes, parts)]
                pair = list(zip(HALVES, halves, strict=True))
                return make(kind, field(name.encode()) + map_payload(pair), None, pair)
            case "opaque", [str(name), [*parts]]:
                if name == "cycle":
                    cycles = [encode([["up", levels]]) for levels in range(1, depth + 1)]
                    require(encode(parts) in cycles, "R-026", "a cycle of no level that there is")
                children = self.mapping(parts, depth, read_name).children
                return make(kind, field(name.encode()) + map_payload(children), None, children)
        return refuse("R-020", f"no form of a {kind}")

    def mapping(self, entries: list[JSON], depth: int, read: Callable[[JSON, int], Key] = read_key) -> Node:
        """Read the entries of a map, or named nodes."""
        children, seen = [], set[Hashable]()
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != 2:
                refuse("R-020", "no entry of a map")
            key = read(entry[0], depth + 1)
            require(key.equal not in seen, "R-021", "equal keys")
            seen.add(key.equal)
            children.append((key.encoded, self.node(entry[1], depth + 1)))
        return make("map", map_payload(children), None, children)

    def collection(self, kind: str, items: list[JSON], depth: int) -> Node:
        """Read the elements of a set."""
        nodes, texts = [self.node(item, depth + 1) for item in items], [encode(item) for item in items]
        equal = frozenset(node.equal for node in nodes)
        require(len(equal) == len(set(texts)) == len(texts), "R-021", "equal elements of a set")
        require(texts == sorted(texts), "R-024", "a set that is not sorted")
        mixed = frozenset[str]().union(*(node.kinds for node in nodes))
        require(not mixed & {"tensor", *CONTAINERS}, "R-021", "what no set can hold")
        payload = u64(len(nodes)) + b"".join(sorted(node.digest for node in nodes))
        return make(kind, payload, equal, indexed(nodes))


HALVES = [Key("str", name, name).encoded for name in (b"attributes", b"parts")]  # of a composite


def map_payload(children: Children) -> bytes:
    """Return the payload of a map."""
    return u64(len(children)) + b"".join(sorted(key + node.digest for key, node in children))


def indexed(nodes: list[Node]) -> Children:
    """Return nodes with their indices as keys."""
    return [(Key("int", f"{index:x}".encode(), index).encoded, node) for index, node in enumerate(nodes)]


def tensor_paths(node: Node, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """Yield every path at which there is a tensor, with its ordinal."""
    if node.ordinal >= 0:
        yield path, node.ordinal
    for key, child in node.children:
        if "tensor" in child.kinds:
            yield from tensor_paths(child, (*path, key))
