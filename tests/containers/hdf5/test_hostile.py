"""HDF5 files that lead out of themselves, lie about sizes, or were damaged: refused by name, in bounds."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.hdf5.headers import attribute_values
from ckptfmt.containers.hdf5.heaps import HeapGuard, largest_object
from ckptfmt.errors import CkptError, FormatError, LimitError, UnsupportedVersionError
from ckptfmt.storage.reader import MemoryReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from h5py import File

pytestmark = pytest.mark.framework
REASON = "needs the extra `hdf5`"
h5py = pytest.importorskip("h5py", reason=REASON)
Hdf5File = pytest.importorskip("ckptfmt.containers.hdf5.reader", reason=REASON).Hdf5File
outline = pytest.importorskip("ckptfmt.containers.hdf5.outline", reason=REASON).outline

SENTINEL = b"a secret that no checkpoint holds"
_MOST_BYTES = 64 << 20


def made(build: Callable[..., None], libver: str = "earliest") -> bytes:
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=libver) as file:
        build(file)
    return memory.getvalue()


def external_link(file: File) -> None:
    file["w"] = np.arange(3)
    file["ext"] = h5py.ExternalLink("secret.h5", "/w")


def external_link_on_the_way(file: File) -> None:
    file["layer/w"] = np.arange(3)
    file["layer/ext"] = h5py.ExternalLink("secret.h5", "/")
    file["kernel"] = h5py.SoftLink("/layer/ext/w")


def soft_link_out(file: File) -> None:
    file["a"] = h5py.SoftLink("/../secret.h5")


def soft_link_to_itself(file: File) -> None:
    file["a"] = h5py.SoftLink("/b")
    file["b"] = h5py.SoftLink("/a")


def virtual(file: File) -> None:
    layout = h5py.VirtualLayout((len(SENTINEL),), "u1")
    layout[:] = h5py.VirtualSource("secret.h5", "w", (len(SENTINEL),))
    file.create_virtual_dataset("v", layout)


def external_storage(file: File) -> None:
    file.create_dataset("x", (len(SENTINEL),), "u1", external=[("secret.bin", 0, len(SENTINEL))])


def reference(file: File) -> None:
    file["w"] = np.arange(3)
    file.create_dataset("r", data=file["w"].ref, dtype=h5py.ref_dtype)


def region_reference(file: File) -> None:
    file["w"] = np.arange(3)
    file.create_dataset("r", data=file["w"].regionref[:2], dtype=h5py.regionref_dtype)


def sequences(file: File) -> None:
    file.create_dataset("s", (2,), h5py.vlen_dtype("i4"))


def hidden_sequences(file: File) -> None:
    file.create_dataset("s", (2,), [("a", "i4"), ("b", h5py.string_dtype())])


def other_filter(file: File) -> None:
    file.create_dataset("x", data=np.arange(9), scaleoffset=0)


REFUSED = {
    "external link": (external_link, "ext", "external link"),
    "external link on the way": (external_link_on_the_way, "layer/ext", "external link"),
    "soft link out": (soft_link_out, "a", "soft link to nothing"),
    "soft link to itself": (soft_link_to_itself, "a", "soft link to nothing"),
    "virtual dataset": (virtual, "v", "virtual dataset"),
    "external storage": (external_storage, "x", "in other files"),
    "reference": (reference, "r", "references"),
    "region reference": (region_reference, "r", "references"),
    "sequences": (sequences, "s", "sequences of any length"),
    "hidden sequences": (hidden_sequences, "s", "of any length"),
    "filter": (other_filter, "x", r"filter 6 \(scaleoffset\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_what_leads_out_of_a_file_is_refused_by_name(
    kind: str, libver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, name, told = REFUSED[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(SENTINEL)
    with h5py.File("secret.h5", "w") as file:
        file["w"] = np.frombuffer(SENTINEL, "u1")
    with h5py.File("a.h5", "w", libver=libver) as file:
        build(file)
    with pytest.raises((UnsupportedVersionError, FormatError), match=told) as error:
        Hdf5File("a.h5")
    assert error.value.tensor == name
    assert error.value.file == "a.h5"


def four_tebibytes(file: File) -> None:
    file.create_dataset("x", (1 << 40,), "f4")


def four_tebibytes_in_chunks(file: File) -> None:
    file.create_dataset("x", (1 << 20, 1 << 20), "f4", chunks=(1 << 10, 1 << 10), compression="gzip")
    file["x"][0, 0] = 1


def one_large_chunk(file: File) -> None:
    file.create_dataset("x", (9,), "f4", chunks=(1 << 28,), maxshape=(None,), compression="gzip")


def many_large_chunks(file: File) -> None:
    data = file.create_dataset("x", (1 << 30,), "u1", chunks=(1 << 20,), compression="gzip")
    for start in range(0, 1 << 30, 1 << 20):  # deflated once: the same bytes for each
        data.id.write_direct_chunk((start,), ZEROS)


def many_names(file: File) -> None:
    above = file.create_group("0")
    for _ in range(40):  # two names for each group: 2^40 paths
        below = above.create_group("a")
        above["b"] = below
        above = below
    above["w"] = 1


def many_texts(file: File) -> None:
    file.create_dataset("x", (1 << 40,), h5py.string_dtype(), chunks=(1 << 10,))


ZEROS = zlib.compress(bytes(1 << 20), 9)
LARGE = {
    "4 TiB": (four_tebibytes, "x"),
    "4 TiB in chunks": (four_tebibytes_in_chunks, "x"),
    "chunks of zeros": (many_large_chunks, "x"),
    "names": (many_names, None),
    "texts": (many_texts, "x"),
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_small_file_never_becomes_large(kind: str) -> None:
    build, name = LARGE[kind]
    data = made(build)
    assert len(data) < 8 << 20
    tracemalloc.start()
    try:
        start = time.monotonic()
        with pytest.raises(LimitError) as error:
            Hdf5File(MemoryReader(data, "a.h5"))
        taken, (_, peak) = time.monotonic() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < _MOST_BYTES + 4 * len(data)
    assert taken < 60  # a bound against running for ever, not a measure
    assert name is None or error.value.tensor == name


def test_a_chunk_that_no_one_wrote_costs_nothing() -> None:
    with Hdf5File(MemoryReader(made(one_large_chunk))) as found:
        assert found.datasets["x"].node.numpy().tolist() == [0] * 9


def test_bytes_belong_to_one_dataset() -> None:
    def build(file: File) -> None:
        file["a"] = np.arange(100)
        file["b"] = np.arange(100)
        places.extend(file[name].id.get_offset() for name in "ab")

    places: list[int] = []
    data = bytearray(made(build))
    assert Hdf5File(MemoryReader(bytes(data))).datasets["b"].node.numpy()[99] == 99
    at = data.index(struct.pack("<QQ", places[1], 800))
    data[at : at + 8] = struct.pack("<Q", places[0] + 8)
    with pytest.raises(FormatError, match="belong to another dataset") as error:
        Hdf5File(MemoryReader(bytes(data), "a.h5"))
    assert error.value.tensor == "b"
    data[at : at + 8] = struct.pack("<Q", len(data) - 8)
    with pytest.raises(FormatError):
        Hdf5File(MemoryReader(bytes(data), "a.h5"))


def test_a_shape_larger_than_what_is_stored_is_refused() -> None:
    def build(file: File) -> None:
        file["a"] = np.arange(7, dtype="i8")

    data = bytearray(made(build, "earliest"))
    extent = struct.pack("<QQ", 7, 7)
    at = data.index(extent)
    data[at : at + 16] = struct.pack("<QQ", 9, 9)
    with pytest.raises(FormatError, match=r"needs 72 bytes; 56 are stored|cannot read"):
        Hdf5File(MemoryReader(bytes(data), "a.h5"))


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize("place", ["attribute", "dataset"])
def test_many_strings_that_are_one_long_string_are_refused(place: str, libver: str) -> None:
    def build(file: File) -> None:
        file.attrs["long"] = "x" * (3 << 20)
        file.attrs["some"] = ["y"] * 1000
        file["texts"] = ["z"] * 1000
        places.update(root=h5py.h5o.get_info(file.id).addr, dataset=file["texts"].id.get_offset())

    places: dict[str, int] = {}
    data = bytearray(made(build, libver))
    with Hdf5File(MemoryReader(bytes(data))) as found:
        assert found.root.attributes["some"].values == ("y",) * 1000
    values = attribute_values(MemoryReader(bytes(data)), 0, places["root"])
    at = values[b"long"][0]
    start = values[b"some"][0] if place == "attribute" else places["dataset"]
    pointer = data[at : at + 16]
    data[start : start + 16_000] = 1000 * pointer
    with pytest.raises(FormatError) as error:  # a wrong checksum of the header is noticed before
        Hdf5File(MemoryReader(bytes(data), "a.h5"))
    if libver == "earliest" or place == "dataset":
        assert isinstance(error.value, LimitError)
        assert error.value.tensor == ("/@some" if place == "attribute" else "texts")


@pytest.mark.parametrize("pointer", [(2**32 - 1, None, None), (6, None, 77), (5, 8, 1), (5, 2**63, 1)])
def test_a_pointer_to_no_string_is_refused(pointer: tuple[int | None, ...]) -> None:
    def build(file: File) -> None:
        file["texts"] = ["hello"] * 3
        places.append(file["texts"].id.get_offset())

    places: list[int] = []
    data = bytearray(made(build))
    old = struct.unpack_from("<LQL", data, places[0])
    new = [was if value is None else value for value, was in zip(pointer, old, strict=True)]
    struct.pack_into("<LQL", data, places[0], *new)
    with pytest.raises(FormatError) as error:
        Hdf5File(MemoryReader(bytes(data), "a.h5"))
    assert error.value.tensor in ("texts", None)


def heap(*objects: tuple[int, int, bytes], size: int = 4096) -> bytes:
    """A global heap of (index, length, bytes) objects, as section III.E of the format has it."""
    body = b"".join(
        struct.pack("<HHLQ", index, 1, 0, length) + data.ljust(-(-len(data) // 8) * 8, b"\0")
        for index, length, data in objects
    )
    return (b"GCOL\x01\0\0\0" + struct.pack("<Q", size) + body).ljust(size, b"\0")


GOOD = heap((1, 5, b"hello"), (2, 0, b""), (0, 4096 - 16 - 24 - 16, b""))
DAMAGED = {
    "endless": heap((1, 2**64 - 1, b"hello")),
    "long": heap((1, 5000, b"hello")),
    "free space of no length": heap((1, 5, b"hello"), (0, 0, b"")),
    "free space too long": heap((1, 5, b"hello"), (0, 4096, b"")),
    "longer than the file": heap((1, 5, b"hello"), (0, 1 << 30, b""), size=1 << 20)[:4096],
    "shorter than its head": b"GCOL\x01\0\0\0" + struct.pack("<Q", 8) + bytes(4080),
    "cut": b"GCOL\x01\0\0",
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("split", [None, 1, 2, 3, 4])
def test_a_damaged_heap_is_found_however_it_comes_into_sight(kind: str, split: int | None) -> None:
    data = bytes(40) + DAMAGED[kind] + bytes(4 if kind != "cut" else 0)
    guard = HeapGuard(MemoryReader(data, "a.h5"))
    first, last = (40, 60) if split is None else (0, 40 + split) if split % 2 else (40 + split, len(data))
    with pytest.raises(FormatError, match="heap") as error:
        guard.look(first, memoryview(data)[first:last])
    assert error.value.offset == 40


def test_a_free_list_that_never_ends_is_refused() -> None:
    def build(file: File) -> None:
        for name in ("HEAP", "some", "names"):
            file[name] = 1
        del file["some"]

    data = bytearray(made(build))
    assert list(Hdf5File(MemoryReader(bytes(data))).datasets) == ["HEAP", "names"]
    at = next(
        at
        for at in range(len(data))
        if data[at : at + 8] == b"HEAP\0\0\0\0" and data[at + 8 : at + 9] != b"n"
    )
    _, size, block, address = struct.unpack_from("<8sQQQ", data, at)
    assert block < size
    struct.pack_into("<Q", data, address + block, block)
    with pytest.raises(FormatError, match="free blocks") as error:
        Hdf5File(MemoryReader(bytes(data), "a.h5"))
    assert error.value.offset == at


def test_a_sound_heap_passes() -> None:
    data = bytes(40) + GOOD + heap((0, 4080, b""))
    HeapGuard(MemoryReader(data)).look(0, memoryview(data))
    assert largest_object(data) == 5
    assert largest_object(b"") == 0


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
def test_a_changed_byte_is_an_error_of_ours_or_nothing(libver: str) -> None:
    def build(file: File) -> None:
        file["a/b"] = np.arange(6.0).reshape(2, 3)
        file["t"] = ["x", "yy"]
        file["a"].attrs["names"] = np.array([b"n0", b"n1"])
        file.create_dataset("c", data=np.arange(30), chunks=(7,), compression="gzip", fletcher32=True)

    good = made(build, libver)
    rng = np.random.default_rng(3)
    for _ in range(400):
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        with contextlib.suppress(CkptError):
            outline(MemoryReader(bytes(data)))
            with Hdf5File(MemoryReader(bytes(data))) as found:
                for dataset in found.datasets.values():
                    if hasattr(dataset.node, "numpy"):
                        dataset.node.numpy()
