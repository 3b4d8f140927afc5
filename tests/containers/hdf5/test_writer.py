"""HDF5 files that we write: h5py reads them, equal calls give equal bytes, elements are streamed."""

from __future__ import annotations

import io
import math
import tracemalloc
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.errors import ConversionError
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.testing.format_tests import example_array
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfmt.containers.hdf5.writer import Hdf5Writer as Writer

pytestmark = pytest.mark.framework
REASON = "needs the extra `hdf5`"
h5py = pytest.importorskip("h5py", reason=REASON)
Hdf5File = pytest.importorskip("ckptfmt.containers.hdf5.reader", reason=REASON).Hdf5File
writer_module = pytest.importorskip("ckptfmt.containers.hdf5.writer", reason=REASON)
Hdf5Writer = writer_module.Hdf5Writer

SHAPES = ((), (0,), (2, 0), (1,), (5,), (2, 3, 2), (1, 1, 700, 501))


def written(build: Callable[..., None]) -> io.BytesIO:
    file = io.BytesIO()
    with Hdf5Writer(file) as writer:
        build(writer)
    return file


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [*DTYPE_NAMES, "s3"])
def test_h5py_reads_every_type_and_shape(kind: str, compressed: bool) -> None:  # noqa: FBT001 - parametrised
    arrays = {f"g/{i}": example_array(kind, shape) for i, shape in enumerate(SHAPES)}

    def build(writer: Writer) -> None:
        for name, array in arrays.items():
            writer.add(name, Tensor.of(array), compressed=compressed)

    memory = written(build)
    ours = dtype(kind)
    with h5py.File(memory) as judged, Hdf5File(MemoryReader(memory.getvalue())) as found:
        for name, array in arrays.items():
            dataset = judged[name]
            if ours.packed:
                assert dataset.dtype == np.uint8
                assert tuple(dataset.attrs["shape"]) == array.shape
                assert np.dtype(getattr(ml_dtypes, dataset.attrs["dtype"])) == ours.numpy
            elif ours.numpy.isbuiltin == 1 or kind == "s3":
                assert dataset.dtype == array.dtype
                assert dataset[...].tobytes() == array.tobytes()
            else:
                named = np.dtype(getattr(ml_dtypes, dataset.attrs["dtype"]))
                assert dataset[...].view(named).tobytes() == array.tobytes()
                assert named == ours.numpy
            node = found.datasets[name].node
            assert (node.dtype.name, node.shape) == (kind, array.shape)
            assert node.numpy().tobytes() == array.tobytes()
            held = writer_module.held_as(ours, array.shape)
            assert (found.datasets[name].words, found.datasets[name].shape) == held


def test_attributes_of_every_kind_are_h5pys() -> None:
    attributes = {
        "text": "é" * 100_000,
        "bytes": b"ab",
        "texts": Strings((2,), ("a", "é")),
        "fixed": Strings((2,), (b"a", b"bcd")),
        "none": Strings((0,), ()),
        "number": np.array(2.5, "f4"),
        "numbers": np.arange(4, dtype="i8").reshape(2, 2),
        "empty": None,
    }
    memory = written(lambda writer: writer.group("a/b", attributes))
    with h5py.File(memory) as judged:
        held = judged["a/b"].attrs
        assert held["text"] == "é" * 100_000
        assert held["bytes"] == b"ab"
        assert list(held["texts"]) == ["a", "é"]
        assert held["fixed"].tolist() == [b"a", b"bcd"]
        assert held["none"].shape == (0,)
        assert (held["number"], held["number"].dtype) == (2.5, np.float32)
        assert held["numbers"].tolist() == [[0, 1], [2, 3]]
        assert held["empty"] == h5py.Empty("f4")
    with Hdf5File(MemoryReader(memory.getvalue())) as found:
        assert set(found.groups["a/b"].attributes) == set(attributes)


def test_no_attribute_is_larger_than_an_object_header_holds() -> None:
    for value in (
        np.zeros(8001),
        b"x" * 64_001,
        Strings((4001,), ("x",) * 4001),
        Strings((2,), (b"x" * 32_001, b"")),
    ):
        with pytest.raises(ConversionError, match="has room for 64000"):
            written(lambda writer, value=value: writer.group("g", {"names": value}))
    memory = written(lambda writer: writer.group("g", {f"n{k}": np.full(8000, k) for k in range(12)}))
    with h5py.File(memory) as judged:
        assert all((judged["g"].attrs[f"n{k}"] == k).all() for k in range(12))


