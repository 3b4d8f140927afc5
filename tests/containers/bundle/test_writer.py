"""What is written is read again, whole or not at all; what no bundle holds is refused."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.containers.bundle import writer
from ckptfmt.containers.bundle.kinds import NAMES, dtype_of_number, number_of, tag_of_number
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.errors import (
    ChecksumError,
    ConversionError,
    ExistsError,
    FormatError,
    NotFoundError,
    StorageError,
    TreeError,
)
from ckptfmt.storage.system import System
from ckptfmt.testing.faults import Fault, FaultySystem
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import Opaque, Strings, Tag
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfmt.storage.directory import Directory

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (5,), (3, 5), (1, 1, 7)]
HELD = sorted(set(DTYPE_NAMES) - {"f8_e8m0fnu"})


def random_of(name: str, shape: tuple[int, ...]) -> Tensor:
    kind = dtype(name)
    rng = np.random.default_rng(7)
    data = rng.integers(0, 2 if name == "bool" else 256, kind.nbytes(shape), np.uint8)
    return Tensor(kind, shape, BytesSource(data.data))


def same(first: Tensor, second: object) -> bool:
    return (
        isinstance(second, Tensor)
        and (first.dtype, first.shape) == (second.dtype, second.shape)
        and first.bytes() == second.bytes()
    )


@pytest.mark.parametrize("name", HELD)
def test_every_type_and_shape_comes_back(name: str, tmp_path: Path) -> None:
    items = [Item(f"t{number}", random_of(name, shape)) for number, shape in enumerate(SHAPES)]
    write_bundle(tmp_path / "x", items)
    with read_bundle(tmp_path / "x") as bundle:
        assert list(bundle.entries) == [item.name for item in items]
        for item in items:
            assert isinstance(item.node, Tensor)
            assert same(item.node, bundle.entries[item.name].node)


def test_every_type_of_tensorflow_has_one_of_ours_and_back() -> None:
    for number, name in NAMES.items():
        kind = dtype_of_number(number)
        assert (kind is None) == (name in {"string", "variant"})
        if kind is not None:
            assert number_of(kind, tag_of_number(number)) == number
    assert number_of(dtype("i8"), Tag("tensorflow.quint8")) == 6  # a tag that does not fit is not honoured
    assert number_of(dtype("s5")) is None


@pytest.mark.parametrize("values", [(), (b"",), (b"a", b"\xff\x00" * 90, b"", b"x" * 5000), ("é", "", "z")])
def test_strings_come_back_as_bytes(values: tuple[str, ...] | tuple[bytes, ...], tmp_path: Path) -> None:
    variants = Opaque("tensorflow.Variant", {"state": Strings((len(values),), values)})
    items = [Item("s", Strings((len(values),), values)), Item("v", variants)]
    write_bundle(tmp_path / "x", items)
    expected = tuple(value if isinstance(value, bytes) else value.encode() for value in values)
    with read_bundle(tmp_path / "x") as bundle:
        strings, opaque = bundle.entries["s"].node, bundle.entries["v"].node
        assert isinstance(strings, Strings)
        assert (strings.shape, strings.values) == ((len(values),), expected)
        assert isinstance(opaque, Opaque)
        state = opaque.parts["state"]
        assert isinstance(state, Strings)
        assert state.values == expected


def test_many_strings_of_many_bytes_are_written_in_batches(tmp_path: Path) -> None:
    values = tuple(bytes([number % 251]) * 30_000 for number in range(300))
    write_bundle(tmp_path / "x", [Item("s", Strings((10, 30), values))])
    with read_bundle(tmp_path / "x") as bundle:
        node = bundle.entries["s"].node
        assert isinstance(node, Strings)
        assert node.values == values


REFUSED: dict[str, tuple[list[Item], type[Exception], str]] = {
    "a type": ([Item("w", random_of("f8_e8m0fnu", (2,)))], ConversionError, "f8_e8m0fnu"),
    "bytes of fixed width": ([Item("w", random_of("s3", (2,)))], ConversionError, "s3"),
    "no name": ([Item("", random_of("f32", ()))], TreeError, "empty name"),
    "no Unicode": ([Item("\ud800", random_of("f32", ()))], TreeError, "Unicode"),
    "no Unicode in a string": ([Item("s", Strings((1,), ("\ud800",)))], TreeError, "Unicode"),
    "two of a name": (
        [Item("w", random_of("f32", ())), Item("w", random_of("f32", ()))],
        ConversionError,
        "two",
    ),
    "another object": ([Item("w", Opaque("x.Y", {}))], ConversionError, "nothing that a bundle holds"),
    "strings of another number": ([Item("s", Strings((2,), (b"a",)))], TreeError, "1 strings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_bundle_holds_is_refused_before_anything_is_written(case: str, tmp_path: Path) -> None:
    items, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        write_bundle(tmp_path / "x", items)
    assert list(tmp_path.iterdir()) == []


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def items_of(count: int, start: int = 0) -> list[Item]:
    return [Item(f"w{n}", Tensor.of(np.full(100, n + start, "f4"))) for n in range(count)]


def values_of(prefix: Path) -> list[float]:
    with read_bundle(prefix) as bundle:
        return [node[0].item() for entry in bundle.entries.values() if isinstance(node := entry.node, Tensor)]


@pytest.mark.parametrize(("size", "files"), [(None, 1), (1, 5), (400, 5), (800, 3), (10**9, 1)])
def test_data_is_distributed_over_files_of_a_size(size: int | None, files: int, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", items_of(5), shard_size=size)
    assert names(tmp_path) == [*(f"x.data-{n:05d}-of-{files:05d}" for n in range(files)), "x.index"]
    assert values_of(tmp_path / "x") == [0, 1, 2, 3, 4]


def test_bytes_are_a_function_of_the_items(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_bundle(tmp_path / name, items_of(5), shard_size=800)
    for path in tmp_path.glob("x.*"):
        assert path.read_bytes() == (tmp_path / path.name.replace("x", "y", 1)).read_bytes()


def test_a_bundle_of_nothing_is_one(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", [])
    assert names(tmp_path) == ["x.data-00000-of-00001", "x.index"]
    assert values_of(tmp_path / "x") == []


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", items_of(3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ExistsError):
        write_bundle(tmp_path / "x", items_of(3, 10))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write_bundle(tmp_path / "x", items_of(3, 10), overwrite=True)
    assert values_of(tmp_path / "x") == [10, 11, 12]


def test_files_that_only_the_old_bundle_had_are_removed(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", items_of(5), shard_size=1)
    write_bundle(tmp_path / "x-2", items_of(2))
    (tmp_path / "x.data-00000-of-00005.bak").write_bytes(b"kept")
    write_bundle(tmp_path / "x", items_of(2), overwrite=True)
    assert names(tmp_path) == [
        "x-2.data-00000-of-00001",
        "x-2.index",
        "x.data-00000-of-00001",
        "x.data-00000-of-00005.bak",
        "x.index",
    ]


def test_whoever_has_the_old_bundle_open_keeps_its_bytes(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", items_of(3))
    with read_bundle(tmp_path / "x") as old:
        write_bundle(tmp_path / "x", items_of(3, 10), overwrite=True)
        nodes = [entry.node for entry in old.entries.values()]
        assert [node[0].item() for node in nodes if isinstance(node, Tensor)] == [0, 1, 2]


def failing_source(size: int) -> Tensor:
    class Failing:
        def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002
            return None

        def readinto(self, start: int, out: memoryview) -> None:  # noqa: ARG002
            raise ChecksumError("bad", tensor="t")

    return Tensor(dtype("f32"), (size,), Failing())


def test_a_source_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", items_of(3), shard_size=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for overwrite, name in ((True, "x"), (False, "new")):
        with pytest.raises(ChecksumError):
            write_bundle(
                tmp_path / name,
                [*items_of(2), Item("t", failing_source(9))],
                overwrite=overwrite,
                shard_size=1,
            )
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_table_takes_its_place_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = System.replace

    def watched(system: System, place: Directory, source: str, target: str) -> None:
        order.append(target)
        replace(system, place, source, target)

    monkeypatch.setattr(System, "replace", watched)
    write_bundle(tmp_path / "x", items_of(3), shard_size=1, overwrite=True)
    assert len(order) == 4
    assert order[-1] == "x.index"


def outcome(prefix: Path) -> list[float] | None:
    """What is read of a bundle, or None where it is damaged."""
    try:
        return values_of(prefix)
    except FormatError:
        return None


CLEANING = {"unlink", "remove_directory"}


@pytest.mark.parametrize("kind", ["error", "error-after"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_call_that_fails_leaves_the_old_or_the_new_or_says_so(
    kind: Literal["error", "error-after"],
    overwrite: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    counting = FaultySystem()
    write_bundle(tmp_path / "count", items_of(2), shard_size=1, system=counting)
    assert len(counting.calls) > 12
    damaged = 0
    for at in range(1, len(counting.calls) + 1):
        place = tmp_path / f"{at}"
        place.mkdir()
        if overwrite:
            write_bundle(place / "x", items_of(2), shard_size=1)
        system = FaultySystem(Fault(kind, at, errno.EROFS))
        error: StorageError | None = None
        try:
            write_bundle(place / "x", items_of(2, 10), shard_size=1, overwrite=overwrite, system=system)
        except StorageError as caught:
            error = caught
        if error is None:
            assert values_of(place / "x") == [10, 11]
        elif not overwrite and not (place / "x.index").exists():
            left = [path for path in place.iterdir() if ".data-" in path.name and path.name.startswith("x.")]
            assert left == [] or system.calls[at - 1].name in CLEANING
        else:
            found = outcome(place / "x")
            assert found in ([0, 1], [10, 11], None)
            damaged += found is None
    assert damaged <= 8 * overwrite  # calls from the first rename of two files of data to that of the table


def test_a_parent_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        write_bundle(tmp_path / "no" / "x", items_of(1))


@pytest.mark.parametrize("make", [lambda a: a.T, lambda a: a[:, ::2], lambda a: a.astype(">f4")])
def test_arrays_of_any_strides_and_byte_order_are_written(
    make: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    array = make(np.arange(24, dtype="f4").reshape(4, 6))
    write_bundle(tmp_path / "x", [Item("w", Tensor.of(array))])
    with read_bundle(tmp_path / "x") as bundle:
        node = bundle.entries["w"].node
        assert isinstance(node, Tensor)
        assert np.array_equal(node.numpy(), array)


def test_narrow_elements_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_PIECE", 7)
    array = (np.arange(1001) % 16 - 8).astype(ml_dtypes.int4)
    write_bundle(tmp_path / "x", [Item("w", Tensor.of(array))])
    with read_bundle(tmp_path / "x") as bundle:
        node = bundle.entries["w"].node
        assert isinstance(node, Tensor)
        assert node.numpy().tolist() == array.tolist()
        assert node[990:].tolist() == array[990:].tolist()
