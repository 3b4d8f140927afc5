"""Targets of the native format: the manifest, trees, whole checkpoints, shards and stored chunks.

Digests are made right again behind a change, so that it reaches the rules and not only the checksums.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import zstandard
from blake3 import blake3

import ckptfmt
from ckptfmt.errors import FormatError, LimitError
from ckptfmt.format.sealed import seal
from ckptfmt.tree.canonical import dumps, loads, parse
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.document import decode_tree, encode_tree
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey, tensors
from tools.fuzz.oracles import native_alike
from tools.fuzz.target import ROOT, Target, as_json, fresh, state
from tools.make_vectors.parts import other_tree, planes
from tools.make_vectors.writer import Files, draft
from tools.make_vectors.writer import Tensor as SpecTensor

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NATIVE"]

_MANIFEST_TAIL = 75
_MOST_SHARED = 12  # each can double a tree
_TENSORS = (
    SpecTensor("f32", (2, 3), bytes(range(24))),
    SpecTensor("u4", (3,), b"\x21\x03"),
    SpecTensor("f64", (2, 0), b""),
    SpecTensor("bool", (), b"\1"),
    SpecTensor("i64", (4097,), bytes(8 * 4097)),
)


def _native(place: Path) -> Path:
    """Return a checkpoint with raw shards and an extra file, made once."""
    folder = place / "native"
    if not folder.exists():
        ckptfmt.save(state(), folder, shard_size=40, extra={"a": [1]}, extra_files={"note.txt": b"hello"})
    return folder


def _manifest_seeds(place: Path) -> list[bytes]:
    coded = place / "coded"
    ckptfmt.save({"z": np.zeros(5000), "b": np.arange(7, dtype="u1")}, coded, codec="zstd")
    return [(path / "manifest.json").read_bytes()[:-_MANIFEST_TAIL] for path in (_native(place), coded)]


def _resealed(body: bytes) -> bytes:
    """Return a document whose self digest is right again, so that the rules behind it are reached."""
    return body + b',"self":"' + blake3(body).hexdigest().encode() + b'"}'


def _manifest(data: bytes, place: Path) -> None:
    folder = _native(place)
    (folder / "manifest.json").write_bytes(_resealed(data))
    native_alike(folder)


def _checkpoint_seeds(_: Path) -> list[bytes]:
    manifests = sorted((ROOT / "spec" / "vectors" / "valid").rglob("manifest.json"))
    found = [json.dumps(json.loads(path.read_bytes())["tree"]).encode() for path in manifests]
    return [data for data in found if len(data) < 3000]


def _checkpoint(data: bytes, place: Path) -> None:
    """A tree of any form in a checkpoint whose digests are right, where the second writer can make one."""
    folder = fresh(place / "checkpoint")
    for name, content in _with_tree(data).items():
        (folder / name).write_bytes(content)
    native_alike(folder)


def _with_tree(data: bytes) -> Files:
    """Return the files of a checkpoint of a tree; where that cannot be, of another with it put in."""
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise FormatError(str(error)) from None
    try:
        if data.count(b'"shared"') > _MOST_SHARED:
            raise LimitError("a tree that the second writer could take long for")
        return draft(_with_tensors(tree)).seal()
    except Exception:  # noqa: BLE001 - it checks nothing, and falls over what is not as it must be
        return _put_in(tree)


def _put_in(tree: object) -> Files:
    try:
        return other_tree(tree)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON: {error}") from None


def _with_tensors(form: object) -> object:
    """Return a form with one of a few tensors in place of each ordinal."""
    match form:
        case ["tensor", int(ordinal)] if 0 <= ordinal < 100 and ordinal is not True and ordinal is not False:
            return _TENSORS[ordinal % len(_TENSORS)]
        case [*items]:
            return [_with_tensors(item) for item in items]
    return form


def _shard_seeds(place: Path) -> list[bytes]:
    return [next(iter(sorted(_native(place).glob("data-*")))).read_bytes()]


def _shard(data: bytes, place: Path) -> None:
    """A changed shard of an otherwise good checkpoint: nothing but the shard itself may pass."""
    folder = _native(place)
    path = next(iter(sorted(folder.glob("data-*"))))
    original = path.read_bytes()
    path.write_bytes(data)
    try:
        good = ckptfmt.check(folder).ok
    finally:
        path.write_bytes(original)
    if good != (data == original):
        raise AssertionError("a changed shard was not found")


def _tree_seeds(_: Path) -> list[bytes]:
    made, _findings = as_tree(state())
    order = {id(tensor): i for i, (_path, tensor) in enumerate(tensors(made))}
    return [dumps(encode_tree(made, lambda tensor: order[id(tensor)]))]


def _tree(data: bytes, _: Path) -> None:
    document = loads(data)
    table = [Tensor.of(np.zeros(2, "f4")) for _ in range(6)]
    rows = {tensor.identity: i for i, tensor in enumerate(table)}
    made = decode_tree(document, table)
    survey(made)
    again = dumps(encode_tree(made, lambda tensor: rows[tensor.identity]))
    if encode_tree(decode_tree(loads(again), table), lambda tensor: rows[tensor.identity]) != loads(again):
        raise AssertionError("a tree that was read is not written the same")


def _json_seeds(_: Path) -> list[bytes]:
    return [seal({"a": [1, "x"], "b": {"c": None}}), b'{"a":[1,{"b":"\\u0001"}]}']


def _json(data: bytes, _: Path) -> None:
    parse(data)
    loads(data)


_RAMP = np.arange(1000, dtype="<f4").tobytes()


def _coded_seeds(_: Path) -> list[bytes]:
    plain = {b"\0": _RAMP, b"\1": planes(_RAMP, "f32")}
    compressors = (
        zstandard.ZstdCompressor(),
        zstandard.ZstdCompressor(write_checksum=True),
        zstandard.ZstdCompressor(write_content_size=False),
        zstandard.ZstdCompressor(level=19),
    )
    frames = [codec + one.compress(data) for codec, data in plain.items() for one in compressors]
    endless = zstandard.ZstdCompressor().compressobj()
    bomb = b"\0" + b"".join(endless.compress(bytes(1 << 20)) for _ in range(512)) + endless.flush()
    return [*frames, *(codec + data for codec, data in plain.items()), bomb, frames[0] + frames[0][1:], b"\0"]


def _coded(data: bytes, place: Path) -> None:
    """Any bytes as the stored form of a chunk, their own digest right; the first says the codec."""
    folder = fresh(place / "coded")
    codec = ("zstd", "planes+zstd")[data[0] & 1] if data else "zstd"
    made = draft(SpecTensor("f32", (1000,), _RAMP), codec=codec, coder=lambda _, __: data[1:])
    for name, content in made.seal().items():
        (folder / name).write_bytes(content)
    native_alike(folder)


NATIVE = (
    Target("manifest", _manifest_seeds, _manifest, as_json(b"}")),
    Target("checkpoint", _checkpoint_seeds, _checkpoint, as_json(b"")),
    Target("coded", _coded_seeds, _coded),
    Target("shard", _shard_seeds, _shard),
    Target("tree", _tree_seeds, _tree, as_json(b"")),
    Target("json", _json_seeds, _json),
)