def test_texts_and_empty_datasets_are_h5pys() -> None:
    def build(writer: Writer) -> None:
        writer.add_text("t", Strings((2, 2), ("a", "é", "", "long " * 999)))
        writer.add_text("s", Strings((), ("one",)), attributes={"a": "b"})
        writer.add_text("n", Strings((0,), ()))
        writer.add_empty("e/none")

    memory = written(build)
    with h5py.File(memory) as judged:
        assert judged["t"].asstr()[...].tolist() == [["a", "é"], ["", "long " * 999]]
        assert judged["s"].asstr()[()] == "one"
        assert judged["n"].shape == (0,)
        assert judged["e/none"].shape is None
    with pytest.raises(ConversionError, match="without NUL"):
        written(lambda writer: writer.add_text("t", Strings((1,), ("a\0b",))))


@pytest.mark.parametrize("path", ["", "/", "a//b", "/a", "a/", ".", "a/./b", "nul\0", "taken", "taken/below"])
def test_what_is_no_path_of_hdf5_or_is_taken_is_refused(path: str) -> None:
    def build(writer: Writer) -> None:
        writer.add("taken", Tensor.of(np.ones(1)))
        writer.add(path, Tensor.of(np.ones(1)))

    with pytest.raises(ConversionError):
        written(build)


def test_more_dimensions_than_hdf5_has_are_refused() -> None:
    written(lambda writer: writer.add("x", Tensor.of(np.ones((1,) * 32))))
    with pytest.raises(ConversionError, match="at most 32"):
        written(lambda writer: writer.add("x", Tensor(dtype("u8"), (1,) * 33, BytesSource(memoryview(b"1")))))


def test_elements_are_aligned_and_deflated_in_runs_of_a_mebibyte() -> None:
    shapes = {"a": (3, 25), "b": (1 << 20,), "c": (3, 700, 500), "d": (5000, 1, 70), "e": (2, 3, 300_000)}

    def build(writer: Writer) -> None:
        for name, shape in shapes.items():
            array = np.arange(math.prod(shape), dtype="f4").reshape(shape)
            writer.add(f"plain/{name}", Tensor.of(array))
            writer.add(f"packed/{name}", Tensor.of(array), compressed=True)

    memory = written(build)
    with h5py.File(memory) as judged:
        for name, shape in shapes.items():
            assert judged[f"plain/{name}"].id.get_offset() % 64 == 0
            assert judged[f"plain/{name}"].chunks is None
            packed = judged[f"packed/{name}"]
            assert packed.compression == "gzip"
            assert math.prod(packed.chunks) * 4 <= 1 << 20
            assert np.array_equal(packed[...].reshape(-1), np.arange(math.prod(shape), dtype="f4"))


def test_the_same_calls_give_the_same_bytes_at_any_time() -> None:
    def build(writer: Writer) -> None:
        writer.group("g/h", {"a": "text", "b": np.arange(3)})
        for k in range(30):
            writer.add(f"g/{k}", Tensor.of(np.arange(k)), compressed=bool(k % 2))
        writer.add_text("t", Strings((2,), ("a", "b")))

    first = written(build).getvalue()
    with h5py.File(io.BytesIO(), "w") as other:  # what the library keeps between files is in none of them
        other["x"] = np.random.default_rng(0).normal(size=999)
    assert written(build).getvalue() == first
    with h5py.File(io.BytesIO(first)) as judged:
        names: list[str] = ["/"]
        judged.visit(names.append)
        for name in names:
            info = h5py.h5o.get_info(judged[name].id)
            assert (info.atime, info.mtime, info.ctime, info.btime) == (0, 0, 0, 0)


def test_a_large_tensor_is_written_in_pieces(tmp_path: Path) -> None:
    class Zeros:
        def view(self, _start: int, _stop: int) -> None:
            return None

        def readinto(self, _start: int, out: memoryview) -> None:
            out[:] = bytes(len(out))

    tensor = Tensor(dtype("f32"), (1 << 26,), Zeros())
    for compressed in (False, True):
        with (tmp_path / f"{compressed}.h5").open("w+b") as file, Hdf5Writer(file) as writer:
            tracemalloc.start()
            writer.add("x", tensor, compressed=compressed)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 64 << 20
        with h5py.File(tmp_path / f"{compressed}.h5") as judged:
            assert judged["x"].shape == (1 << 26,)
            assert judged["x"][-1] == 0
