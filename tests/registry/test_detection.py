from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import struct
import tarfile
import warnings
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard

from ckptfmt.errors import (
    CkptError,
    FormatError,
    NotFoundError,
    StorageError,
    TruncatedError,
    UnknownFormatError,
)
from ckptfmt.registry import detect

if TYPE_CHECKING:
    from pathlib import Path


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"0123456789")
    return buffer.getvalue()


def tarred(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 700
            file.addfile(info, io.BytesIO(bytes(700)))
    return buffer.getvalue()


def safetensors(header: dict[str, object], data: bytes = b"", padding: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + data


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, w=np.ones(3, np.float32))
    return buffer.getvalue()


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


def table(value: bytes) -> bytes:
    """A TensorFlow table whose first entry has an empty key."""
    block = b"\x00\x00" + bytes([len(value)]) + value
    return block + bytes(100) + bytes(40) + bytes.fromhex("57fb808b247547db")


W: dict[str, object] = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
TORCH = ("a/data.pkl", "a/byteorder", "a/data/0", "a/version")

LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e80024de9032e")  # what torch 2.13 writes first

READ = {
    "safetensors": [
        safetensors(W, b"0000"),
        safetensors({}),
        safetensors(W, b"0000", padding=77),
        struct.pack("<Q", 4) + b"  {}",
        json.dumps({"weight_map": {"a": "m-1.safetensors"}, "metadata": {}}).encode(),
    ],
    "keras": [zipped("metadata.json", "config.json", "model.weights.h5")],
    "keras-weights": [
        json.dumps({"weight_map": {"/layers/a/vars": ["m_00000.weights.h5", "m_00001.weights.h5"]}}).encode(),
        json.dumps({"metadata": {"total_size": 0.5}, "weight_map": {"/vars": "m_00000.weights.h5"}}).encode(),
    ],
    "dcp": [
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81.",
        b"\x80\x04\x95\x3c"
        + bytes(7)
        + b"\x8c%torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata\x94\x93.",
    ],
    "npz": [npz(), zipped("a.npy", "b/c.npy"), zipped()],
    "tensorflow": [table(b"\x08\x01\x1a\x02\x08\x01")],
    "tensorflow-v1": [table(b"\n\x05\n\x03\n\x01w")],
    "torch": [zipped(*TORCH), zipped("archive/version", "archive/data.pkl")],
    "torch-legacy": [LEGACY, b"\x80\x04\x95\x0e" + bytes(7) + LEGACY[2:]],
    "torch-tar": [tarred("sys_info", "pickle", "storages", "tensors")],
    "pickle": [
        *(pickle.dumps(value, protocol) for value in ({"a": 1}, [1], np.ones(2)) for protocol in range(6)),
        pickle.dumps({"a": np.float32(1)}, 1),
        pickle.dumps("torch.distributed.checkpoint.metadata"),
        b"(dp1\nS'a'\np2\nI1\ns.",  # of Python 2
        b"}q\x01U\x01aK\x01s.",
    ],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, row in READ.items() for data in row])
def test_a_format_is_told_by_content_whatever_the_file_is_called(
    name: str, data: bytes, tmp_path: Path
) -> None:
    for ending in ("x", "x.pt", "x.npz", "x.safetensors", "x.html"):
        path = tmp_path / ending
        path.write_bytes(data)
        assert detect(path).name == name


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"

