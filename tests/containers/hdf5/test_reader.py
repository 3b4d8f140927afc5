"""HDF5 files as h5py writes them: every type, layout and link kind; h5py is the judge."""

from __future__ import annotations

import io
import itertools
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.errors import FormatError
from ckptfmt.storage.reader import FileReader, MemoryReader
from ckptfmt.tree.nodes import Composite, Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.framework
REASON = "needs the extra `hdf5`"
h5py = pytest.importorskip("h5py", reason=REASON)
Hdf5File = pytest.importorskip("ckptfmt.containers.hdf5.reader", reason=REASON).Hdf5File

LIBRARY_VERSIONS = ("earliest", "v108", "v110", "latest")
TYPES = [
    *(
        "|b1",
        "|i1",
        "|u1",
        "<i2",
        ">i2",
        "<u2",
        ">u2",
        "<i4",
        ">i4",
        "<u4",
        ">u4",
        "<i8",
        ">i8",
        "<u8",
        ">u8",
    ),
    *("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16", "|S1", "|S7"),
]
SHAPES = ((), (0,), (1,), (5,), (3, 0, 2), (4, 1, 3))
STORAGES: dict[str, dict[str, object]] = {
    "contiguous": {},
    "chunked": {"chunks": True},
    "gzip": {"compression": "gzip"},
    "gzip, shuffled, summed": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf, shuffled": {"compression": "lzf", "shuffle": True},
    "summed": {"fletcher32": True},
}


