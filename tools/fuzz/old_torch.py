"""Targets of fuzzing for old PyTorch files and bare pickles: streams, tar archives, arrays and tensors.

Inputs are changed as what they are: opcodes of one of the pickles, or one member of the archive, whose
headers are made right again.
"""

from __future__ import annotations

import io
import pickle  # makes seeds; nothing here reads with it
import struct
import tarfile
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

import ckptfmt
from ckptfmt.registry import read_foreign
from tools.fuzz.mutation import mutate
from tools.fuzz.oracles import reads_alike
from tools.fuzz.structure import mutate_pickle
from tools.fuzz.target import ROOT, SENTINEL, Target, state

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["OLD_TORCH"]

_GOLDEN = ROOT / "tests" / "golden" / "torch"
_HEAD = 13 + 5  # the pickles of the magic number and the version
_MOST = 1 << 16


def _reading(suffix: str, kind: str) -> Callable[[bytes, Path], None]:
    def run(data: bytes, place: Path) -> None:
        path = place / f"input{suffix}"
        path.write_bytes(data)
        reads_alike(lambda: read_foreign(path, kind), place, data)

    return run


def _stream_seeds(place: Path) -> list[bytes]:
    ckptfmt.save(state(), place / "native")
    with ckptfmt.load(place / "native") as checkpoint:
        ckptfmt.write(checkpoint.tree, place / "seed.pt", to="torch-legacy")
    ckptfmt.write({"w": ckptfmt.Tensor.of(np.zeros(3))}, place / "small.pt", to="torch-legacy")
    golden = [_GOLDEN / "1.0.0-py2.7" / "views.pt", _GOLDEN / "2.13.0" / "stream-dtypes.pt"]
    return [path.read_bytes() for path in (place / "seed.pt", place / "small.pt", *golden)]


def _mutate_stream(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed stream: opcodes behind its head, or plain bytes anywhere."""
    if len(data) < _HEAD or rng.random() < 0.1:
        return mutate(data, rng, others)
    return (data[:_HEAD] + mutate_pickle(data[_HEAD:], rng, [other[_HEAD:] for other in others]))[:_MOST]


def _tar_seeds(_: Path) -> list[bytes]:
    six = struct.pack("<q6f", 6, *range(6))
    storages = (
        pickle.dumps(1, 2) + b"(K\x07U\x03cpuctorch\nFloatStorage\nt." + six + b"](K\x08K\x07K\x01K\x02tae."
    )
    view = struct.pack("<ii5q", 2, 0, 2, 3, 3, 1, 0)
    tensors = pickle.dumps(1, 2) + b"(K\x01K\x07ctorch\nFloatTensor\nt." + view
    pickled = b"}(U\x01wU\x011QU\x01sU\x018QU\x01c(cn\nN\nU\x01fU\x01stQ)\x81u."
    small = _archived({"storages": storages, "tensors": tensors, "pickle": pickled})
    return [small, (_GOLDEN / "tar" / "state.pt").read_bytes()]


def _archived(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue().rstrip(b"\0") + bytes(2048)


def _members(data: bytes) -> dict[str, bytes]:
    """Return the members of an archive; none of what cannot be taken apart."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            found = [(info.name, archive.extractfile(info)) for info in archive.getmembers() if info.isreg()]
            return {name: file.read(_MOST) for name, file in found if file is not None}
    except (tarfile.TarError, ValueError, OverflowError, OSError, EOFError):
        return {}


def _mutate_tar(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    members = _members(data)
    if not members or rng.random() < 0.15:
        return mutate(data, rng, others)
    name = rng.choice(sorted(members))
    changed = mutate_pickle(members[name], rng, list(members.values()))
    return _archived({**members, name: changed})


def _bare_seeds(_: Path) -> list[bytes]:
    arrays = {"w": np.arange(6, dtype=">f4").reshape(2, 3), "f": np.asfortranarray(np.ones((2, 2)))}
    values = [arrays, {"b": np.ones(2, ml_dtypes.bfloat16), "s": np.array(["a"]), "n": np.float32(2)}]
    made = [pickle.dumps(value, protocol) for value in values for protocol in (0, 2, 4, 5)]
    tensors = [(_GOLDEN / folder / name).read_bytes() for folder, name in _TENSORS]
    evil = b"ctorch.storage\n_load_from_bytes\n(S'" + SENTINEL.encode() + b"'\ntRcos\nsystem\nR."
    return [*made, *tensors, evil]


_TENSORS = (("1.0.0-py2.7", "tensors-2.pkl"), ("2.13.0", "tensors-4.pkl"), ("2.13.0", "arrays-2.pkl"))

OLD_TORCH: tuple[Target, ...] = (
    Target("torch-legacy", _stream_seeds, _reading(".pt", "torch-legacy"), _mutate_stream),
    Target("torch-tar", _tar_seeds, _reading(".pt", "torch-tar"), _mutate_tar),
    Target("bare-pickle", _bare_seeds, _reading(".pkl", "pickle"), mutate_pickle),
)
"""Targets, to be registered with the others."""
