"""Trees in safetensors files and shards: judged by safetensors itself, the newest and 0.4.1."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.errors import ConversionError, ExistsError, FormatError, MissingFileError, NotFoundError
from ckptfmt.format.digests import node_digest
from ckptfmt.frameworks.flat import safetensors_files
from ckptfmt.frameworks.flat.safetensors import read, write
from ckptfmt.registry import detect
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.nodes import Composite, Tree, tag_of
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

from .conftest import SHAPES, make_tensor

INDEX = "model.safetensors.index.json"


def header_of(path: Path) -> dict:
    data = path.read_bytes()
    header: dict = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return header


def flat() -> Tree:
    return as_tree({f"layer.{k}.w": np.full((k + 1, 3), k, "f4") for k in range(8)})[0]


def test_metadata_has_the_format_that_transformers_asks_for(tmp_path: Path) -> None:
    write(flat(), tmp_path / "a")
    assert header_of(tmp_path / "a")["__metadata__"] == {"format": "pt"}


def test_data_begins_at_64_bytes_and_large_tensors_first(tmp_path: Path) -> None:
    write(flat(), tmp_path / "a")
    assert (8 + struct.unpack("<Q", (tmp_path / "a").read_bytes()[:8])[0]) % 64 == 0
    with read(tmp_path / "a") as found:
        sizes = [tensor.nbytes for _, tensor in tensors(found.tree)]
    alignments = [size & -size for size in sizes]
    assert alignments == sorted(alignments, reverse=True)


@pytest.mark.framework
@pytest.mark.parametrize("shape", SHAPES)
def test_safetensors_reads_what_we_write(tmp_path: Path, shape: tuple[int, ...]) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors judges its files")
    kinds = ["bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "c64"]
    tree: Tree = {kind: make_tensor(kind, shape) for kind in kinds}
    assert write(tree, tmp_path / "a") == ()
    judged = numpy.load_file(tmp_path / "a")
    assert set(judged) == set(kinds)
    for name, tensor in tensors(tree):
        assert judged[str(name[0])].dtype == tensor.dtype.numpy
        assert judged[str(name[0])].shape == shape
        assert judged[str(name[0])].tobytes() == bytes(tensor.bytes())


@pytest.mark.framework
def test_torch_reads_its_own_types_and_ties_under_the_first_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason='pip install "ckptfmt[torch]"')
    loader = pytest.importorskip("safetensors.torch", reason="safetensors judges its files")
    weight = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    fp8 = np.arange(4, dtype=ml_dtypes.float8_e4m3fn)
    fp4 = np.arange(8, dtype=np.uint8).astype(ml_dtypes.float4_e2m1fn).reshape(2, 4)
    tree, _ = as_tree({"m": {"w": weight, "tied": weight, "fp8": fp8, "fp4": fp4}})
    write(tree, tmp_path / "a")
    judged = loader.load_file(tmp_path / "a")
    assert set(judged) == {"m.w", "m.fp8", "m.fp4"}
    assert judged["m.w"].dtype == torch.bfloat16
    assert judged["m.w"].view(torch.int16).numpy().tobytes() == weight.tobytes()
    assert judged["m.fp8"].dtype == torch.float8_e4m3fn


@pytest.mark.framework
def test_safetensors_0_4_1_reads_what_we_write(tmp_path: Path, old_safetensors: Path) -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3)
    tree, _ = as_tree(
        {"m": [array, np.ones((), "i8"), np.ones(2, ml_dtypes.bfloat16)], "c": np.ones(1, "c16")}
    )
    write(tree, tmp_path / "a")
    program = (
        "import sys; from safetensors import safe_open\n"
        "with safe_open(sys.argv[1], 'np') as f:\n"
        "    assert set(f.keys()) == {'m.0', 'm.1', 'm.2', 'c'}, f.keys()\n"
        "    assert f.get_tensor('m.0').tolist() == [[0, 1, 2], [3, 4, 5]]\n"
        "    assert f.get_tensor('c').nbytes == 16\n"
        "    assert f.metadata()['format'] == 'pt'\n"
    )
    subprocess.run([old_safetensors, "-c", program, tmp_path / "a"], check=True)


@pytest.mark.framework
def test_files_of_safetensors_are_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors writes the file")
    arrays = {"b": np.arange(3.0), "a.b": np.ones((2, 0), "i1"), "s": np.array(7)}
    numpy.save_file(arrays, tmp_path / "a", {"format": "pt"})
    with read(tmp_path / "a") as found:
        assert {name: t.numpy().tolist() for name, t in found.tensors().items()} == {
            name: array.tolist() for name, array in arrays.items()
        }
        assert tag_of(found.tree) is None


def test_other_metadata_stays_with_the_tree(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "__metadata__": {"format": "tf", "author": "é", "note": "x"},
            "w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        }
    ).encode()
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(text)) + text + b"w")
    with read(tmp_path / "a") as found:
        tag = tag_of(found.tree)
        assert tag is not None
        assert tag.attributes == {"format": "tf", "author": "é", "note": "x"}
        assert write(found.tree, tmp_path / "b") == ()
        write({"deep": found.tree}, tmp_path / "c")
    assert header_of(tmp_path / "b")["__metadata__"] == {"author": "é", "format": "tf", "note": "x"}
    with read(tmp_path / "c") as found:
        assert tag_of(found.tree["deep"]) == tag  # type: ignore[index, call-overload]


def test_six_bit_types_are_composites_and_come_back(tmp_path: Path) -> None:
    text = b'{"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(text)) + text + b"abc")
    with read(tmp_path / "a") as found:
        node = found.tree["w"]  # type: ignore[index, call-overload]
        assert isinstance(node, Composite)
        assert (node.name, node.attributes) == ("safetensors.F6_E2M3", {"shape": (4,)})
        write(found.tree, tmp_path / "b")
        with read(tmp_path / "b") as again:
            assert node_digest(again.tree) == node_digest(found.tree)


def test_a_note_of_more_than_a_mebibyte_is_a_tensor(tmp_path: Path) -> None:
    tree, _ = as_tree({"text": "x" * (1 << 20), "w": np.ones(2)})
    write(tree, tmp_path / "a")
    header = header_of(tmp_path / "a")
    assert header["__metadata__"] == {"format": "pt"}
    assert header["ckptfmt.tree"]["dtype"] == "U8"
    with read(tmp_path / "a") as found:
        assert node_digest(found.tree) == node_digest(tree)


# ---------------------------------------------------------------------- shards


def sharded(tmp_path: Path, tree: Tree | None = None, shard_size: int = 100) -> Path:
    target = tmp_path / "sharded"
    write(flat() if tree is None else tree, target, shard_size=shard_size)
    return target


def test_shards_are_found_by_index_or_directory(tmp_path: Path) -> None:
    target = sharded(tmp_path)
    names = sorted(path.name for path in target.iterdir())
    assert names[-1] == INDEX
    assert names[0] == f"model-00001-of-{len(names) - 1:05d}.safetensors"
    for path in (target, target / INDEX):
        with read(path) as found:
            assert node_digest(found.tree) == node_digest(flat())
            assert found.findings == ()


def test_a_shard_is_closed_at_its_size(tmp_path: Path) -> None:
    target = sharded(tmp_path)
    for path in target.glob("*.safetensors"):
        header = header_of(path)
        assert header.pop("__metadata__") == {"format": "pt"}
        assert len(header) == 1 or max(entry["data_offsets"][1] for entry in header.values()) <= 100


def test_the_index_counts_all_bytes(tmp_path: Path) -> None:
    index = json.loads((sharded(tmp_path) / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for _, tensor in tensors(flat()))


def test_the_path_of_an_index_names_the_shards(tmp_path: Path) -> None:
    write(flat(), tmp_path / "d" / "x.safetensors.index.json")
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "x-00001-of-00001.safetensors",
        "x.safetensors.index.json",
    ]


def test_shards_are_not_spread_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConversionError, match=r"NEW/x\.safetensors\.index\.json"):
        write(flat(), "x.safetensors.index.json")
    assert not list(tmp_path.iterdir())


def test_the_note_lies_in_the_first_shard(tmp_path: Path) -> None:
    tree, _ = as_tree({"m": [np.ones((k + 1, 5)) for k in range(6)], "n": 1})
    target = sharded(tmp_path, tree)
    metadata = [header_of(path)["__metadata__"] for path in sorted(target.glob("*.safetensors"))]
    assert len(metadata) > 2
    assert [sorted(entry) for entry in metadata] == [["ckptfmt.tree", "format"]] + [["format"]] * (
        len(metadata) - 1
    )
    with read(target) as found:
        assert node_digest(found.tree) == node_digest(tree)


@pytest.mark.framework
def test_huggingface_finds_every_tensor_of_an_index(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors judges its files")
    target = sharded(tmp_path)
    weight_map = json.loads((target / INDEX).read_text())["weight_map"]
    judged = {name: numpy.load_file(target / shard)[name] for name, shard in weight_map.items()}
    assert {name: array.shape for name, array in judged.items()} == {
        str(path[0]): tensor.shape for path, tensor in tensors(flat())
    }


def rewrite(index: Path, change: object) -> None:
    value = json.loads(index.read_text())
    change(value)  # type: ignore[operator]
    index.write_text(json.dumps(value))


def test_broken_sets_are_refused_with_everything_named(tmp_path: Path) -> None:
    good = sharded(tmp_path)
    shards = sorted(path.name for path in good.glob("*.safetensors"))
    first_tensor = next(name for name in header_of(good / shards[0]) if name != "__metadata__")

    def broken(name: str) -> Path:
        return Path(shutil.copytree(good, tmp_path / name))

    missing = broken("missing")
    (missing / shards[0]).unlink()
    with pytest.raises(MissingFileError, match=shards[0]):
        read(missing)
    ghost = broken("ghost")
    rewrite(ghost / INDEX, lambda index: index["weight_map"].update(ghost=shards[0]))
    with pytest.raises(FormatError, match="not there: ghost in"):
        read(ghost)
    unlisted = broken("unlisted")
    rewrite(unlisted / INDEX, lambda index: index["weight_map"].pop(first_tensor))
    with pytest.raises(FormatError, match=f"not listed: {first_tensor}|missing|total_size"):
        read(unlisted)
    size = broken("size")
    rewrite(size / INDEX, lambda index: index["metadata"].update(total_size=1))
    with pytest.raises(FormatError, match="total_size is 1"):
        read(size)
    revision = broken("revision")
    write({"other": Tensor.of(np.ones(2))}, revision / shards[0], overwrite=True)
    with pytest.raises(FormatError, match="there but not listed: other in"):
        read(revision)


def test_a_stray_shard_is_told_and_not_read(tmp_path: Path) -> None:
    target = sharded(tmp_path)
    write({"other": Tensor.of(np.ones(2))}, target / "consolidated.safetensors")
    with read(target) as found:
        assert [(f.kind, f.severity, f.file) for f in found.findings] == [
            ("stray-shard", Severity.INFO, "consolidated.safetensors")
        ]
        assert node_digest(found.tree) == node_digest(flat())


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "a\\b.safetensors", "link.safetensors", "/etc/passwd"]
)
def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path, name: str) -> None:
    target = sharded(tmp_path)
    write({"w": Tensor.of(np.ones(2))}, tmp_path / "secret.safetensors")
    (target / "link.safetensors").symlink_to(tmp_path / "secret.safetensors")
    rewrite(target / INDEX, lambda index: index.update(weight_map={"w": name}, metadata={}))
    with pytest.raises(FormatError, match=r"name of a shard|leaves its directory"):
        read(target)


def test_a_directory_needs_exactly_one_index(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no index"):
        read(tmp_path)
    target = sharded(tmp_path)
    shutil.copy(target / INDEX, target / "other.safetensors.index.json")
    with pytest.raises(FormatError, match="several indices"):
        read(target)


def test_an_index_is_told_from_a_file_by_its_content(tmp_path: Path) -> None:
    target = sharded(tmp_path)
    (target / INDEX).rename(target / "renamed")
    with read(target / "renamed") as found:
        assert node_digest(found.tree) == node_digest(flat())
    length = 0x7B  # a header whose length begins like JSON
    text = b"{}".ljust(length)
    (tmp_path / "brace").write_bytes(struct.pack("<Q", length) + text)
    with read(tmp_path / "brace") as found:
        assert found.tree == {}


def test_overwriting_replaces_a_set_as_a_whole_and_nothing_else(tmp_path: Path) -> None:
    target = sharded(tmp_path)
    before = {path.name for path in target.iterdir()}
    with pytest.raises(ExistsError):
        write(flat(), target, shard_size=50)
    assert {path.name for path in target.iterdir()} == before
    write({"w": Tensor.of(np.ones(2))}, target, shard_size=50, overwrite=True)
    assert {path.name for path in target.iterdir()} == {"model-00001-of-00001.safetensors", INDEX}
    (target / "config.json").write_text("{}")
    with pytest.raises(ExistsError, match=r"config\.json"):
        write(flat(), target, shard_size=50, overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("")
    with pytest.raises(ExistsError):
        write(flat(), other, shard_size=50, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "sharded"]


def test_a_header_is_split_before_readers_refuse_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_files, "MAX_HEADER", 2000)
    tree: Tree = {f"tensor.{k}": Tensor.of(np.array([k], "i4")) for k in range(100)}
    with pytest.raises(ConversionError, match="write shards"):
        write(tree, tmp_path / "a")
    assert not list(tmp_path.iterdir())
    target = sharded(tmp_path, tree, shard_size=1 << 30)
    lengths = [struct.unpack("<Q", path.read_bytes()[:8])[0] for path in sorted(target.glob("*.safetensors"))]
    assert len(lengths) > 3
    assert max(lengths) <= 2000
    assert min(lengths[:-1]) > 1800
    with read(target) as found:
        assert node_digest(found.tree) == node_digest(tree)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_tensors_than_one_header_holds_are_written_listed_and_read(tmp_path: Path) -> None:
    """Their names and offsets alone are longer than the 100 MB that readers accept."""
    count = 1_300_000
    numbers = np.arange(count, dtype="<u4").view(np.uint8).data
    kind = dtype("u32")
    tree: Tree = {
        f"model.layers.{k // 1000}.experts.{k % 1000}.w": Tensor(
            kind, (1,), BytesSource(numbers[4 * k : 4 * k + 4])
        )
        for k in range(count)
    }
    assert write(tree, tmp_path / "many", shard_size=1 << 30) == ()
    lengths = [struct.unpack("<Q", path.read_bytes()[:8])[0] for path in (tmp_path / "many").glob("*rs")]
    assert len(lengths) == 2
    assert max(lengths) <= 100_000_000
    assert detect(tmp_path / "many" / INDEX).name == "safetensors"
    with read(tmp_path / "many") as found:
        assert isinstance(found.tree, dict)
        assert len(found.tree) == count
        for k in (0, 777_777, count - 1):
            tensor = found.tree[f"model.layers.{k // 1000}.experts.{k % 1000}.w"]
            assert isinstance(tensor, Tensor)
            assert tensor.numpy().tolist() == [k]
