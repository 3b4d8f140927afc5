"""What is fed to what. A target may end normally or in a `CkptError`; anything else is a finding.

An input that is read is read again and must be the same. Nothing of it may be executed: the seeds hold
pickles that would create the file `SENTINEL`.
"""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

import ckptfmt
from ckptfmt.containers.pickle.interpreter import interpret
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.containers.zip.writer import ZipWriter
from ckptfmt.errors import FormatError, LimitError
from ckptfmt.format.sealed import seal
from ckptfmt.registry import read_foreign
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.canonical import dumps, loads, parse
from ckptfmt.tree.document import decode_tree, encode_tree
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey, tensors
from tools.fuzz.mutation import mutate, mutate_json
from tools.fuzz.oracles import (
    equal_to_numpy,
    equal_to_safetensors,
    equal_to_zipfile,
    native_alike,
    reads_alike,
)
from tools.fuzz.structure import mutate_npy, mutate_pickle, mutate_safetensors, mutate_zip
from tools.make_vectors.parts import other_tree
from tools.make_vectors.writer import Files, draft
from tools.make_vectors.writer import Tensor as SpecTensor

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

__all__ = ["CORPUS", "SENTINEL", "TARGETS", "Target", "corpus", "fresh"]

SENTINEL = "fuzz-was-executed"
ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "corpus"
_MANIFEST_TAIL = 75
_MOST_SHARED = 12  # each can double a tree
_TENSORS = (
    SpecTensor("f32", (2, 3), bytes(range(24))),
    SpecTensor("u4", (3,), b"\x21\x03"),
    SpecTensor("f64", (2, 0), b""),
    SpecTensor("bool", (), b"\1"),
    SpecTensor("i64", (4097,), bytes(8 * 4097)),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A parser under test.

    Attributes
    ----------
    name : str
    seeds : callable
        Makes the first inputs in an empty directory.
    run : callable
        Feeds one input; may write in the directory given.
    change : callable
        Returns a changed input, given the random numbers to use and other inputs to take pieces from.
    """

    name: str
    seeds: Callable[[Path], list[bytes]]
    run: Callable[[bytes, Path], None]
    change: Callable[[bytes, random.Random, Sequence[bytes]], bytes] = mutate


def _as_json(end: bytes) -> Callable[[bytes, random.Random, Sequence[bytes]], bytes]:
    """Return what changes inputs as JSON documents that `end` completes."""
    return partial(mutate_json, end=end)


def corpus(name: str) -> list[bytes]:
    """Return the kept inputs of a target, sorted by file name."""
    folder = CORPUS / name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def state() -> dict[object, object]:
    """Return a small tree of many kinds."""
    weight = np.arange(6, dtype="f4").reshape(2, 3)
    return {
        "model": {"w": weight, "tied": weight, "t": weight.T, "empty": np.zeros((2, 0)), "i": np.int64(5)},
        "names": np.array(["a", "é"]),
        "step": 7,
        "list": [1.5, None, (True, b"x", 2**70), {1, 2}],
        1: "one",
    }


def _archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    writer = ZipWriter(file)
    for name, data in members.items():
        writer.add(name, len(data), [data])
    writer.close()
    return file.getvalue()


def _written(tree: object, path: Path, **options: object) -> bytes:
    """Return the bytes of a tree written to a single file."""
    native = path.with_name(f"{path.name}.native")
    ckptfmt.save(tree, native)
    with ckptfmt.load(native) as checkpoint:
        ckptfmt.write(checkpoint.tree, path, **options)  # type: ignore[arg-type] # options of each format
    return path.read_bytes()


def _zip_seeds(place: Path) -> list[bytes]:
    plain = _archive({"a/b": b"hello" * 9, "c": b"", "a/d": bytes(range(256))})
    np.savez_compressed(place / "deflated.npz", a=np.zeros(100), b=np.arange(9))
    return [plain, (place / "deflated.npz").read_bytes(), _archive({})]


def _zip(data: bytes, _: Path) -> None:
    archive = ZipArchive(MemoryReader(data))
    members = {}
    for name in archive.entries:
        member = archive.open(name)
        members[name] = bytes(member.read(0, member.size))
        if member.read(0, member.size) != members[name]:
            raise AssertionError(name)
    archive.findings()
    equal_to_zipfile(data, members)


def _file_target(suffix: str, kind: str) -> Callable[[bytes, Path], None]:
    def run(data: bytes, place: Path) -> None:
        path = place / f"input{suffix}"
        path.write_bytes(data)
        reads_alike(lambda: read_foreign(path, kind), place, data)

    return run


_torch = _file_target(".pt", "torch")
_npz = _file_target(".npz", "npz")
_safetensors_file = _file_target(".safetensors", "safetensors")


_EVIL = (
    b"cos\nsystem\n(S'touch " + SENTINEL.encode() + b"'\ntR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c"
    + bytes([6 + len(SENTINEL)])
    + b"touch "
    + SENTINEL.encode()
    + b"\x85R.",
    b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR.",
)


def _pickle_seeds(_: Path) -> list[bytes]:
    import collections
    import pickle  # makes seeds; nothing here reads with it

    values = [
        {"a": [1, 2.5, None, True], "b": ("x", b"y", {1, 2}), 3: 2**70},
        collections.OrderedDict(a=1, b=complex(1, 2)),
        np.arange(6.0).reshape(2, 3),
        np.float32(3),
        {"nested": [[[[[]]]]], "set": frozenset((1, 2)), "slice": slice(1, 2)},
    ]
    made = [pickle.dumps(value, protocol) for value in values for protocol in (0, 2, 4, 5)]
    return [*made, *_EVIL]


def _pickle(data: bytes, _: Path) -> None:
    interpret(data)


def _torch_seeds(place: Path) -> list[bytes]:
    return [_written(state(), place / "seed.pt"), _written({"w": np.zeros(3)}, place / "small.pt")]


def _torch_pickle_seeds(place: Path) -> list[bytes]:
    made = []
    for data in _torch_seeds(place):
        archive = ZipArchive(MemoryReader(data))
        name = next(name for name in archive.entries if name.endswith("data.pkl"))
        member = archive.open(name)
        made.append(member.read(0, member.size))
    return [*made, *_EVIL]


def _torch_pickle(data: bytes, place: Path) -> None:
    storages = {f"archive/data/{key}": bytes(range(64)) for key in range(8)}
    _torch(_archive({"archive/data.pkl": data, "archive/version": b"3\n", **storages}), place)


def _npz_seeds(place: Path) -> list[bytes]:
    np.savez(
        place / "plain.npz", a=np.arange(4), b=np.array(None), c=np.asfortranarray(np.ones((2, 3), ">f4"))
    )
    return [_written(state(), place / "seed.npz"), (place / "plain.npz").read_bytes()]


def _npy_seeds(place: Path) -> list[bytes]:
    arrays = [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.array(None),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.zeros((2, 0)),
        np.array([(1, 2.5)], dtype=[("x", "<i4"), ("y", "<f8", (2,))]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([{"evil": 1}], dtype=object),
    ]
    made = []
    for array in arrays:
        np.save(place / "seed.npy", array)
        made.append((place / "seed.npy").read_bytes())
    return made


def _npy(data: bytes, place: Path) -> None:
    _npz(_archive({"a.npy": data}), place)
    with read_foreign(place / "input.npz", "npz") as checkpoint:
        equal_to_numpy(data, cast("dict", checkpoint.tree)["a"])


def _safetensors_seeds(place: Path) -> list[bytes]:
    plain = {"w": np.arange(6, dtype="f4"), "h": np.ones((2, 2), "f2")}
    return [_written(state(), place / "seed.safetensors"), _written(plain, place / "plain.safetensors")]


def _safetensors(data: bytes, place: Path) -> None:
    _safetensors_file(data, place)
    equal_to_safetensors(data)


def _index_seeds(place: Path) -> list[bytes]:
    sharded = _sharded(place)
    return [(sharded / "model.safetensors.index.json").read_bytes()]


def _sharded(place: Path) -> Path:
    """Return a folder of shards with an index, made once."""
    folder = place / "sharded"
    if not folder.exists():
        with_two = {"a": np.arange(8.0), "b": np.ones(8), "c": np.zeros(3)}
        ckptfmt.save(with_two, place / "sharded.native")
        with ckptfmt.load(place / "sharded.native") as checkpoint:
            ckptfmt.write(checkpoint.tree, folder, to="safetensors", shard_size=100)
    return folder


def _index(data: bytes, place: Path) -> None:
    folder = _sharded(place)
    (folder / "model.safetensors.index.json").write_bytes(data)
    reads_alike(lambda: ckptfmt.read(folder), place, data)


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
    from blake3 import blake3

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
    from ckptfmt.tree.capture import as_tree

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


def _detect_seeds(place: Path) -> list[bytes]:
    seeds = [*_torch_seeds(place), *_npz_seeds(place), *_safetensors_seeds(place), *_npy_seeds(place)[:1]]
    texts = [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", b"<!DOCTYPE html><html>"]
    heads = [b"\x89HDF\r\n\x1a\n", b"\x1f\x8b\x08", b"GGUF\x03", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."]
    return [*seeds, *texts, *(head.ljust(600, b"\0") for head in heads)]


def _detect(data: bytes, place: Path) -> None:
    path = place / "input.bin"
    path.write_bytes(data)
    ckptfmt.detect(path)


def _json_seeds(_: Path) -> list[bytes]:
    return [seal({"a": [1, "x"], "b": {"c": None}}), b'{"a":[1,{"b":"\\u0001"}]}']


def _json(data: bytes, _: Path) -> None:
    parse(data)
    loads(data)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("zip", _zip_seeds, _zip, mutate_zip),
        Target("pickle", _pickle_seeds, _pickle, mutate_pickle),
        Target("torch", _torch_seeds, _torch, mutate_zip),
        Target("torch-pickle", _torch_pickle_seeds, _torch_pickle, mutate_pickle),
        Target("npy", _npy_seeds, _npy, mutate_npy),
        Target("npz", _npz_seeds, _npz, mutate_zip),
        Target("safetensors", _safetensors_seeds, _safetensors, mutate_safetensors),
        Target("safetensors-index", _index_seeds, _index, _as_json(b"")),
        Target("manifest", _manifest_seeds, _manifest, _as_json(b"}")),
        Target("checkpoint", _checkpoint_seeds, _checkpoint, _as_json(b"")),
        Target("shard", _shard_seeds, _shard),
        Target("tree", _tree_seeds, _tree, _as_json(b"")),
        Target("json", _json_seeds, _json),
        Target("detect", _detect_seeds, _detect, mutate_zip),
    )
}


def fresh(place: Path) -> Path:
    """Return an empty directory."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
