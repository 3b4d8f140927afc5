from __future__ import annotations

import contextlib

import pytest

from ckptfmt.containers.protobuf import bytes_field, int_field
from ckptfmt.errors import FormatError, LimitError
from ckptfmt.frameworks.tensorflow import graph as module
from ckptfmt.frameworks.tensorflow.graph import (
    Attribute,
    Graph,
    Node,
    Slot,
    decode_graph,
    encode_graph,
    escaped,
    object_path,
    shortest_paths,
)


def variable(key: str, full_name: str = "") -> Node:
    return Node(attributes=(Attribute("VARIABLE_VALUE", full_name, f"{key}/.ATTRIBUTES/VARIABLE_VALUE"),))


SMALL: Graph = (
    Node(children=(("v", 1), ("é/.", 2))),
    variable("v", "v"),
    Node(children=(("back", 0),), slots=(Slot(1, "m", 3),)),
    variable("v/.OPTIMIZER_SLOT/o/m"),
)


def test_a_graph_comes_back_from_its_message() -> None:
    assert decode_graph(encode_graph(SMALL)) == SMALL
    assert decode_graph(encode_graph(())) == ()


def test_the_message_is_what_the_definition_says_byte_for_byte() -> None:
    graph = (Node(children=(("a", 1),)), variable("a", "n"))
    key = b"a/.ATTRIBUTES/VARIABLE_VALUE"
    attribute = b"\x0a\x0eVARIABLE_VALUE\x12\x01n\x1a" + bytes([len(key)]) + key
    nodes = [b"\x0a\x05\x08\x01\x12\x01a\x2a\x02\x08\x01", b"\x12" + bytes([len(attribute)]) + attribute]
    nodes[1] += b"\x2a\x02\x08\x01"
    assert encode_graph(graph) == b"".join(b"\x0a" + bytes([len(node)]) + node for node in nodes)


def test_local_names_are_escaped_as_tensorflow_does() -> None:
    assert escaped("a/b.c") == "a.Sb..c"
    assert object_path("a.Sb/.ATTRIBUTES/VARIABLE_VALUE") == "a.Sb"
    assert object_path("t/.ATTRIBUTES/table-keys") == "t/.ATTRIBUTES/table-keys"


def test_aliases_are_found_and_cycles_end() -> None:
    graph = (
        Node(children=(("model", 1), ("optimizer", 2), ("self", 0))),
        Node(children=(("kernel", 3), ("optimizer", 2), ("again", 3))),
        Node(children=(("trained/0", 3), ("model", 1))),
        variable("model/kernel"),
    )
    assert shortest_paths(graph) == {3: ("model/kernel", "model/again", "optimizer/trained.S0")}


@pytest.mark.parametrize(
    "graph",
    [
        (Node(children=(("a", 1),)),),
        (Node(children=(("a", -1),)),),
        (Node(slots=(Slot(0, "m", 7),)),),
        (Node(slots=(Slot(9, "m", 0),)),),
    ],
)
def test_a_number_that_leads_to_no_node_is_refused(graph: Graph) -> None:
    padded = (*graph,)
    message = b"".join(_raw(node) for node in padded)
    with pytest.raises(FormatError, match="1 nodes and refers to node"):
        decode_graph(message)


def _raw(node: Node) -> bytes:
    parts = [bytes_field(1, int_field(1, at) + bytes_field(2, name.encode())) for name, at in node.children]
    parts += [bytes_field(3, int_field(1, one.original) + int_field(3, one.variable)) for one in node.slots]
    return bytes_field(1, b"".join(parts))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\xff",
        b"\x08\x01",  # a number where a node must be
        bytes_field(1, b"\x08\x01"),  # a number where a child must be
        bytes_field(1, bytes_field(1, bytes_field(1, b"x"))),  # bytes where a number must be
        bytes_field(1, bytes_field(1, bytes_field(2, b"\xff"))),
        bytes_field(1, bytes_field(2, b"\x18\x01")),
    ],
)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    with pytest.raises(FormatError):
        decode_graph(message)


def test_every_beginning_and_every_flipped_bit_has_an_answer() -> None:
    message = encode_graph(SMALL)
    for length in range(len(message)):
        _tried(message[:length])
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        _tried(bytes(changed))


def _tried(message: bytes) -> None:
    with contextlib.suppress(FormatError):
        shortest_paths(decode_graph(message))


def test_a_graph_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PARTS", 10)
    with pytest.raises(LimitError, match="more than 10 parts"):
        decode_graph(b"\x0a\x00" * 11)


def test_paths_of_a_hostile_graph_are_bounded() -> None:
    chain = [Node(children=(("x" * 8, at + 1),)) for at in range(3000)]
    last = len(chain)
    wide = [Node(children=tuple((f"p{at}", last + 1 + at) for at in range(2000)))]
    parents = [Node(children=(("v", last + 2001),)) for _ in range(2000)]
    graph = (*chain, *wide, *parents, variable("v"))
    assert shortest_paths(graph) == {}  # all of them are longer than any path
    with pytest.raises(LimitError, match="characters"):
        shortest_paths((*[Node(children=(("x" * 4000, at + 1),)) for at in range(1)], *_many(1)))


def _many(first: int) -> list[Node]:
    count = 5000
    return [
        Node(children=tuple((f"p{at}", first + 1 + at) for at in range(count))),
        *[Node(children=(("v", first + 1 + count),)) for _ in range(count)],
        variable("v"),
    ]


def test_a_long_chain_is_walked_once() -> None:
    """Squared, it would take hours."""
    graph = (*[Node(children=(("x", at + 1),)) for at in range(100_000)], variable("v"))
    assert shortest_paths(graph) == {}
