"""NPZ archives: what numpy writes is read, what we write numpy reads, what is hostile is refused."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.npy.objects import NONE_PICKLE
from ckptfmt.containers.npz import NpzMember, NpzWriter, read_members
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.errors import ChecksumError, ConversionError, FormatError, LimitError, TruncatedError
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.nodes import Composite
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

ARRAYS = {
    "a": np.arange(6, dtype="<f4").reshape(2, 3),
    "updater/model:main/W": np.arange(4, dtype=">i8"),
    "fortran": np.asfortranarray(np.arange(6, dtype="<c8").reshape(2, 3)),
    "scalar": np.array(5, "<i8"),
    "empty": np.zeros((2, 0), "?"),
    "file": np.ones(3, "<f2"),
    "é": np.array([b"a", b"bc"]),
    "large": np.arange(100_000, dtype="<i4"),
}


def members(data: bytes) -> dict[str, NpzMember]:
    return {member.name: member for member in read_members(ZipArchive(MemoryReader(data, "a.npz")))}


def read_all(data: bytes) -> None:
    for member in members(data).values():
        assert isinstance(member.node, Tensor)
        member.node.numpy()


def zipped(parts: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read(save: Callable[..., None]) -> None:
    file = io.BytesIO()
    save(file, **{name: array for name, array in ARRAYS.items() if name != "file"})
    found = members(file.getvalue())
    for name, member in found.items():
        assert isinstance(member.node, Tensor)
        assert member.shape == ARRAYS[name].shape
        assert member.descr == ARRAYS[name].dtype.str
        assert np.array_equal(member.node.numpy(), ARRAYS[name])
    assert found.keys() == ARRAYS.keys() - {"file"}


@pytest.mark.parametrize("compressed", [False, True])
def test_numpy_reads_what_we_write(compressed: bool) -> None:  # noqa: FBT001
    file = io.BytesIO()
    writer = NpzWriter(file, compressed=compressed)
    plain = {name: np.ascontiguousarray(a, a.dtype.newbyteorder("<")) for name, a in ARRAYS.items()}
    plain["scalar"] = plain["scalar"].reshape(())
    for name, array in plain.items():
        writer.add(name, array.dtype.str, array.shape, array.nbytes, lambda a=array: [a.tobytes()])  # type: ignore[misc]
    writer.close()
    file.seek(0)
    with np.load(file, allow_pickle=False) as judged:
        assert judged.files == list(plain)
        for name, array in plain.items():
            assert judged[name].dtype == array.dtype
            assert np.array_equal(judged[name], array)
            assert judged[name].shape == array.shape


def test_members_are_byte_for_byte_those_of_numpy() -> None:
    file, ours = io.BytesIO(), io.BytesIO()
    np.savez(file, a=ARRAYS["a"])
    writer = NpzWriter(ours)
    writer.add("a", "<f4", (2, 3), 24, lambda: [ARRAYS["a"].tobytes()])
    writer.close()
    with zipfile.ZipFile(file) as theirs, zipfile.ZipFile(ours) as mine:
        assert theirs.read("a.npy") == mine.read("a.npy")


def test_data_of_stored_members_is_aligned_for_any_processor() -> None:
    file = io.BytesIO()
    writer = NpzWriter(file)
    for name in ("a", "bc", "long name"):
        writer.add(name, "|u1", (3,), 3, lambda: [b"\xfe\xfd\xfc"])
    writer.close()
    data = file.getvalue()
    found = [at for at in range(len(data)) if data.startswith(b"\xfe\xfd\xfc", at)]
    assert len(found) == 3
    assert all(at % 64 == 0 for at in found)


def test_members_that_are_no_arrays_are_bytes() -> None:
    found = members(zipped({"a.npy": npy(np.ones(2)), "notes.txt": b"hello"}))
    assert found["notes.txt"].node == b"hello"
    assert found["notes.txt"].descr == "bytes"


def test_none_is_none_and_structures_are_composites() -> None:
    header = npy(np.array(1)).replace(b"<i8", b"|O ")[:128].replace(b"'|O '", b"'|O' ")
    found = members(zipped({"n.npy": header + NONE_PICKLE, "s.npy": npy(np.zeros(2, [("a", "f4")]))}))
    assert found["n"].node is None
    assert isinstance(found["s"].node, Composite)
    assert found["s"].descr == "structure"


HOSTILE: dict[str, tuple[Callable[[], bytes], type[FormatError]]] = {
    "no npy": (lambda: zipped({"a.npy": b"garbage"}), FormatError),
    "empty npy": (lambda: zipped({"a.npy": b""}), TruncatedError),
    "short npy": (lambda: zipped({"a.npy": npy(np.ones(9))[:-1]}), TruncatedError),
    "short, large": (lambda: zipped({"a.npy": npy(np.ones(9999))[:-1]}), TruncatedError),
    "long npy": (lambda: zipped({"a.npy": npy(np.ones(9999)) + b"x"}), FormatError),
    "an array in npy and none": (lambda: zipped({"a.npy": npy(np.ones(1)), "a": b"x"}), FormatError),
    "a shape of 2^40": (
        lambda: zipped({"a.npy": npy(np.ones(9)).replace(b"(9,), }          ", b"(1099511627776,), }")}),
        TruncatedError,
    ),
    "zeros deflated a thousandfold": (
        lambda: zipped({"a.npy": npy(np.zeros(130 << 20, "u1"))}, zipfile.ZIP_DEFLATED),
        LimitError,
    ),
    "a bomb that is no array": (lambda: zipped({"a": bytes(100 << 20)}, zipfile.ZIP_DEFLATED), LimitError),
    "unicode deflated a thousandfold": (
        lambda: zipped({"a.npy": npy(np.zeros(20 << 20, "<U1"))}, zipfile.ZIP_DEFLATED),
        LimitError,
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused_within_bounds(case: str) -> None:
    make, error = HOSTILE[case]
    data = make()
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            members(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.file is not None
    assert caught.value.file.startswith("a.npz")
    assert peak < 256 << 20


@pytest.mark.parametrize("declared", [0, 1, 100, 128, 135, 137])
def test_a_declared_size_that_lies_is_refused(declared: int) -> None:
    data = zipped({"a.npy": npy(np.ones(1))}, zipfile.ZIP_DEFLATED)
    true = (136).to_bytes(4, "little")
    assert data.count(true) == 2
    with pytest.raises(FormatError):
        members(data.replace(true, declared.to_bytes(4, "little")))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("count", [4, 4000])
def test_a_flipped_bit_is_found_when_the_array_is_read(method: int, count: int) -> None:
    rng = np.random.default_rng(1)
    data = bytearray(zipped({"a.npy": npy(rng.random(count))}, method))
    data[-130 - 4 * count] ^= 16
    with pytest.raises((ChecksumError, FormatError)):
        read_all(bytes(data))


def test_every_truncation_is_refused() -> None:
    data = zipped({"a.npy": npy(np.ones(2)), "b.npy": npy(np.array("x"))})
    for length in range(len(data)):
        with pytest.raises(FormatError):
            members(data[:length])


def test_a_header_longer_than_the_first_look_is_read() -> None:
    kind = np.dtype([(f"member {index}", "<f4") for index in range(500)])
    found = members(zipped({"a.npy": npy(np.zeros(3, kind))}, zipfile.ZIP_DEFLATED))
    assert isinstance(found["a"].node, Composite)
    assert len(found["a"].node.parts) == 500


def test_names_that_zip_has_no_room_for_are_refused() -> None:
    with pytest.raises(ConversionError, match="too long"):
        NpzWriter(io.BytesIO()).add("n" * 65_532, "|u1", (0,), 0, list)
