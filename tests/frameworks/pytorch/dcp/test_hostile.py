"""Damaged and hostile DCP directories give data or a typed error, and run nothing. Needs no PyTorch."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import (
    CkptError,
    FormatError,
    LimitError,
    MissingFileError,
    TruncatedError,
    UnsupportedVersionError,
)
from ckptfmt.frameworks.pytorch.dcp.emit import encode_metadata
from ckptfmt.frameworks.pytorch.dcp.metadata import Metadata, Place, TensorRow, decode_metadata
from ckptfmt.frameworks.pytorch.dcp.reader import read
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.box import Box
from ckptfmt.tree.nodes import Opaque

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ITEMS = "__0_0.distcp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of two tensors and two values."""
    tree = {"m": {"w": np.arange(6, dtype="f4").reshape(2, 3), "v": np.ones(4)}, "n": 5, "l": [1, 2]}
    ckptfmt.write(tree, tmp_path / "a", to="dcp")
    return tmp_path / "a"


def metadata_of(folder: Path) -> Metadata:
    with FileReader(folder / ".metadata") as reader:
        return decode_metadata(reader)


def changed(folder: Path, change: Callable[[Metadata], object]) -> Path:
    """Write the metadata anew after a change."""
    metadata = metadata_of(folder)
    change(metadata)
    (folder / ".metadata").write_bytes(encode_metadata(metadata))
    return folder


def read_fully(path: Path) -> object:
    with read(path) as checkpoint:
        for tensor in checkpoint.tensors().values():
            tensor.numpy()
        return checkpoint.tree


W = ("m.w", (0, 0))


def row(metadata: Metadata, name: str = "m.w") -> TensorRow:
    return cast("TensorRow", metadata.rows[name])


def set_row(**values: object) -> Callable[[Metadata], object]:
    def change(metadata: Metadata) -> None:
        metadata.rows["m.w"] = replace(row(metadata), **values)  # type: ignore[arg-type] # as the case says

    return change


def set_place(**values: object) -> Callable[[Metadata], object]:
    def change(metadata: Metadata) -> None:
        metadata.places[W] = replace(metadata.places[W], **values)  # type: ignore[arg-type] # as the case says

    return change


