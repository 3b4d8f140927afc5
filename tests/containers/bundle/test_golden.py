"""Bundles and V1 checkpoints of the real TensorFlow 2.21 are read as it reads them, without it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.bundle.messages import decode_entry
from ckptfmt.containers.bundle.reader import read_bundle
from ckptfmt.containers.bundle.writer import Item, write_bundle
from ckptfmt.containers.checkpoint_v1.reader import read_checkpoint_v1
from ckptfmt.containers.table.reader import Table
from ckptfmt.errors import ChecksumError, FormatError, MissingFileError
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.box import Box
from ckptfmt.tree.nodes import Opaque, Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.containers.bundle.entries import BundleEntry

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tensorflow" / "2.21" / "bundles"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
BUNDLES = [name for name in EXPECTED if not name.startswith("v1-")]
V1 = [name for name in EXPECTED if name.startswith("v1-")]


def told(entry: BundleEntry) -> list[object]:
    """What the tool recorded of each tensor, from what we read."""
    node = entry.node
    shape = list(entry.shape)
    if isinstance(node, Strings):
        return [entry.kind, shape, [text.hex() for text in node.values if isinstance(text, bytes)]]
    if isinstance(node, Opaque):
        return [entry.kind, shape]
    assert isinstance(node, Tensor)
    array = node.numpy()
    data = array.view(np.uint8) & np.uint8((1 << node.dtype.bits) - 1) if node.dtype.packed else array
    raw = data.tobytes()
    return [entry.kind, shape, raw.hex() if len(raw) <= 96 else hashlib.sha256(raw).hexdigest()]


def node_of(entry: BundleEntry) -> Tensor | Strings | Opaque:
    node = entry.node
    assert isinstance(node, Tensor | Strings | Opaque)
    return node


def compare(entries: Mapping[str, BundleEntry], expected: Mapping[str, list[object]]) -> None:
    assert set(entries) == set(expected)
    for name, entry in entries.items():
        kind, *rest = told(entry)
        assert [kind, *rest] == expected[name], name


@pytest.mark.parametrize("prefix", BUNDLES)
def test_a_bundle_is_read_as_tensorflow_reads_it(prefix: str) -> None:
    with read_bundle(GOLDEN / prefix) as bundle:
        assert bundle.header.versions.producer == 1
        compare(bundle.entries, EXPECTED[prefix])


@pytest.mark.parametrize("prefix", V1)
def test_a_v1_checkpoint_is_read_as_tensorflow_reads_it(prefix: str) -> None:
    with read_checkpoint_v1(GOLDEN / prefix) as checkpoint:
        compare(checkpoint.entries, EXPECTED[prefix])


def test_the_golden_files_are_those_that_were_recorded() -> None:
    lines = (GOLDEN / "MANIFEST.toml").read_text().partition("[sha256]\n")[2].splitlines()
    recorded = {
        name.strip(' "'): digest.strip(' "') for name, _, digest in (line.partition("=") for line in lines)
    }
    files = [path for path in GOLDEN.iterdir() if path.name != "MANIFEST.toml"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == recorded


def test_the_golden_files_hold_what_they_are_for() -> None:
    kinds = {row[0] for row in EXPECTED["kinds"].values()}
    assert len(kinds) == 32
    with read_bundle(GOLDEN / "devices-7") as devices, read_bundle(GOLDEN / "policy") as policy:
        assert (devices.header.shards, policy.header.shards) == (4, 4)
        assert len(devices.files) == len(policy.files) == 5


@pytest.mark.parametrize("prefix", ["kinds", "policy"])
def test_what_is_written_again_is_the_same(prefix: str, tmp_path: Path) -> None:
    with read_bundle(GOLDEN / prefix) as bundle:
        items = [Item(name, node_of(entry)) for name, entry in bundle.entries.items()]
        write_bundle(tmp_path / "again", items)
        with read_bundle(tmp_path / "again") as again:
            assert {n: told(e) for n, e in again.entries.items()} == {
                n: told(e) for n, e in bundle.entries.items()
            }


def placed(prefix: Path) -> dict[str, tuple[int, int]]:
    """Where each entry of a bundle lies, and how long it is."""
    with FileReader(f"{prefix}.index") as reader:
        found = {key.decode(): decode_entry(value) for key, value in Table(reader).items() if key}
    return {name: (entry.offset, entry.size) for name, entry in found.items()}


def test_the_bytes_that_are_written_are_those_that_tensorflow_writes(tmp_path: Path) -> None:
    places = placed(GOLDEN / "kinds")
    with read_bundle(GOLDEN / "kinds") as bundle:
        items = [
            Item(name, node_of(bundle.entries[name])) for name in sorted(places, key=lambda n: places[n])
        ]
        write_bundle(tmp_path / "ours", items)
    for end in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"ours{end}").read_bytes() == (GOLDEN / f"kinds{end}").read_bytes()


def test_variants_are_kept_as_they_are() -> None:
    with read_bundle(GOLDEN / "kinds") as bundle:
        node = bundle.entries["variant"].node
    assert isinstance(node, Opaque)
    assert node.name == "tensorflow.Variant"
    state = node.parts["state"]
    assert isinstance(state, Strings)
    assert (state.shape, len(state.values)) == ((), 1)
    assert b"tensorflow::TensorList" in state.values[0]


def test_quantised_types_keep_their_names() -> None:
    with read_bundle(GOLDEN / "kinds") as bundle:
        node = bundle.entries["quint16/matrix"].node
    assert isinstance(node, Tensor)
    assert node.dtype.name == "u16"
    assert node.tag is not None
    assert node.tag.name == "tensorflow.quint16"


@pytest.mark.parametrize("prefix", ["sliced", "policy", "devices-7"])
def test_a_part_of_a_sliced_tensor_is_the_part_of_the_whole(prefix: str) -> None:
    with read_bundle(GOLDEN / prefix) as bundle:
        for entry in bundle.entries.values():
            node = entry.node
            if not isinstance(node, Tensor) or node.ndim != 2:
                continue
            rows, columns = node.shape
            box = Box((rows // 3, columns // 3), (rows - rows // 3, columns - 2 * (columns // 3)))
            expected = node.numpy()[rows // 3 :, columns // 3 : columns - columns // 3]
            assert node.read(box).tobytes() == expected.tobytes()


def copied(prefix: str, place: Path) -> Path:
    for path in GOLDEN.iterdir():
        if path.name.startswith((f"{prefix}.", f"{prefix}-0")) or path.name == prefix:
            (place / path.name).write_bytes(path.read_bytes())
    return place / prefix


def test_a_file_of_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    prefix = copied("devices-7", tmp_path)
    lost = tmp_path / "devices-7.data-00002-of-00004"
    lost.unlink()
    with pytest.raises(MissingFileError, match="file 2 of 4 is not there") as caught:
        read_bundle(prefix)
    assert caught.value.file == str(lost)


def read_all(prefix: Path) -> dict[str, list[object]]:
    with read_bundle(prefix) as bundle:
        return {name: told(entry) for name, entry in bundle.entries.items()}


def test_one_flipped_bit_of_data_names_its_tensor_and_leaves_the_others(tmp_path: Path) -> None:
    prefix = copied("devices-7", tmp_path)
    data = tmp_path / "devices-7.data-00001-of-00004"
    changed = bytearray(data.read_bytes())
    changed[5] ^= 0x10
    data.write_bytes(changed)
    with read_bundle(prefix) as bundle:
        good = [name for name in bundle.entries if name != "d0/w"]
        for name in good:
            assert told(bundle.entries[name]) == EXPECTED["devices-7"][name]
        for _ in range(2):
            with pytest.raises(ChecksumError, match="the bytes have changed") as caught:
                told(bundle.entries["d0/w"])
        node = bundle.entries["d0/w"].node
        assert isinstance(node, Tensor)
        with pytest.raises(ChecksumError):  # a part of it too
            node.read(Box((3, 0), (1, 5)))
    assert (caught.value.file, caught.value.tensor, caught.value.offset) == (str(data), "d0/w", 0)


def test_every_flipped_bit_of_data_is_found(tmp_path: Path) -> None:
    prefix = copied("kinds", tmp_path)
    path = tmp_path / "kinds.data-00000-of-00001"
    good = path.read_bytes()
    for place in range(0, len(good) * 8, 41):
        changed = bytearray(good)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(FormatError) as caught:
            read_all(prefix)
        assert caught.value.tensor is not None


def test_every_flipped_bit_of_a_table_is_found_or_changes_nothing(tmp_path: Path) -> None:
    prefix = copied("sliced", tmp_path)
    path = tmp_path / "sliced.index"
    good, expected = path.read_bytes(), read_all(prefix)
    found = 0
    for place in range(0, len(good) * 8, 7):
        changed = bytearray(good)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert read_all(prefix) == expected
        except FormatError:
            found += 1
    assert found > (len(good) - 60) * 8 / 7


@pytest.mark.parametrize("prefix", ["sliced", "policy"])
def test_files_cut_anywhere_are_refused(prefix: str, tmp_path: Path) -> None:
    copied(prefix, tmp_path)
    for path in sorted(tmp_path.iterdir()):
        good = path.read_bytes()
        for length in range(0, len(good), 1 if len(good) < 900 else 61):
            path.write_bytes(good[:length])
            with pytest.raises(FormatError):
                read_all(tmp_path / prefix)
        path.write_bytes(good)
    assert read_all(tmp_path / prefix) == {name: EXPECTED[prefix][name] for name in EXPECTED[prefix]}


@pytest.mark.parametrize("prefix", ["v1-one-7", "v1-set-7-00000-of-00004"])
def test_v1_files_that_are_damaged_anywhere_are_refused_or_read_alike(prefix: str, tmp_path: Path) -> None:
    for path in GOLDEN.glob("v1-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / prefix
    good = path.read_bytes()
    expected = EXPECTED["v1-one-7" if "one" in prefix else "v1-set-7-?????-of-00004"]
    for length in range(0, len(good), 1 if len(good) < 900 else 61):
        path.write_bytes(good[:length])
        with pytest.raises(FormatError):
            read_v1(path)
    found = 0
    places = range(0, len(good) * 8, 23)
    for place in places:
        changed = bytearray(good)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert read_v1(path) == expected
        except FormatError:
            found += 1
    assert found > len(places) * (1 - 70 / len(good))


def read_v1(path: Path) -> dict[str, list[object]]:
    with read_checkpoint_v1(path) as checkpoint:
        return {name: told(entry) for name, entry in checkpoint.entries.items()}


def test_a_set_is_told_by_any_of_its_names(tmp_path: Path) -> None:
    expected = EXPECTED["v1-set-7-?????-of-00004"]
    for name in ("v1-set-7", "v1-set-7-00002-of-00004", "v1-set-7-?????-of-00004"):
        assert read_v1(GOLDEN / name) == expected
    for path in GOLDEN.glob("v1-set*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "v1-set-7-00003-of-00004").unlink()
    with pytest.raises(MissingFileError) as caught:
        read_checkpoint_v1(tmp_path / "v1-set-7")
    assert caught.value.file == str(tmp_path / "v1-set-7-00003-of-00004")
    (tmp_path / "v1-set-7-00000-of-00001").write_bytes(b"")
    with pytest.raises(FormatError, match="several sets"):
        read_checkpoint_v1(tmp_path / "v1-set-7")
