"""Object graphs of TensorFlow checkpoints: changed field by field, over a fixed set of values.

Every value must be in the tree that is read, and the tree must be written as the same checkpoint: one in
sixteen is, to files.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.protobuf import BYTES, VARINT, bytes_field, fields, varint
from ckptfmt.errors import CkptError
from ckptfmt.frameworks.tensorflow.emit import emit
from ckptfmt.frameworks.tensorflow.graph import GRAPH_KEY
from ckptfmt.frameworks.tensorflow.objects import object_tree
from ckptfmt.frameworks.tensorflow.regraph import regraphed
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.tensor import Tensor
from tools.fuzz.mutation import mutate
from tools.fuzz.target import ROOT, Target

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

__all__ = ["OBJECT_GRAPHS"]

_GOLDEN = ROOT / "tests" / "golden" / "tensorflow" / "2.21" / "objects"
_PREFIXES = ("tf_keras_legacy-1", "tf_keras-1", "module-1", "keras3-1")
_NUMBERS = (0, 1, 2, 3, 5, 20, 127, 128, 2**31, 2**32, 2**63, 2**64 - 1)
_DEPTH = 3


def _graph(prefix: str) -> bytes:
    with read_bundle(_GOLDEN / prefix) as bundle:
        node = bundle.entries[GRAPH_KEY].node
    assert isinstance(node, Strings)  # noqa: S101 - a golden file
    return bytes(node.values[0])  # type: ignore[arg-type] # of bytes


def _keys() -> list[str]:
    found: set[str] = set()
    for prefix in _PREFIXES[:3]:
        with read_bundle(_GOLDEN / prefix) as bundle:
            found |= set(bundle.entries) - {GRAPH_KEY}
    return sorted(found)


def _values() -> dict[str, Tree]:
    return {
        key: Tensor.of(np.full(2, at)) if at % 7 else Strings((), (key.encode(),))
        for at, key in enumerate(_keys())
    }


_VALUES = _values()


def _seeds(_: Path) -> list[bytes]:
    return [*map(_graph, _PREFIXES), b"", b"\x0a\x00"]


def _mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed message: a field of it, or of a message in it, changed, doubled, moved or left out."""
    if rng.random() < 0.1:
        return mutate(data, rng, others)
    return _changed(data, rng, _DEPTH)


def _changed(data: bytes, rng: random.Random, depth: int) -> bytes:
    try:
        parts = [(n, kind, v if isinstance(v, int) else bytes(v)) for n, kind, v in fields(memoryview(data))]
    except CkptError:
        return mutate(data, rng, [data])
    if not parts or rng.random() < 0.05:
        return mutate(data, rng, [data])
    at = rng.randrange(len(parts))
    number, kind, value = parts[at]
    action = rng.random()
    if action < 0.75 and isinstance(value, int):
        parts[at] = (number, kind, rng.choice(_NUMBERS))
    elif action < 0.75 and isinstance(value, bytes):
        parts[at] = (number, kind, _changed(value, rng, depth - 1) if depth else _renamed(value, rng))
    elif action < 0.85:
        parts.insert(rng.randrange(len(parts) + 1), parts[at])
    elif action < 0.95:
        parts[at], parts[0] = parts[0], parts[at]
    else:
        del parts[at]
    return b"".join(_field(*part) for part in parts)


def _renamed(value: bytes, rng: random.Random) -> bytes:
    keys = [*_VALUES, "", "w", "save_counter", "_trainable_variables", "_iterations", "_variables", "0"]
    return rng.choice(keys).encode() if rng.random() < 0.6 else mutate(value, rng, [b"x/."])


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return bytes_field(number, value)
    if kind == VARINT:
        return varint(number << 3 | VARINT) + varint(value)
    return varint(number << 3 | BYTES) + varint(0)


def _run(data: bytes, place: Path) -> None:
    tree, findings = object_tree(data, _VALUES)
    assert isinstance(tree, dict)  # noqa: S101 - as it is made
    held = [tree.get("save_counter")]
    for group in ("model", "optimizer"):
        below = tree.get(group, {})
        held += below.values() if isinstance(below, dict) else []
    if {id(node) for node in held if node is not None} != {id(node) for node in _VALUES.values()}:
        raise AssertionError("a value of the bundle is not in the tree")
    known = regraphed(tree)
    written = {} if known is None else {**known.values}
    if known is not None and not written.items() >= _VALUES.items():
        raise AssertionError("a value would be written under another key")
    if known is not None and not findings and len(written) > len(_VALUES):
        raise AssertionError("a value would be written twice")
    noted = any(item.name == "ckptfmt.tree" for item in emit(tree).items)
    if known is not None and noted != bool(findings):
        raise AssertionError("a checkpoint that is whole is not written as it was")
    if zlib.crc32(data) % 16 == 0:
        root = ckptfmt.digest(tree).root
        ckptfmt.write(tree, place / "again", to="tensorflow", overwrite=True)
        if ckptfmt.digest(str(place / "again")).root != root:
            raise AssertionError("a tree that was read is not the same when written")


OBJECT_GRAPHS = (Target("object-graph", _seeds, _run, _mutate),)
