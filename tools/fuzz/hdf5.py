"""What we read of HDF5 files ourselves: superblocks, headers, heaps of strings, filters.

What goes through the HDF5 library is fuzzed in processes of its own by ``tools/campaigns/fuzz_hdf5.py``: it
is C code, and an input may end it.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.hdf5.budget import Budget
from ckptfmt.containers.hdf5.headers import attribute_values
from ckptfmt.containers.hdf5.heaps import HeapGuard, Heaps, largest_object
from ckptfmt.containers.hdf5.superblock import SIGNATURE, find_signature, read_superblock
from ckptfmt.errors import CkptError
from ckptfmt.storage.reader import MemoryReader
from tools.fuzz.target import Target

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HDF5", "library_seeds"]

_UNDEFINED = 2**64 - 1
_MOST_PLACES = 16
_CHUNK = 4096


def _superblock(end: int) -> bytes:
    return SIGNATURE + bytes((2, 8, 8, 0)) + struct.pack("<QQQQL", 0, _UNDEFINED, end, 48, 0)


def _attribute(name: bytes, value: bytes, version: int) -> bytes:
    parts = [name + b"\0", bytes(16), bytes(8)]
    if version == 1:
        parts = [part.ljust(-(-len(part) // 8) * 8, b"\0") for part in parts]
    head = struct.pack("<BBHHH", version, 0, len(name) + 1, 16, 8) + (b"\1" if version == 3 else b"")
    return head + b"".join(parts) + value


def _old_header(messages: list[tuple[int, bytes]]) -> bytes:
    body = b"".join(struct.pack("<HHB3x", kind, len(data), 0) + data for kind, data in messages)
    return struct.pack("<BxHLL4x", 1, len(messages), 1, len(body)) + body


def _new_header(messages: list[tuple[int, bytes]], *, ordered: bool) -> bytes:
    order = bytes(2) if ordered else b""
    body = b"".join(struct.pack("<BHB", kind, len(data), 0) + order + data for kind, data in messages)
    return b"OHDR" + bytes((2, 1 | (4 if ordered else 0))) + struct.pack("<H", len(body)) + body + bytes(4)


def _heap(*objects: bytes) -> bytes:
    body = b"".join(
        struct.pack("<HHLQ", index, 1, 0, len(data)) + data.ljust(-(-len(data) // 8) * 8, b"\0")
        for index, data in enumerate(objects, 1)
    )
    free = 4096 - 16 - len(body)
    return (b"GCOL\x01\0\0\0" + struct.pack("<Q", 4096) + body + struct.pack("<HHLQ", 0, 0, 0, free)).ljust(
        4096, b"\0"
    )


def _seeds(_: Path) -> list[bytes]:
    """Files that begin with pointers to strings, then a superblock, headers that continue, a heap."""
    made = []
    for version in (1, 2, 3):
        pointer = struct.pack("<LQL", 5, 1024, 1)
        messages = [
            (0x0C, _attribute(b"name", pointer * 2, version)),
            (0x10, struct.pack("<QQ", 768, 64)),
            (0, b""),
        ]
        old, new = _old_header(messages), _new_header(messages, ordered=version == 3)
        parts = {0: _superblock(5120), 256: old, 512: new, 768: b"OCHK", 960: pointer * 4}
        data = bytearray(1024)
        for at, part in parts.items():
            data[at : at + len(part)] = part
        made.append(bytes(data) + _heap(b"hello", b"", b"a string"))
    return made


def _structure(data: bytes, _: Path) -> None:
    reader = MemoryReader(data)
    find_signature(reader)
    places = [
        at for at in range(0, len(data), 256) if data[at : at + 4] == b"OHDR" or data[at : at + 1] == b"\1"
    ]
    for place in places[:_MOST_PLACES]:
        with contextlib.suppress(CkptError):
            for start, length in attribute_values(reader, 0, place).values():
                if start + length > len(data):
                    raise AssertionError(place)
    with contextlib.suppress(CkptError):
        budget = Budget(reader)
        if budget.longest_string() > len(data) or largest_object(data) > len(data):
            raise AssertionError(budget.longest_string())
        pointers = data[960:1024]
        texts = Heaps(reader, 0).strings(pointers[: len(pointers) // 16 * 16], budget, "x")
        if sum(map(len, texts)) > 2 * len(data) + (64 << 20):
            raise AssertionError(len(texts))
    HeapGuard(reader).look(0, memoryview(data))
    read_superblock(reader)


def _filter_seeds(_: Path) -> list[bytes]:
    from ckptfmt.containers.hdf5.filters import fletcher32

    data = np.arange(_CHUNK // 4, dtype="<i4")
    shuffled = np.ascontiguousarray(data.view(np.uint8).reshape(-1, 4).T).tobytes()
    summed = data.tobytes() + struct.pack("<L", fletcher32(data.view(np.uint8)))
    return [
        b"\0" + data.tobytes(),
        b"\1" + zlib.compress(data.tobytes()),
        b"\2" + shuffled,
        b"\3" + summed,
        b"\4"
        + zlib.compress(shuffled)
        + struct.pack("<L", fletcher32(np.frombuffer(zlib.compress(shuffled), "u1"))),
        b"\5" + zlib.compress(zlib.compress(data.tobytes())),
        b"\6" + zlib.compress(bytes(1 << 20)),
    ]


def _filters(data: bytes, _: Path) -> None:
    """Undo a pipeline that the first byte chooses; what comes out is as long as was asked for."""
    from ckptfmt.containers.hdf5.filters import DEFLATE, FLETCHER32, SHUFFLE, Filter, undo

    deflate, shuffle, checksum = Filter(DEFLATE, 4), Filter(SHUFFLE, 4), Filter(FLETCHER32, 0)
    pipelines = (
        (), (deflate,), (shuffle,), (checksum,), (shuffle, deflate, checksum), (deflate, deflate), (deflate,),
    )  # fmt: skip
    pipeline = pipelines[data[0] % len(pipelines)] if data else ()
    held = undo(data[1:], pipeline, 0, _CHUNK)
    if len(held) != _CHUNK:
        raise AssertionError(len(held))


def library_seeds() -> list[bytes]:
    """Return one file of every version of the library, with every kind of link, layout and type."""
    import h5py

    made = []
    for version in ("earliest", "v108", "latest"):
        memory = io.BytesIO()
        with h5py.File(memory, "w", libver=version) as file:
            file.attrs["text"] = "one"
            file.attrs["texts"] = ["a", "bé"]
            file.attrs["fixed"] = np.array([b"a", b"bcd"])
            file["a/b/c"] = np.arange(12.0).reshape(3, 4)
            file["a/soft"] = h5py.SoftLink("/a/b/c")
            file["hard"] = file["a/b/c"]
            file["a/self"] = file["a"]
            file["big"] = np.arange(5, dtype=">i4")
            file["flags"] = np.array([True, False])
            file["texts"] = ["x", "yy"]
            file["raw"] = np.ones(3, "V2")
            file["raw"].attrs["dtype"] = "bfloat16"
            file["null"] = h5py.Empty("f4")
            options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
            file.create_dataset("packed", data=np.arange(300.0).reshape(30, 10), chunks=(7, 3), **options)
            file.create_dataset("chunks", data=np.arange(300.0), chunks=(3,))
            for k in range(12):
                file[f"g/{k}"] = k
        made.append(memory.getvalue())
    return made


HDF5 = (
    Target("hdf5-structure", _seeds, _structure),
    Target("hdf5-filters", _filter_seeds, _filters, needs="h5py"),
)