def boxes(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> Callable[[Metadata], object]:
    """Replace the chunks of a tensor; all of them lie where the one was, or in a place of their own."""

    def change(metadata: Metadata) -> None:
        place = metadata.places[W]
        metadata.rows["m.w"] = replace(row(metadata), chunks=tuple(Box(*pair) for pair in pairs))
        for offset, _ in pairs:
            metadata.places["m.w", offset] = place

    return change


def element_of(name: str, other: str) -> Callable[[Metadata], object]:
    def change(metadata: Metadata) -> None:
        metadata.rows[name] = replace(row(metadata, name), element=row(metadata, other).element)

    return change


def path_of(name: str, *path: str | int) -> Callable[[Metadata], object]:
    return lambda metadata: metadata.paths.update({name: path})


BROKEN: dict[str, tuple[Callable[[Metadata], object], type[CkptError], str]] = {
    "another shape": (
        set_row(shape=(3, 2), chunks=(Box((0, 0), (3, 2)),)),
        FormatError,
        r"item is f32 of \[2, 3\]; the metadata says f32 of \[3, 2\]",
    ),
    "a larger whole": (set_row(shape=(2, 4)), FormatError, "m.w"),
    "no chunks": (set_row(chunks=()), FormatError, "m.w"),
    "a chunk outside": (set_row(shape=(2, 2)), FormatError, "is not inside"),
    "another number of dimensions": (set_row(shape=(6,)), FormatError, "is not inside"),
    "more than the item": (
        set_row(shape=(2, 3000), chunks=(Box((0, 0), (2, 3000)),)),
        FormatError,
        "in an item of",
    ),
    "beyond all measure": (
        set_row(shape=(2**40, 2**40), chunks=(Box((0, 0), (2**40, 2**40)),)),
        LimitError,
        "more than 2",
    ),
    "another type": (element_of("m.v", "m.w"), FormatError, "the metadata says f32"),
    "a sparse layout": (set_row(layout="sparse_coo"), FormatError, "not of the layout"),
    "sparse chunks": (
        lambda m: (boxes(((0, 0), (1, 3)), ((1, 0), (1, 3)))(m), set_row(layout="sparse_coo")(m)),
        UnsupportedVersionError,
        "several chunks",
    ),
    "overlapping chunks": (boxes(((0, 0), (2, 2)), ((0, 1), (2, 2))), FormatError, "overlap"),
    "a hole": (boxes(((0, 0), (1, 3)), ((1, 1), (1, 2))), FormatError, "m.w"),
    "no place": (lambda m: m.places.pop(W), MissingFileError, r"hold its chunk at \[0, 0\]"),
    "no place of a value": (lambda m: m.places.pop(("n", None)), MissingFileError, "hold it"),
    "another file": (set_place(file="__9_0.distcp"), MissingFileError, r"__9_0\.distcp \(m\.w\)"),
    "a range before": (set_place(offset=100), FormatError, "overlap"),
    "a range that is longer": (set_place(length=1 << 20), TruncatedError, "are needed"),
    "a range beyond": (set_place(offset=1 << 62), TruncatedError, "are needed"),
    "a range that is shorter": (lambda m: m.places.update({W: _shorter(m.places[W])}), FormatError, "m.w"),
    "an empty range": (set_place(length=0), FormatError, "in an item of 0 bytes"),
    "a value as a tensor": (
        lambda m: m.places.update({W: replace(m.places["l", None])}),
        FormatError,
        "an item is no tensor",
    ),
    "a path twice": (path_of("n", "m", "w"), FormatError, "another item's"),
    "a path through a value": (path_of("l", "n", "x"), FormatError, "through another item"),
    "a path that ends inside": (path_of("n", "m"), FormatError, "leads to it"),
    "an index of a mapping": (path_of("n", "m", 0), FormatError, "by indices"),
    "an index that no list has": (path_of("n", "q", 1 << 25), FormatError, "that no list has"),
    "an endless list": (path_of("n", "q", (1 << 24) - 1), LimitError, "a list of 16777216"),
    "a root that is a list": (path_of("n", 0), FormatError, "that no list has"),
    "no path": (path_of("n"), FormatError, "no tuple of at most 64"),
    "an endless path": (path_of("n", *("x" for _ in range(65))), FormatError, "no tuple of at most 64"),
}


def _shorter(place: Place) -> Place:
    return replace(place, length=place.length - 5)


@pytest.mark.parametrize("case", BROKEN)
def test_metadata_that_contradicts_itself_or_the_files_is_refused(case: str, folder: Path) -> None:
    change, kind, message = BROKEN[case]
    with pytest.raises(kind, match=message) as caught:
        read_fully(changed(folder, change))
    assert str(folder) in str(cast("FormatError", caught.value).file)


NAMES = [
    *("../x.distcp", "..", ".", "", "/etc/passwd", "a/../../b", "a/b.distcp", "C:\\x", "a\\..\\b", "CON"),
    *("a\0b", "a\nb", "x" * 300, "nul.distcp", "a.distcp:stream"),
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(FormatError, match="cannot be the name"):
        read(changed(folder, set_place(file=name)))


@pytest.mark.parametrize("name", [".metadata", ITEMS])
def test_links_that_leave_the_directory_are_refused(name: str, folder: Path) -> None:
    outside = folder.with_name("outside")
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(FormatError, match="link that leaves"):
        read(folder)


def test_missing_files_are_named_with_what_they_hold(tmp_path: Path) -> None:
    ckptfmt.write({f"w{k}": np.full(4096, k) for k in range(8)}, tmp_path / "a", to="dcp", shard_size=80_000)
    names = sorted(path.name for path in (tmp_path / "a").glob("*.distcp"))
    for name in names[1:]:
        (tmp_path / "a" / name).unlink()
    with pytest.raises(MissingFileError, match=r"__0_1\.distcp \(2 items, w2 among them\)") as caught:
        ckptfmt.read(tmp_path / "a")
    assert "__0_3.distcp" in str(caught.value)


def test_a_directory_without_metadata_is_not_complete(folder: Path) -> None:
    (folder / ".metadata").unlink()
    with pytest.raises(ckptfmt.UnknownFormatError, match="not complete"):
        ckptfmt.read(folder)
    with pytest.raises(MissingFileError, match="not complete"):
        read(folder)


def test_files_that_the_metadata_does_not_know_are_told(folder: Path) -> None:
    (folder / "__7_0.distcp").write_bytes(b"")
    with read(folder) as checkpoint:
        assert [(f.kind, f.file) for f in checkpoint.findings] == [("stray-shard", "__7_0.distcp")]


def test_a_flipped_bit_of_a_tensor_names_file_item_and_tensor(folder: Path) -> None:
    data = bytearray((folder / ITEMS).read_bytes())
    data[data.index(np.arange(6, dtype="f4").tobytes()) + 5] ^= 4
    (folder / ITEMS).write_bytes(data)
    with read(folder) as checkpoint, pytest.raises(ckptfmt.ChecksumError) as caught:
        checkpoint.tensors()["m/w"].numpy()
    assert caught.value.tensor == "m.w"
    assert ITEMS in str(caught.value.file)
    assert "item m.w" in str(caught.value.file)


def test_files_in_each_others_place_are_found_where_their_tensors_differ(tmp_path: Path) -> None:
    """Items have no names: where type and shape are equal, too, nobody can tell."""
    tree = {"a": np.zeros(4096), "b": np.zeros((64, 64))}
    ckptfmt.write(tree, tmp_path / "a", to="dcp", shard_size=1)
    one, other = (tmp_path / "a" / f"__0_{k}.distcp" for k in range(2))
    swapped = one.read_bytes(), other.read_bytes()
    one.write_bytes(swapped[1])
    other.write_bytes(swapped[0])
    with pytest.raises(FormatError, match=r"__0_[01]\.distcp"):
        read_fully(tmp_path / "a")


class Evil:
    """Pickled as a call that would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.path), "w")


PLACES = ["root", "more", "rows", "row", "places", "planner", "storage_meta", "version"]


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("where", PLACES)
def test_classes_that_metadata_has_not_are_refused_and_not_made(
    where: str, protocol: int, folder: Path
) -> None:
    marker = folder.with_name("executed")
    call = pickle.dumps(Evil(marker), 2)[2:-1]
    data = (folder / ".metadata").read_bytes()
    keys = {
        "rows": b"state_dict_metadata",
        "row": b"m.w",
        "places": b"storage_data",
        "planner": b"planner_data",
        "storage_meta": b"storage_meta",
        "version": b"version",
    }
    if where == "root":
        made = b"\x80\x02" + call + b"."
    elif where == "more":  # an attribute that such an object has not
        made = data[: -len(b"ub.")] + b"X\x04\x00\x00\x00more" + call + b"ub."
    else:  # the call in place of what the key has, which goes to another key
        key = b"X%c\x00\x00\x00%b" % (len(keys[where]), keys[where])
        at = data.index(key) + len(key) + 2
        made = data[:at] + call + b"X\x05\x00\x00\x00spare" + data[at:]
    if protocol == 4:
        made = b"\x80\x04" + made[2:]
    (folder / ".metadata").write_bytes(made)
    with pytest.raises(FormatError) as caught:
        read(folder)
    assert caught.value.file is not None
    assert not marker.exists()


def test_a_value_that_would_run_something_is_kept_as_data(tmp_path: Path) -> None:
    evil = Opaque("os.system", {"args": (f"touch {tmp_path / 'executed'}",), "state": None})
    ckptfmt.write({"v": evil, "w": np.ones(1)}, tmp_path / "a", to="dcp")
    read_fully(tmp_path / "a")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("version", ["2.0.0", "", "1.0.1"])
def test_another_version_is_unsupported(version: str, folder: Path) -> None:
    data = (folder / ".metadata").read_bytes()
    old = b"X\x05\x00\x00\x001.0.0"
    assert data.count(old) == 1
    (folder / ".metadata").write_bytes(
        data.replace(old, b"X%c\x00\x00\x00%b" % (len(version), version.encode()))
    )
    with pytest.raises(UnsupportedVersionError, match="of version"):
        read(folder)


def test_bytes_after_the_metadata_are_refused(folder: Path) -> None:
    with (folder / ".metadata").open("ab") as file:
        file.write(b".")
    with pytest.raises(FormatError, match="bytes follow"):
        read(folder)
