"""Bare pickles: arrays and plain values are read, long arrays stay in the file, nothing is run."""

from __future__ import annotations

import argparse
import collections
import pickle
import struct
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import CkptError, FormatError, LimitError, MissingFileError, TruncatedError
from ckptfmt.frameworks.pytorch.bare import read
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.nodes import Opaque, tag_of
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.checkpoint import Checkpoint


def opened(data: bytes, folder: Path) -> Checkpoint:
    path = folder / "m.pkl"
    path.write_bytes(data)
    return read(path)


def arrays(side: int) -> dict[str, np.ndarray]:
    base = np.arange(float(side * side)).reshape(side, side)
    kinds = {
        name: base.astype(name) for name in ("f2", "f4", "<f8", ">f8", "i1", ">i4", "u2", "c8", "?", "S9")
    }
    extended = {"bf16": base.astype(ml_dtypes.bfloat16), "f8": base.astype(ml_dtypes.float8_e4m3fn)}
    views = {"fortran": np.asfortranarray(base), "turned": np.asfortranarray(base.astype(">f4"))}
    return {**kinds, **extended, **views, "sliced": base[::2, 1:], "empty": base[:0], "scalar": np.array(2.5)}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("side", [3, 200])
def test_arrays_come_back_by_bits(protocol: int, side: int, tmp_path: Path) -> None:
    value = arrays(side)
    with opened(pickle.dumps(value, protocol), tmp_path) as checkpoint:
        assert set(checkpoint.tensors()) == set(value)
        for name, array in value.items():
            found = checkpoint[name]
            assert isinstance(found, Tensor)
            assert (found.shape, tag_of(found).name) == (array.shape, "numpy.ndarray")  # type: ignore[union-attr]
            assert found.numpy().tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert ckptfmt.detect(tmp_path / "m.pkl").name == "pickle"


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol: int, tmp_path: Path) -> None:
    value = {
        "weights": {"conv1_w": np.ones((2, 2), np.float32), "conv1_b": np.zeros(2, np.float32)},
        "blobs": [1, 2.5, None, True, "text", b"bytes", (1, (2,)), {1, "a"}, 2**70, 1j],
        "order": collections.OrderedDict(b=1, a=2),
        "step": np.int64(7),
        3: "three",
    }
    with opened(pickle.dumps(value, protocol), tmp_path) as checkpoint:
        assert checkpoint["blobs"] == value["blobs"]
        assert list(checkpoint["order"]) == ["b", "a"]  # type: ignore[arg-type] # a dict
        assert checkpoint[3] == "three"
        assert checkpoint["weights"]["conv1_w"].numpy().tolist() == [[1, 1], [1, 1]]  # type: ignore[index, call-overload, union-attr]


def test_the_same_array_twice_is_one(tmp_path: Path) -> None:
    large = np.arange(40_000.0)
    with opened(pickle.dumps([large, large, large.copy()], 4), tmp_path) as checkpoint:
        first, second, third = checkpoint.tensors().values()
        assert first.identity == second.identity != third.identity


def test_a_large_array_is_read_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    real = FileReader.readinto

    def counted(reader: FileReader, offset: int, out: memoryview) -> None:
        nonlocal count
        count += len(out)
        real(reader, offset, out)

    monkeypatch.setattr(FileReader, "readinto", counted)
    value = {
        "large": np.zeros(32 << 20, np.uint8),
        "small": np.arange(9),
        "more": np.zeros(8 << 20, np.uint8),
    }
    with opened(pickle.dumps(value, 4), tmp_path) as checkpoint:
        assert checkpoint["small"].numpy().tolist() == list(range(9))  # type: ignore[union-attr] # a tensor
        assert count < 1 << 20


def test_bytes_and_text_of_any_length_are_values(tmp_path: Path) -> None:
    value = {"b": b"x" * 200_000, "a": bytearray(b"y" * 200_000), "s": "é" * 100_000}
    with opened(pickle.dumps(value, 5), tmp_path) as checkpoint:
        assert checkpoint.tree == value
    python2 = b"}U\x01kT\x00\x00\x02\x00" + b"\xc3\xa9" * 0x10000 + b"s."
    with opened(python2, tmp_path) as checkpoint:
        assert checkpoint["k"] == "é" * 0x10000


def test_objects_are_kept_as_data(tmp_path: Path) -> None:
    value = {"args": argparse.Namespace(lr=0.1, name="x"), "w": np.ones(2)}
    with opened(pickle.dumps(value), tmp_path) as checkpoint:
        node = checkpoint["args"]
        assert isinstance(node, Opaque)
        assert (node.name, node.parts["state"]) == ("argparse.Namespace", {"lr": 0.1, "name": "x"})
        assert [finding.kind for finding in checkpoint.findings] == ["opaque"]


