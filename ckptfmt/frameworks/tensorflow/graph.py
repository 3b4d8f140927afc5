"""The object graph of a TensorFlow 2 checkpoint: its message to nodes, and back.

One scalar string of the bundle holds it. Nodes are numbered, the root is 0; edges have names, slot variables
hang on their optimizer. Numbers that lead nowhere are refused. Nothing here knows tensors or trees. Source:
tensorflow/core/protobuf/trackable_object_graph.proto, and python/trackable/trackable_utils.py for names.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.protobuf import BYTES, VARINT, bytes_field, fields, int_field, signed
from ckptfmt.errors import FormatError, LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "GRAPH_KEY",
    "VALUE",
    "Attribute",
    "Graph",
    "Node",
    "Slot",
    "decode_graph",
    "encode_graph",
    "escaped",
    "object_path",
    "shortest_paths",
]

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key under which a bundle holds the graph, a scalar string."""

VALUE = "VARIABLE_VALUE"
"""The attribute of a variable that is its value."""

_VALUE_SUFFIX = f"/.ATTRIBUTES/{VALUE}"
_MAX_PARTS = 1 << 20
"""Nodes, edges, attributes and slots together: many times what large models have."""
_MAX_PATH = 4096
_MAX_TEXT = 16 << 20
_BOOL_TRUE = b"\x08\x01"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value of an object that lies in the bundle.

    Attributes
    ----------
    name : str
        `VALUE` for variables.
    full_name : str
        What the variable calls itself, such as ``"d1/kernel"``; may be empty, and need not be unique.
    key : str
        The key in the bundle: of one entry, or of several that add an ending to it.
    """

    name: str
    full_name: str
    key: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A variable that an optimizer keeps for another one.

    Attributes
    ----------
    original, variable : int
        Nodes: the parameter, and what is kept for it.
    name : str
    """

    original: int
    name: str
    variable: int


@dataclass(frozen=True, slots=True)
class Node:
    """An object.

    Attributes
    ----------
    children : tuple of (str, int)
        Local names and nodes.
    attributes : tuple of Attribute
    slots : tuple of Slot
    """

    children: tuple[tuple[str, int], ...] = ()
    attributes: tuple[Attribute, ...] = ()
    slots: tuple[Slot, ...] = ()


Graph = tuple[Node, ...]


# ---------------------------------------------------------------------- reading


def decode_graph(data: bytes) -> Graph:
    """Return the nodes of an object graph.

    Raises
    ------
    FormatError
        The message is malformed, or a number leads to no node.
    LimitError
        It has more parts than any model.
    """
    room = [_MAX_PARTS]
    nodes = []
    for number, kind, value in fields(memoryview(data)):
        if number == 1:
            nodes.append(_node(_message(kind, value), room))
    for node in nodes:
        for target in _targets(node):
            if not 0 <= target < len(nodes):
                raise FormatError(f"the object graph has {len(nodes)} nodes and refers to node {target}")
    return tuple(nodes)


def _targets(node: Node) -> Iterator[int]:
    yield from (target for _, target in node.children)
    for slot in node.slots:
        yield slot.original
        yield slot.variable


def _node(data: memoryview, room: list[int]) -> Node:
    children: list[tuple[str, int]] = []
    attributes: list[Attribute] = []
    slots: list[Slot] = []
    _take(room)
    for number, kind, value in fields(data):
        if number not in (1, 2, 3):
            continue  # the name of a saver, and whether there are values below: kept in the message itself
        _take(room)
        part = _message(kind, value)
        if number == 1:
            numbers, texts = _flat(part, (1,), (2,))
            children.append((texts[2], numbers[1]))
        elif number == 2:
            _, texts = _flat(part, (), (1, 2, 3))
            attributes.append(Attribute(texts[1], texts[2], texts[3]))
        else:
            numbers, texts = _flat(part, (1, 3), (2,))
            slots.append(Slot(numbers[1], texts[2], numbers[3]))
    return Node(tuple(children), tuple(attributes), tuple(slots))


def _take(room: list[int]) -> None:
    room[0] -= 1
    if room[0] < 0:
        raise LimitError(f"an object graph of more than {_MAX_PARTS} parts")


def _message(kind: int, value: int | memoryview) -> memoryview:
    if kind != BYTES or isinstance(value, int):
        _malformed()
    return value


