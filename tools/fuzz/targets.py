"""What is fed to what. A target may end normally or in a `CkptError`; anything else is a finding.

An input that is read is read again and must be the same. Nothing of it may be executed: the seeds hold
pickles that would create the file `SENTINEL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

import ckptfmt
from ckptfmt.containers.pickle.interpreter import interpret
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.registry import read_foreign
from ckptfmt.storage.reader import MemoryReader
from tools.fuzz.bundles import BUNDLES
from tools.fuzz.chainer import CHAINER
from tools.fuzz.dcp import DCP
from tools.fuzz.hdf5 import HDF5
from tools.fuzz.keras import KERAS
from tools.fuzz.native import NATIVE
from tools.fuzz.object_graphs import OBJECT_GRAPHS
from tools.fuzz.old_torch import OLD_TORCH
from tools.fuzz.oracles import equal_to_numpy, equal_to_safetensors, equal_to_zipfile, reads_alike
from tools.fuzz.programs import PROGRAMS
from tools.fuzz.real_torch import REAL_TORCH
from tools.fuzz.structure import mutate_npy, mutate_pickle, mutate_safetensors, mutate_zip
from tools.fuzz.target import SENTINEL, Target, archive, as_json, state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["TARGETS"]


def _written(tree: object, path: Path, **options: object) -> bytes:
    """Return the bytes of a tree written to a single file."""
    native = path.with_name(f"{path.name}.native")
    ckptfmt.save(tree, native)
    with ckptfmt.load(native) as checkpoint:
        ckptfmt.write(checkpoint.tree, path, **options)  # type: ignore[arg-type] # options of each format
    return path.read_bytes()


def _zip_seeds(place: Path) -> list[bytes]:
    plain = archive({"a/b": b"hello" * 9, "c": b"", "a/d": bytes(range(256))})
    np.savez_compressed(place / "deflated.npz", a=np.zeros(100), b=np.arange(9))
    return [plain, (place / "deflated.npz").read_bytes(), archive({})]


def _zip(data: bytes, _: Path) -> None:
    opened = ZipArchive(MemoryReader(data))
    members = {}
    for name in opened.entries:
        member = opened.open(name)
        members[name] = bytes(member.read(0, member.size))
        if member.read(0, member.size) != members[name]:
            raise AssertionError(name)
    opened.findings()
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
        opened = ZipArchive(MemoryReader(data))
        member = opened.open(next(name for name in opened.entries if name.endswith("data.pkl")))
        made.append(member.read(0, member.size))
    return [*made, *_EVIL]


def _torch_pickle(data: bytes, place: Path) -> None:
    storages = {f"archive/data/{key}": bytes(range(64)) for key in range(8)}
    _torch(archive({"archive/data.pkl": data, "archive/version": b"3\n", **storages}), place)


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
    _npz(archive({"a.npy": data}), place)
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


def _detect_seeds(place: Path) -> list[bytes]:
    seeds = [*_torch_seeds(place), *_npz_seeds(place), *_safetensors_seeds(place), *_npy_seeds(place)[:1]]
    texts = [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", b"<!DOCTYPE html><html>"]
    heads = [b"\x89HDF\r\n\x1a\n", b"\x1f\x8b\x08", b"GGUF\x03", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."]
    return [*seeds, *texts, *(head.ljust(600, b"\0") for head in heads)]


def _detect(data: bytes, place: Path) -> None:
    path = place / "input.bin"
    path.write_bytes(data)
    found = ckptfmt.detect(path)
    try:
        ckptfmt.read(path).close()
    except ckptfmt.UnknownFormatError as error:
        raise AssertionError(f"detected as {found.name}, then unknown") from error


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
        Target("safetensors-index", _index_seeds, _index, as_json(b"")),
        *OLD_TORCH,
        *PROGRAMS,
        *BUNDLES,
        *CHAINER,
        *OBJECT_GRAPHS,
        *DCP,
        *KERAS,
        *HDF5,
        *NATIVE,
        Target("detect", _detect_seeds, _detect, mutate_zip),
        REAL_TORCH,
    )
}
