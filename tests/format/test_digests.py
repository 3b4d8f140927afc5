"""The published digests, and a second, slow implementation written from the specification."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings

from ckptfmt.errors import LimitError
from ckptfmt.format.digests import bag_digest, chunk_digest, digest_tensor, node_digest, tree_bag
from ckptfmt.testing.strategies import trees
from ckptfmt.tree.nodes import Composite, Opaque, Strings
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey, tensors

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree

W = Tensor.of(np.array([[1, 2], [3, 4]], "f4"))

NODES: list[tuple[Any, str]] = [
    (None, "02f3586215deaf68d97fd6c87bebdb047982b14963850a744dbb73c9fb2310cd"),
    (True, "da5168e8f4fdfb45d2d6542a35d4fdb24ab3f9af53f04ec0a68be5a48faeb99e"),
    (7, "8fa31798ebed330a2c42d1502d9992c9d5a665c771799d4dbf1a35a818693f05"),
    (-26, "5f88747edc429a6d7ae91b157f59209c634a7fd366db3bb8889f91d41af78433"),
    (2**70, "20f7018125577b2166d1eb63d72d6764a45577a4b56339dd2cdb99b6ce6ada96"),
    (0.1, "d6ba97bd2ae96758c717debce49bfac27dc5d1e49c7050a2073f6152cb1eda88"),
    (-0.0, "3a203891eb065257d5967a00326716dcc62a8ac4037a314a5a502aac416bda5a"),
    (1 + 2j, "b6426712eee6d4fcf43f8c6c10aa5a6fe5803d321c2c506694f038d17538fdd2"),
    ("é", "b7b623c4777cbf336a834529a1f3f90bde23f082d67b4bc94648f66b8d51dc33"),
    (b"\x00", "01e645f643c1fe71a9f27507a698aba4fec39eac437623012060e11875a03a20"),
    ([], "0b8b22a22bb705191d787692fbc315a1ed86150b500a6d73bec3558868cfb089"),
    ((1,), "857aed20e06092f001ed127b6ceb4da21b2039a605925d0c2b5153daaa769768"),
    ({1, 2}, "5d6dc6fd5eefc4f0eb5d5a5848e25ccb9ea730a1016151f5c7a94609a5c3f7dc"),
    ({}, "39cfad7540c327166efda8ca4d2b62fdaa0fcfcf1da4d9fbbe8f893ada4fbffa"),
    ({1: True, "1": None}, "51b461171bf530a52bf73b829f3ce2bf583010ca31ddf85f72d7eb08d2bdbafa"),
    ({"step": 7, "w": W}, "462b33f6e410ee9bc2e2265513bb057b64131127cfe758380073c4bd646fbaf3"),
    ({"model": {"w": W}, "step": 7}, "72ec1cfba328a3f8c90bc07ecb26eac018ebae7536eb684c329be0186e0f89bb"),
]
TENSORS = [
    (W, "7f0273b1d30fe83f562753e231fe50a6926453548c3f9bdcae6426398aedf193"),
    (
        Tensor.of(np.zeros((0, 3), ml_dtypes.bfloat16)),
        "e7c4a8e1f2f29ce9e8e30fdf364219c77c708768c5c73616c23a797c70d75856",
    ),
    (Tensor.of(np.array(5, "i8")), "84568e24547cf9797d9790bca557985b80c40a9433f7fbd1d3083e1d701c00f4"),
]


@pytest.mark.parametrize(("node", "expected"), NODES, ids=repr)
def test_published_node_digests_come_out(node: Tree, expected: str) -> None:
    assert node_digest(node).hex() == expected


@pytest.mark.parametrize(("tensor", "expected"), TENSORS, ids=repr)
def test_published_tensor_digests_come_out(tensor: Tensor, expected: str) -> None:
    assert digest_tensor(tensor).hex() == expected


def test_published_chunk_and_bag_digests_come_out() -> None:
    assert chunk_digest(W.bytes()).hex() == "073774334669ea442864e2fee8de793462562b9dc2248d53dcbd1d3a8e70f91d"
    bag = tree_bag(survey({"w": W}), digest_tensor)
    assert bag.hex() == "ee69c28bf0c8c2c1d24d498f8989c2614cda739c390594870cd1752eef9766b8"


def derived(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=context).digest()


def field(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def slow_key(key: object) -> bytes:
    kind = {str: "str", bool: "bool", int: "int", float: "float", bytes: "bytes", tuple: "tuple"}.get(
        type(key), "none"
    )
    payload = (
        slow_scalar(key)[1]
        if not isinstance(key, tuple)
        else struct.pack("<Q", len(key)) + b"".join(map(slow_key, key))
    )
    return field(kind.encode()) + field(payload)


def slow_scalar(value: object) -> tuple[str, bytes]:
    match value:
        case None:
            return "none", b""
        case bool():
            return "bool", bytes([value])
        case int():
            return "int", (("-" if value < 0 else "") + format(abs(value), "x")).encode()
        case float():
            return "float", struct.pack("<d", value)
        case complex():
            return "complex", struct.pack("<d", value.real) + struct.pack("<d", value.imag)
        case str():
            return "str", value.encode("utf-8")
        case bytes():
            return "bytes", value
    raise AssertionError(value)


def slow_map(mapping: dict) -> bytes:
    entries = sorted(slow_key(key) + slow_node(child) for key, child in mapping.items())
    return struct.pack("<Q", len(entries)) + b"".join(entries)


def slow_tensor(tensor: Tensor) -> bytes:
    data = bytes(tensor.bytes())
    chunks = [blake3(data[i : i + 4194304]).digest() for i in range(0, len(data), 4194304)]
    shape = b"".join(struct.pack("<Q", extent) for extent in tensor.shape)
    return derived("ckptfmt 1 tensor", field(tensor.dtype.name.encode()) + field(shape) + b"".join(chunks))


def slow_node(node: object) -> bytes:
    if isinstance(node, Tensor):
        kind, payload = "tensor", slow_tensor(node)
    elif isinstance(node, Strings):
        shape = b"".join(struct.pack("<Q", extent) for extent in node.shape)
        values = (v.encode() if isinstance(v, str) else v for v in node.values)
        kind, payload = "strings", field(shape) + b"".join(map(field, values))
    elif isinstance(node, dict):
        kind, payload = "map", slow_map(node)
    elif isinstance(node, Composite):
        parts = slow_map({"attributes": node.attributes, "parts": node.parts})
        kind, payload = "composite", field(node.name.encode()) + parts
    elif isinstance(node, Opaque):
        kind, payload = "opaque", field(node.name.encode()) + slow_map(node.parts)
    elif isinstance(node, list | tuple | set | frozenset):
        kind = next(k.__name__ for k in (list, tuple, set, frozenset) if isinstance(node, k))
        below = [slow_node(child) for child in node]
        payload = struct.pack("<Q", len(below)) + b"".join(sorted(below) if "set" in kind else below)
    else:
        kind, payload = slow_scalar(node)
    return derived("ckptfmt 1 node", field(kind.encode()) + payload)


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=trees())
def test_digests_are_those_of_a_second_implementation(tree: Tree) -> None:
    assert node_digest(tree) == slow_node(tree)
    bag = derived("ckptfmt 1 bag", b"".join(sorted(slow_tensor(tensor) for _, tensor in tensors(tree))))
    assert tree_bag(survey(tree), digest_tensor) == bag


def test_a_bag_counts_each_path_of_a_shared_container() -> None:
    inner: Tree = {"w": W}
    once, twice = survey({"a": inner}), survey({"a": inner, "b": inner})
    assert tree_bag(twice, digest_tensor) == derived("ckptfmt 1 bag", slow_tensor(W) * 2)
    assert tree_bag(once, digest_tensor) != tree_bag(twice, digest_tensor)


def test_a_digest_that_counts_many_times_is_hashed_as_often() -> None:
    digest, other = b"a" * 32, b"b" * 32
    expected = derived("ckptfmt 1 bag", digest * 10_000 + other)
    assert bag_digest([(other, 1), (digest, 10_000)]) == expected


def test_a_tree_that_shares_without_end_is_refused_at_once() -> None:
    node: Tree = {"w": W}
    for _ in range(60):
        node = {"a": node, "b": node}
    with pytest.raises(LimitError):
        node_digest(node)


def test_digests_do_not_depend_on_strides_or_byte_order() -> None:
    base = np.arange(24, dtype="f4").reshape(4, 6)
    expected = digest_tensor(Tensor.of(base))
    for array in (
        np.asfortranarray(base),
        base.astype(">f4"),
        np.repeat(base, 2, axis=1)[:, ::2],
        base[::-1][::-1],
    ):
        assert digest_tensor(Tensor.of(array)) == expected