def _flat(
    data: memoryview, number_fields: Sequence[int], text_fields: Sequence[int]
) -> tuple[dict[int, int], dict[int, str]]:
    """Return the numbers and the texts of a message without messages in it; of several, the last."""
    numbers = dict.fromkeys(number_fields, 0)
    texts = dict.fromkeys(text_fields, "")
    for number, kind, value in fields(data):
        if number in numbers:
            if kind != VARINT or not isinstance(value, int):
                _malformed()
            numbers[number] = signed(value)
        elif number in texts:
            texts[number] = _text(_message(kind, value))
    return numbers, texts


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise FormatError("the object graph has a name that is not valid Unicode") from None


def _malformed() -> NoReturn:
    raise FormatError("the object graph is malformed: a field of the wrong kind")


# ---------------------------------------------------------------------- writing


def encode_graph(graph: Graph) -> bytes:
    """Return the message of an object graph, as TensorFlow 2.21 lays it out."""
    valued = _with_values(graph)
    return b"".join(bytes_field(1, _encode_node(node, at in valued)) for at, node in enumerate(graph))


def _encode_node(node: Node, has_values: bool) -> bytes:  # noqa: FBT001 - private
    parts = [bytes_field(1, int_field(1, target) + _text_field(2, name)) for name, target in node.children]
    parts += [
        bytes_field(2, _text_field(1, one.name) + _text_field(2, one.full_name) + _text_field(3, one.key))
        for one in node.attributes
    ]
    parts += [
        bytes_field(3, int_field(1, one.original) + _text_field(2, one.name) + int_field(3, one.variable))
        for one in node.slots
    ]
    parts.append(bytes_field(5, _BOOL_TRUE if has_values else b""))
    return b"".join(parts)


def _text_field(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode()) if text else b""


def _with_values(graph: Graph) -> set[int]:
    """Return the nodes that have values, or reach one that does (checkpoint/util.py)."""
    parents: list[list[int]] = [[] for _ in graph]
    for at, node in enumerate(graph):
        for _, target in node.children:
            parents[target].append(at)
    found = {at for at, node in enumerate(graph) if node.attributes or node.slots}
    waiting = list(found)
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


# ---------------------------------------------------------------------- names


def escaped(name: str) -> str:
    """Return a local name as it stands in a key: ``.`` doubled, ``/`` as ``.S``."""
    return name.replace(".", "..").replace("/", ".S")


def object_path(key: str) -> str:
    """Return the path of the object that a variable's key is made of; other keys as they are."""
    return key.removesuffix(_VALUE_SUFFIX)


def shortest_paths(graph: Graph) -> dict[int, tuple[str, ...]]:
    """Return the paths that lead to each object with attributes: one for each edge to it, the shortest first.

    A path is a shortest one to the object before, and one edge more; so cycles end, and none is told twice.
    Paths of more than 4096 characters are left out.

    Raises
    ------
    LimitError
        All paths together are larger than any model's.
    """
    order, reached = _breadth_first(graph)
    found: dict[int, list[str]] = {}
    room = _MAX_TEXT
    for at in order:
        before: str | None = None
        for name, target in graph[at].children:
            if not graph[target].attributes:
                continue
            before = _spelled(at, reached) if before is None else before
            path = f"{before}/{escaped(name)}" if before else escaped(name)
            room -= len(path)
            if room < 0:
                raise LimitError(f"an object graph whose paths have more than {_MAX_TEXT} characters")
            if len(path) <= _MAX_PATH:
                found.setdefault(target, []).append(path)
    return {target: tuple(dict.fromkeys(paths)) for target, paths in found.items()}


def _breadth_first(graph: Graph) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """Return the nodes that the root reaches, nearest first, and from where and by which name each was."""
    order: list[int] = []
    reached: dict[int, tuple[int, str]] = {}
    waiting = deque([0] if graph else [])
    seen = {0}
    while waiting:
        at = waiting.popleft()
        order.append(at)
        for name, target in graph[at].children:
            if target not in seen:
                seen.add(target)
                reached[target] = (at, name)
                waiting.append(target)
    return order, reached


def _spelled(at: int, reached: dict[int, tuple[int, str]]) -> str:
    names: list[str] = []
    length = 0
    while at in reached and length <= _MAX_PATH:
        at, name = reached[at]
        names.append(escaped(name))
        length += len(names[-1]) + 1
    return "/".join(reversed(names))