NAMED = {
    "git-lfs": (LFS, "git-lfs pointer of a file of 548105171 bytes.*git lfs pull"),
    "annex": (b"/annex/objects/SHA256E-s1048576--ab.pt\n", "git-annex pointer.*git annex get"),
    "dvc": (b"outs:\n- md5: 8f3\n  size: 3\n  path: x.pt\n", "DVC pointer.*dvc pull"),
    "html": (b"\n<!DOCTYPE html><html><head><title>Sign\nin</title>", 'HTML page that says "Sign in"'),
    "xml": (b'\xef\xbb\xbf<?xml version="1.0"?><Error><Code>AccessDenied</Code>', '"AccessDenied"'),
    "json": (b'{"hidden_size": 768}', "a JSON file"),
    "bad json": (b'{"hidden_size": 7', "JSON file that is cut short"),
    "deep json": (b"[" * 100_000, "JSON file that is cut short"),
    "bin index": (json.dumps({"weight_map": {"a": "m-1.bin"}}).encode(), "index of PyTorch shards"),
    "bad index": (b'{"weight_map": {"a": "m.safet', "index of shards that is no longer JSON"),
    "our manifest": (b'{"bag":"","format":[1,0],"root":"","self":"","tree":null}', "Give the directory"),
    "text": (b"Entry not found\x1b[31m", 'text that begins "Entry not found\\?'),
    "gzip": (gzip.compress(b"x"), "gzip.*Unpack"),
    "bz2": (bz2.compress(b"x"), "bzip2.*Unpack"),
    "xz": (lzma.compress(b"x"), "xz file.*Unpack"),
    "zstd": (zstandard.compress(b"x"), "Zstandard.*Unpack"),
    "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04", "7z archive"),
    "tar": (tarred("run/model.pt"), 'tar archive that begins with "run/model.pt"'),
    "old torchscript": (zipped("m/version", "m/model.json", "m/tensors/0"), "TorchScript program of before"),
    "aotinductor": (zipped("e/archive_format", "e/data/aotinductor/model/x.so"), "AOTInductor"),
    "data.pkl": (b"\x80\x02}q\x00X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n", "whole .pt"),
    "distcp": (2 * zipped("archive/data.pkl", "archive/version"), "distcp files of a torch.distributed"),
    "distcp, padded": (
        zipped("a/data.pkl") + bytes(42) + zipped("a/data.pkl"),
        "several zip archives in one",
    ),
    "npy": (npy(), "single NumPy array"),
    "table": (bytes([0, 3, 1]) + b"abcd" + table(b"")[3:], "sorted table"),
    "gguf": (b"GGUF\x03\x00\x00\x00", "GGUF"),
    "tflite": (b"\x1c\x00\x00\x00TFL3", "TensorFlow Lite"),
    "mxnet": (struct.pack("<QQ", 0x112, 0) + b"\x01", "MXNet"),
    "saved model": (b"\x08\x01\x12\xa9\x82\x07\x0a\xc4\x15\x12", "SavedModel.*give the directory"),
    "state file": (b'model_checkpoint_path: "ck-1"\n', "TensorFlow checkpoints.*Give the directory"),
    "onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0", "ONNX"),
    "flax": (b"\x81\xa6params\x81\xa5Dense", "MessagePack"),
    "keras npz": (zipped("metadata.json", "config.json", "model.weights.npz"), "Keras model"),
    "zip of .pth": (zipped("data", "policy.pth", "optimizer.pth"), '"optimizer.pth" and 1 more inside'),
    "other zip": (zipped("word/document.xml"), "zip archive that begins"),
    "zeros": (bytes(5000), "first 4096 bytes are all zero"),
    "openssl": (b"Salted__" + bytes(range(64, 80)), "OpenSSL"),
    "noise": (
        bytes.fromhex("c0c1f5f6f7f8f9fafbfcfdfeff00010203"),
        "c0 c1 f5 f6 f7 f8 f9 fa fb fc fd fe ff 00",
    ),
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_is_not_read_is_named_as_what_it_is(kind: str, tmp_path: Path) -> None:
    data, message = NAMED[kind]
    path = tmp_path / "model.pt"
    path.write_bytes(data)
    with pytest.raises(UnknownFormatError, match=f"(?s){message}") as caught:
        detect(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()


CUT = {
    "empty": (b"", "the file is empty"),
    "zip of torch": (zipped(*TORCH)[:-30], "PyTorch file .* cut short after"),
    "zip of arrays": (npz()[:-30], "NPZ file .* cut short after"),
    "zip": (zipped("x")[:-30], "a zip archive that is cut short"),
    "tar of torch": (tarred("storages", "tensors", "pickle")[:3000], "PyTorch file .* cut short after"),
    "zip's first bytes": (zipped("x")[:4], "cut short after 4 bytes"),
    "safetensors in its header": (safetensors(W)[:20], "safetensors file that is cut short after 20 bytes"),
    "safetensors after its brace": (safetensors(W)[:9], "cut short after 9 bytes"),
}


@pytest.mark.parametrize("kind", CUT)
def test_a_beginning_is_told_from_a_whole_file(kind: str, tmp_path: Path) -> None:
    data, message = CUT[kind]
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(TruncatedError, match=message) as caught:
        detect(path)
    assert (caught.value.file, caught.value.offset) == (str(path), len(data))


def test_a_broken_zip_archive_is_malformed_and_not_unknown(tmp_path: Path) -> None:
    data = zipped(*TORCH)
    (tmp_path / "x").write_bytes(data.replace(b"PK\x01\x02", b"PK\x01\x03", 1))
    with pytest.raises(FormatError, match="directory") as caught:
        detect(tmp_path / "x")
    assert caught.value.file == str(tmp_path / "x")


@pytest.mark.parametrize("data", [npz(), zipped(*TORCH), safetensors(W)], ids=["npz", "torch", "safetensors"])
def test_every_beginning_of_a_readable_file_has_an_answer(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    for length in range(min(len(data), 400)):
        path.write_bytes(data[:length])
        with pytest.raises(CkptError):
            detect(path)


@pytest.mark.framework
def test_files_of_the_real_torch_are_told_apart(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    module = torch.nn.Linear(2, 2)
    torch.save(module.state_dict(), tmp_path / "zip")
    torch.save(module.state_dict(), tmp_path / "stream", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of TorchScript
        torch.jit.trace(module, torch.ones(1, 2)).save(tmp_path / "script")
    torch.export.save(torch.export.export(module, (torch.ones(1, 2),)), tmp_path / "exported.pt2")
    assert detect(tmp_path / "zip").name == "torch"
    assert detect(tmp_path / "stream").name == "torch-legacy"
    assert detect(tmp_path / "script").name == "torchscript"
    assert detect(tmp_path / "exported.pt2").name == "torch-export"


DIRECTORIES = {
    "savedmodel": (("saved_model.pb", "fingerprint.pb"), "SavedModel without variables"),
    "dcp of ranks": (("__0.metadata", "__0_0.distcp"), r"metadata of one rank: __0\.metadata"),
    "dcp without metadata": (("__0_0.distcp",), r"without its \.metadata"),
    "orbax": (("_METADATA", "d"), "Orbax"),
    "zarr": ((".zarray", "0.0"), "Zarr"),
    "several tf": (("a.index", "a.data-00000-of-00001", "b.index", "b.data-00000-of-00001"), "Give one of"),
    "files": (("a.pt", "b.npz", "notes.txt"), 'holds "a.pt", "b.npz". Give one'),
    "many files": (tuple(f"{n}.pt" for n in range(7)), "and 2 more"),
    "empty": ((), "an empty directory"),
    "other": (("notes.txt",), "without a checkpoint"),
}


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_a_directory_of_another_kind_is_named(kind: str, tmp_path: Path) -> None:
    names, message = DIRECTORIES[kind]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnknownFormatError, match=message):
        detect(tmp_path)


def test_a_directory_with_our_checkpoints_names_them(tmp_path: Path) -> None:
    for name in ("step-1", "step-2", ".step-3.ckptfmt-0123456789ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_bytes(b"{}")
    with pytest.raises(UnknownFormatError, match=r'holds "step-1", "step-2"\. Give one'):
        detect(tmp_path)


@pytest.mark.parametrize(
    "name", ["manifest.json", "data-00001-of-00002.safetensors", "data-00001-of-00001.ckz"]
)
def test_a_checkpoint_of_ours_is_one_even_if_files_are_missing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"damaged")
    assert detect(tmp_path).name == "ckptfmt"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("rank_0.pt", "rank_1.pt", "other.pt"), ["as one"]),
        (("a_rank0.pt", "a_rank1.pt", "b_rank0.pt", "b_rank1.pt"), ["as one"]),
        (("a_rank0.pt", "b_rank0.pt", "step_1.pt", "step_2.pt"), []),
    ],
)
def test_files_of_ranks_among_others_are_told_how_to_be_read(
    names: tuple[str, ...], told: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(UnknownFormatError, match="Give one of them") as caught:
        detect(tmp_path)
    assert re.findall("as one", str(caught.value)) == told


def test_a_directory_with_an_index_of_shards_is_safetensors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(b"{}")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert detect(tmp_path).name == "safetensors"


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none" / "deeper", "\0"):
        with pytest.raises(NotFoundError):
            detect(path)


DATA = b"\xff\xfe\xfd\x80" * 9
INDEX = table(b"\x08\x01\x1a\x02\x08\x01")


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (("ckpt-1.index",), "ckpt-1"),
        (("ckpt-1.index", "ckpt-1.data-00000-of-00001"), "ckpt-1.data-00000-of-00001"),
        (("ckpt-1.index", "ckpt-1.data-00000-of-00001"), ""),
        (("checkpoint", "ckpt-1.index", "ckpt-2.index"), ""),
        (("saved_model.pb", "variables/variables.index"), ""),
    ],
)
def test_a_tensorflow_checkpoint_is_known_by_whatever_names_it(
    names: tuple[str, ...], given: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(INDEX if name.endswith(".index") else DATA)
    assert detect(tmp_path / given).name == "tensorflow"


@pytest.mark.parametrize("data", [DATA, b"PK\x03\x04" + DATA, pickle.dumps({"a": 1})])
def test_data_beside_its_index_is_taken_for_nothing_else(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "ckpt-1.index").write_bytes(INDEX)
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(data)
    assert detect(tmp_path / "ckpt-1.data-00000-of-00001").name == "tensorflow"


def test_a_set_of_v1_files_is_known_by_what_their_names_begin_with(tmp_path: Path) -> None:
    for shard in range(2):
        (tmp_path / f"m.ckpt-7-0000{shard}-of-00002").write_bytes(table(b"\n\x05\n\x03\n\x01w"))
    assert detect(tmp_path / "m.ckpt-7").name == "tensorflow-v1"
    with pytest.raises(NotFoundError):
        detect(tmp_path / "m.ckpt-8")


@pytest.mark.parametrize("name", ["m.ckpt.data", "m.ckpt.data-00000-of-00001"])
def test_data_without_its_index_is_explained(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(DATA)
    with pytest.raises(UnknownFormatError, match=r"data of a TensorFlow checkpoint: copy m\.ckpt\.index"):
        detect(tmp_path / name)


@pytest.mark.parametrize("length", [20, len(INDEX) - 1])
def test_an_index_that_is_cut_is_told_as_one(length: int, tmp_path: Path) -> None:
    (tmp_path / "m.index").write_bytes(INDEX[:length])
    with pytest.raises(TruncatedError, match="index of a TensorFlow checkpoint that is cut short"):
        detect(tmp_path / "m.index")


def test_a_fifo_a_device_and_a_socket_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/null"):
        with pytest.raises(StorageError, match="neither a regular file nor a directory"):
            detect(path)


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageError, match="symbolic links"):
        detect(tmp_path / "a")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    with pytest.raises(UnknownFormatError):
        detect(tmp_path / "loop" / "again" / "again")


def test_what_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(npz())

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    for place in (path, tmp_path):
        with pytest.raises(StorageError, match="Permission denied"):
            detect(place)