def bits(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random elements: any bit pattern but of bool, NaNs of every kind among them."""
    rng = np.random.default_rng(len(shape))
    dtype = np.dtype(kind)
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "S":
        return rng.integers(1, 255, count * dtype.itemsize).astype("u1").view(dtype).reshape(shape)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


def raw_bytes(node: Composite) -> bytes:
    """The bytes of elements that have no type of ours."""
    part = node.parts["bytes"]
    assert isinstance(part, Tensor)
    return bytes(part.bytes())


@pytest.mark.parametrize("libver", LIBRARY_VERSIONS)
@pytest.mark.parametrize("storage", STORAGES)
def test_every_type_and_shape_is_read_bit_for_bit(storage: str, libver: str, tmp_path: Path) -> None:
    written = {
        f"{kind.strip('<>|')}{'>' in kind}/{len(s)}-{sum(s)}": bits(kind, s) for kind in TYPES for s in SHAPES
    }
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        for name, array in written.items():
            options = STORAGES[storage] if array.ndim and array.size else {}
            file.create_dataset(name, data=array, **options)
    with Hdf5File(tmp_path / "a.h5") as found:
        assert set(found.datasets) == set(written)
        for name, array in written.items():
            node = found.datasets[name].node
            assert isinstance(node, Tensor)
            assert found.datasets[name].words == array.dtype.str
            assert node.shape == array.shape
            assert node.numpy().tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("storage", STORAGES)
def test_a_box_is_that_box_wherever_chunks_end(storage: str, tmp_path: Path) -> None:
    array = np.arange(11 * 7 * 5, dtype=">i4").reshape(11, 7, 5)
    options = STORAGES[storage] | ({} if storage == "contiguous" else {"chunks": (4, 3, 2)})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=array, **options)
    with Hdf5File(tmp_path / "a.h5") as found:
        node = found.datasets["x"].node
        cuts = (
            [slice(0, 11), slice(3, 5), slice(10, 11)],
            [slice(0, 7), slice(2, 4)],
            [slice(1, 2), slice(0, 5)],
        )
        for index in itertools.product(*cuts):
            assert np.array_equal(node[index], array[index])
        whole = node.bytes()
        for start, stop in ((0, 3), (5, 200), (79, 80), (100, 1540), (1533, 1540)):  # within elements, too
            out = bytearray(stop - start)
            node.source.readinto(start, memoryview(out))
            assert out == bytes(whole[start:stop])


def test_what_was_never_written_is_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("none", (3, 4), ">i2", fillvalue=-2)
        file.create_dataset("zero", (3, 4), "<f4")
        file.create_dataset("some", (9, 9), "<f4", fillvalue=np.nan, chunks=(4, 4))
        file["some"][:2, 5:] = 1
        file.create_dataset("raw", (2,), "V3")
        expected = {name: file[name][...] for name in file}
    with Hdf5File(tmp_path / "a.h5") as found:
        for name in ("none", "zero", "some"):
            np.testing.assert_array_equal(found.datasets[name].node.numpy(), expected[name])
        assert raw_bytes(found.datasets["raw"].node) == bytes(6)


def test_a_user_block_moves_nothing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=1024) as file:
        file["x"] = np.arange(100)
        file.create_dataset("y", data=np.arange(100), chunks=(9,), compression="gzip")
    with Hdf5File(tmp_path / "a.h5") as found:
        for dataset in found.datasets.values():
            assert dataset.node.numpy().tolist() == list(range(100))


def test_contiguous_elements_are_the_files_own_mapped_bytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(100)
    with Hdf5File(tmp_path / "a.h5") as found:
        assert found.datasets["x"].node.source.view(0, 800) is not None


def test_texts_attributes_and_empty_datasets_are_plain_values(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["texts"] = [["é", ""], ["a", "long " * 500]]
        file["text"] = "one"
        file["bytes"] = np.array([b"\xff\xfe", b"a"], dtype=h5py.string_dtype("ascii"))
        file["null"] = h5py.Empty("f4")
        attributes = {
            "text": "é",
            "texts": ["a", "bé"],
            "fixed": np.array([b"a", b"bcd"]),
            "int": 3,
            "float": np.float32(0.5),
            "array": np.arange(6, dtype=">i2").reshape(2, 3),
            "empty": h5py.Empty("f8"),
            "bool": True,
            "no names": np.zeros(0),
            "bad": np.bytes_(b"\xff"),
        }
        for name, value in attributes.items():
            file["text"].attrs[name] = value
    with Hdf5File(tmp_path / "a.h5") as found:
        texts = found.datasets["texts"].node
        assert isinstance(texts, Strings)
        assert (texts.shape, texts.values) == ((2, 2), ("é", "", "a", "long " * 500))
        assert found.datasets["text"].node.values == ("one",)
        assert found.datasets["bytes"].node.values == (b"\xff\xfe", b"a")
        assert found.datasets["null"].node is None
        assert found.datasets["null"].words == "null"
        held = found.datasets["text"].attributes
        assert held["text"] == "é"
        assert held["texts"].values == ("a", "bé")
        assert held["fixed"].values == ("a", "bcd")
        assert (held["int"], held["float"], held["bool"]) == (3, 0.5, True)
        assert held["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert held["empty"] is None
        assert held["no names"].shape == (0,)
        assert held["bad"] == b"\xff"


@pytest.mark.parametrize("libver", LIBRARY_VERSIONS)
@pytest.mark.parametrize("block", [0, 512])
def test_texts_are_found_wherever_the_library_put_them(libver: str, block: int) -> None:
    memory = io.BytesIO()
    texts = [f"{k}é" * (k % 40) for k in range(1000)]
    with h5py.File(memory, "w", libver=libver, userblock_size=block) as file:
        for k in range(20):  # dense from the ninth on
            file.attrs[f"a{k}"] = f"value {k}"
        file.create_group("g").attrs["a"] = texts[:50]
        file["g"].attrs["b"] = "x" * 100_000
        file["plain"] = texts
        file.create_dataset("packed", data=texts, chunks=(99,), compression="gzip")
        file.create_dataset(
            "square", data=np.array(texts, object).reshape(10, 4, 25), dtype=h5py.string_dtype()
        )
        file.create_dataset("none", (5,), h5py.string_dtype())
    with Hdf5File(MemoryReader(memory.getvalue())) as found:
        assert found.root.attributes == {f"a{k}": f"value {k}" for k in range(20)}
        assert found.groups["g"].attributes["a"].values == tuple(texts[:50])
        assert found.groups["g"].attributes["b"] == "x" * 100_000
        for name in ("plain", "packed", "square"):
            assert found.datasets[name].node.values == tuple(texts)
        assert found.datasets["none"].node.values == ("",) * 5


def test_kinds_without_a_type_of_ours_are_kept_as_bytes(tmp_path: Path) -> None:
    structure = np.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["opaque"] = np.array([b"ab", b"cd"], "V2")
        file["structure"] = structure
        file["levels"] = np.array([0, 2], h5py.enum_dtype({"LOW": 0, "HIGH": 2}, basetype="i2"))
        file.create_dataset("extended", data=np.arange(3).astype(np.longdouble))
        file.create_dataset("array", (2,), np.dtype("(3,)<i4"))
        file["array"][...] = np.arange(6).reshape(2, 3)
        file["named type"] = np.dtype("<f8")
    with Hdf5File(tmp_path / "a.h5") as found:
        nodes = {name: dataset.node for name, dataset in found.datasets.items()}
        assert isinstance(nodes["opaque"], Composite)
        assert nodes["opaque"].name == "numpy.void"
        assert raw_bytes(nodes["opaque"]) == b"abcd"
        assert nodes["structure"].attributes == {"type": "|V12 (compound)"}
        assert raw_bytes(nodes["structure"]) == structure.tobytes()
        assert nodes["levels"].numpy().tolist() == [0, 2]
        assert [finding.path for finding in found.findings] == ["levels"]
        assert nodes["extended"].attributes == {"type": "|V16 (float)"}
        assert raw_bytes(nodes["array"]) == np.arange(6, dtype="<i4").tobytes()
        assert "named type" not in nodes


def test_links_within_the_file_are_ties_and_cycles_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/w"] = np.arange(3)
        file["hard"] = file["a/w"]
        file["soft"] = h5py.SoftLink("/a/w")
        file["a/near"] = h5py.SoftLink("w")
        file["b"] = h5py.SoftLink("/a")
        file["a/up"] = file["/"]
        file["a/self"] = h5py.SoftLink("/a")
    with Hdf5File(tmp_path / "a.h5") as found:
        assert list(found.datasets) == ["a/near", "a/w", "b/near", "b/w", "hard", "soft"]
        assert len({id(dataset) for dataset in found.datasets.values()}) == 1
        assert {finding.path for finding in found.findings} == {"a/up", "a/self", "b/up", "b/self"}
        assert {finding.kind for finding in found.findings} == {"link-cycle"}


def test_a_member_of_an_archive_is_read_like_a_file(tmp_path: Path) -> None:
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        file["layers/dense/vars/0"] = np.arange(4.0)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.keras", "w", method) as archive:
            archive.writestr("model.weights.h5", memory.getvalue())
        with (
            FileReader(tmp_path / "a.keras") as reader,
            Hdf5File(ZipArchive(reader).open("model.weights.h5")) as found,
        ):
            assert found.datasets["layers/dense/vars/0"].node.numpy().tolist() == [0, 1, 2, 3]


def test_names_of_any_length_and_number(tmp_path: Path) -> None:
    names = [f"{k:04d}" + "é" * 300 for k in range(500)] + ["x" * 4000]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in names:
            file[name] = np.float32(1)
    with Hdf5File(tmp_path / "a.h5") as found:
        assert list(found.datasets) == sorted(names, key=str.encode)


@pytest.mark.parametrize("libver", LIBRARY_VERSIONS)
def test_a_file_cut_at_any_byte_is_refused(libver: str) -> None:
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=libver) as file:
        file["a/b"] = np.arange(4)
        file.create_dataset("c", data=np.arange(4), chunks=(3,), compression="gzip")
    data = memory.getvalue()
    Hdf5File(MemoryReader(data))
    for length in range(0, len(data), 7):
        with pytest.raises(FormatError):
            Hdf5File(MemoryReader(data[:length]))


@pytest.mark.parametrize("flip", range(4))
def test_a_damaged_chunk_is_told_by_its_dataset_and_offset(flip: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=np.arange(100), chunks=(50,), compression="gzip", fletcher32=True)
        place = file["g/x"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[place.byte_offset + place.size * flip // 4] ^= 4
    path.write_bytes(data)
    with Hdf5File(path) as found:
        assert found.datasets["g/x"].node[:50].tolist() == list(range(50))
        with pytest.raises(FormatError) as told:
            found.datasets["g/x"].node.numpy()
        assert (told.value.tensor, told.value.offset) == ("g/x", place.byte_offset)
