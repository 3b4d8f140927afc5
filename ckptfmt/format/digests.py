"""Digests of chunks, tensors, nodes and trees: sections 4.3 and 6 of ``spec/ckptfmt-1.0.md``.

These values are fixed for ever. They depend on types, shapes, values and typed paths, and on nothing
else: not on ranks, shards, codecs, key order or class tags.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptfmt.errors import TreeError
from ckptfmt.format.constants import CHUNK
from ckptfmt.tree.nodes import Composite, Opaque, Strings
from ckptfmt.tree.paths import encode_key, field, int_payload, u64
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.walk import Place

__all__ = ["bag_digest", "chunk_digest", "node_digest", "root_digest", "tensor_digest", "tree_bag"]

_TENSOR = blake3(derive_key_context="ckptfmt 1 tensor")  # copied for each use: the context is hashed once
_NODE = blake3(derive_key_context="ckptfmt 1 node")
_BAG = blake3(derive_key_context="ckptfmt 1 bag")
_FEW = 4096


def chunk_digest(data: bytes | memoryview) -> bytes:
    """Return the digest of one chunk: at most 4 MiB of canonical bytes. Releases the interpreter lock."""
    return blake3(data).digest()


@lru_cache(maxsize=4096)
def _tensor_prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    return field(dtype.encode()) + field(b"".join(map(u64, shape)))


def tensor_digest(dtype: str, shape: tuple[int, ...], chunks: bytes) -> bytes:
    """Return the digest of a tensor from its chunk digests, concatenated."""
    return _TENSOR.copy().update(_tensor_prefix(dtype, shape) + chunks).digest()


def digest_tensor(tensor: Tensor) -> bytes:
    """Return the digest of a tensor from its bytes, read a chunk at a time."""
    digests = []
    buffer: memoryview | None = None
    for start in range(0, tensor.nbytes, CHUNK):
        stop = min(start + CHUNK, tensor.nbytes)
        data = tensor.source.view(start, stop)
        if data is None:
            buffer = memoryview(bytearray(min(CHUNK, tensor.nbytes))) if buffer is None else buffer
            data = buffer[: stop - start]
            tensor.source.readinto(start, data)
        digests.append(chunk_digest(data))
    return tensor_digest(tensor.dtype.name, tensor.shape, b"".join(digests))


def bag_digest(counted: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the digest of a multiset of tensor digests, given as ``(digest, count)`` in any order."""
    hasher = _BAG.copy()
    many: list[tuple[bytes, int]] = []
    once: list[bytes] = []
    for digest, count in counted:
        if count <= _FEW:
            once += [digest] * count
        else:
            many.append((digest, count))
    if not many:
        return hasher.update(b"".join(sorted(once))).digest()
    for digest, count in sorted([*many, *((digest, 1) for digest in once)]):
        for done in range(0, count, _FEW):
            hasher.update(digest * min(_FEW, count - done))
    return hasher.digest()


def tree_bag(places: Iterable[Place], digest_of: Callable[[Tensor], bytes]) -> bytes:
    """Return the bag of a tree from the places of its tensors (`survey`)."""
    return bag_digest((digest_of(place.tensor), place.count) for place in places)


def _node(kind: bytes, payload: bytes) -> bytes:
    return _NODE.copy().update(kind + payload).digest()


_KINDS = {
    name: field(name.encode())
    for name in (
        "none",
        "bool",
        "int",
        "float",
        "complex",
        "str",
        "bytes",
        "tensor",
        "strings",
        "map",
        "list",
        "tuple",
        "set",
        "frozenset",
        "composite",
        "opaque",
    )
}


def root_digest(tree: Tree, digest_of: Callable[[Tensor], bytes]) -> bytes:
    """Return the digest of a tree that `survey` accepts.

    Parameters
    ----------
    tree : Tree
    digest_of : callable
        The digest of each of its tensors.

    Raises
    ------
    TreeError
        It holds a value that is no node.
    """
    return _Digester(digest_of).node(tree)


def node_digest(tree: Tree) -> bytes:
    """Return the digest of a tree in memory, reading its tensors.

    Raises
    ------
    LimitError
        The tree is deeper than 64 levels or expands to more than 2^24 nodes.
    TreeError
        It holds a value that is no node.
    """
    survey(tree)
    return root_digest(tree, digest_tensor)


class _Digester:
    """Digests each container once, however often it is shared."""

    def __init__(self, digest_of: Callable[[Tensor], bytes]) -> None:
        self._digest_of = digest_of
        self._done: dict[int, bytes] = {}

    def node(self, node: Tree) -> bytes:
        if isinstance(node, Tensor):
            return _node(_KINDS["tensor"], self._digest_of(node))
        if not isinstance(node, dict | list | tuple | set | frozenset | Composite | Opaque):
            return _leaf(node)
        done = self._done.get(id(node))
        if done is None:
            done = self._done[id(node)] = self._container(node)
        return done

    def _container(self, node: Tree) -> bytes:
        if isinstance(node, dict):
            return _node(_KINDS["map"], self._map(node))
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return _node(_KINDS[kind], u64(len(node)) + b"".join(map(self.node, node)))
        if isinstance(node, set | frozenset):
            kind = "set" if isinstance(node, set) else "frozenset"
            return _node(_KINDS[kind], u64(len(node)) + b"".join(sorted(map(self.node, node))))
        if isinstance(node, Composite):
            payload = self._map({"attributes": node.attributes, "parts": node.parts})
            return _node(_KINDS["composite"], field(node.name.encode()) + payload)
        if isinstance(node, Opaque):
            return _node(_KINDS["opaque"], field(node.name.encode()) + self._map(node.parts))
        raise AssertionError

    def _map(self, mapping: dict) -> bytes:
        entries = sorted(encode_key(key) + self.node(child) for key, child in mapping.items())
        return u64(len(entries)) + b"".join(entries)


def _leaf(node: Tree) -> bytes:
    if isinstance(node, Strings):
        values = (v.encode() if isinstance(v, str) else v for v in node.values)
        if math.prod(node.shape) != len(node.values):
            raise TreeError(f"{len(node.values)} strings do not fill the shape {node.shape}")
        return _node(_KINDS["strings"], field(b"".join(map(u64, node.shape))) + b"".join(map(field, values)))
    kind, payload = _scalar(node)
    return _node(_KINDS[kind], payload)


def _scalar(node: Tree) -> tuple[str, bytes]:
    if node is None:
        return "none", b""
    if isinstance(node, bool):
        return "bool", b"\x01" if node else b"\x00"
    if isinstance(node, int):
        return "int", int_payload(node)
    if isinstance(node, float):
        return "float", struct.pack("<d", node)
    if isinstance(node, complex):
        return "complex", struct.pack("<dd", node.real, node.imag)
    if isinstance(node, str):
        return "str", node.encode()
    if isinstance(node, bytes):
        return "bytes", bytes(node)
    raise TreeError(f"{type(node).__name__} is not a node of a tree")