def test_what_follows_the_first_pickle_is_a_loss(tmp_path: Path) -> None:
    with opened(pickle.dumps(1) + pickle.dumps(2), tmp_path) as checkpoint:
        assert [(f.kind, f.severity) for f in checkpoint.findings] == [
            ("trailing-bytes", ckptfmt.Severity.LOSS),
        ]


def test_a_pickle_out_of_a_file_says_so(tmp_path: Path) -> None:
    storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x01tQ"
    outside = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00))\x89}tR."
    for pickled in (outside, b"K\x01Q.", b"P1\n."):
        with pytest.raises(FormatError) as caught:
            opened(pickled, tmp_path)
        assert isinstance(caught.value, MissingFileError)
        assert str(tmp_path) in str(caught.value.file)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_ends_early_is_truncated_wherever_it_ends(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"w": np.arange(3), "n": [1, "x"]}, protocol)
    for length in range(len(data)):
        with pytest.raises(TruncatedError):
            opened(data[:length], tmp_path)


EMBEDDED = (
    b"ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\n%b\x85R"
    b"K\x00K\x01\x85K\x01\x85\x89}tR."
)
NESTED = [b"C\x06cos\nx\n", b"N", b"C\x00", b"C\x10\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.N", b"K\x01"]


@pytest.mark.parametrize("data", NESTED)
def test_a_storage_in_bytes_that_is_no_stream_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        opened(EMBEDDED % data, tmp_path)


EVIL = [
    b"cposix\nsystem\n(S'touch sentinel'\ntR.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0etouch sentinel\x85R.",
    EMBEDDED % (b"C\x25cposix\nsystem\n(S'touch sentinel'\ntR."),
    b"cnumpy.core.multiarray\n_reconstruct\n(cposix\nsystem\n(S'touch sentinel'\ntRtR.",
    b"cnumpy\nload\n(S'x'\ntR.",
    b'cbuiltins\neval\n(S\'open("sentinel", "w")\'\ntR.',
]


@pytest.mark.parametrize("data", EVIL)
def test_nothing_is_run(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        opened(data, tmp_path).close()
    except CkptError as error:
        assert isinstance(error, FormatError)  # noqa: PT017 - or it is data
    assert [path.name for path in tmp_path.iterdir()] == ["m.pkl"]


@pytest.mark.parametrize("length", [-1, 1])
def test_an_array_that_does_not_fill_its_bytes_is_refused(length: int, tmp_path: Path) -> None:
    data = pickle.dumps(np.zeros(100_000, np.uint8), 4)
    changed = data.replace((100_000).to_bytes(4, "little"), (100_000 + length).to_bytes(4, "little"), 1)
    assert changed != data
    with pytest.raises(FormatError):
        opened(changed, tmp_path)


def test_a_pickle_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps({"w": np.arange(40_000.0).reshape(200, 200), "n": 1}))
    ckptfmt.convert(path, tmp_path / "x.npz")
    with ckptfmt.read(tmp_path / "x.npz") as converted, ckptfmt.read(path) as source:
        assert ckptfmt.digest(converted).root == ckptfmt.digest(source).root
    with pytest.raises(ckptfmt.ConversionError, match="write torch"):
        ckptfmt.write({}, tmp_path / "y.pkl", to="pickle")


def array_of(kind: bytes, shape: tuple[int, ...]) -> bytes:
    """Return an array of the bytes that are remembered as 0."""
    numbers = b"(" + b"".join(b"J" + struct.pack("<i", length) for length in shape) + b"t"
    head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    return head + b"(K\x01" + numbers + b"cnumpy\ndtype\nU\x02" + kind + b"\x85R\x89h\x00tb"


def test_the_same_bytes_cannot_be_claimed_without_end(tmp_path: Path) -> None:
    size = 8 << 20
    payload = b"(B" + struct.pack("<I", size) + bytes(size) + b"q\x000"
    with opened(payload + array_of(b"u1", (size,)) * 500 + b"t.", tmp_path) as checkpoint:
        assert len(checkpoint.tensors()) == 500  # all of them one array
    ones = [
        array_of(kind, (1,) * more + (size,)) for more in range(25) for kind in (b"u1", b"i1", b"b1", b"S1")
    ]
    with pytest.raises(LimitError, match="claim more than"):
        opened(payload + b"".join(ones) + b"t.", tmp_path)
