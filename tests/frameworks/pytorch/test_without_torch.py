"""What is written comes back, with no PyTorch at hand; Python's own pickle agrees on what it can."""

from __future__ import annotations

import builtins
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.containers.pickle.emitter import Emitter
from ckptfmt.containers.pickle.interpreter import interpret
from ckptfmt.errors import StorageError
from ckptfmt.frameworks.pytorch.reader import read
from ckptfmt.frameworks.pytorch.state import StateBuilder
from ckptfmt.frameworks.pytorch.writer import write, write_to
from ckptfmt.tree.canonical import dumps
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, Tree, tagged
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path


LACKING = {"i4", "u4", "i2", "u2", "f8_e4m3b11fnuz"}  # what is written for these: see test_writer


def form(tree: Tree) -> bytes:
    """Return a tree with its tensors' types, shapes and bytes, in one string of bytes."""
    specs = [(str(p.tensor.dtype), p.tensor.shape, bytes(p.tensor.bytes())) for p in survey(tree)]
    return dumps(encode_tree(tree, lambda tensor: tensor.size)) + repr(specs).encode()


def some(name: str, shape: tuple[int, ...]) -> Tensor:
    kind = dtype(name)
    codes = np.random.default_rng(5).integers(0, 2, (*shape, kind.numpy.itemsize), np.uint8)
    return Tensor.of(np.frombuffer(codes.tobytes(), kind.numpy).reshape(shape))


def rich() -> Tree:
    shared: Tree = [1]
    array = np.arange(6.0).reshape(2, 3)
    metadata = tagged({"": {"version": 2}}, Tag("collections.OrderedDict"))
    ones = np.ones((2, 3, 4, 5), np.float32)
    return {
        "tied": [Tensor.of(array), Tensor.of(array)],
        "packed": some("f4_e2m1fn", (3, 4)),
        "state": tagged({"b": 1}, Tag("collections.OrderedDict", {"_metadata": metadata})),
        "size": tagged((1, 2), Tag("torch.Size")),
        "last": Tensor.of(ones, tag=Tag("torch.Tensor", {"memory_format": "channels_last"})),
        "parameter": Tensor.of(ones, tag=Tag("torch.nn.parameter.Parameter", {"requires_grad": True})),
        "sparse": Composite(
            "sparse_coo",
            {"size": (3, 4), "is_coalesced": True},
            {"indices": some("i64", (2, 1)), "values": some("f32", (1,))},
        ),
        "quantized": Composite(
            "torch.quantized",
            {"dtype": "quint4x2", "qscheme": "per_channel_affine", "axis": 0},
            {"values": some("u4", (2, 3)), "scales": some("f32", (2,)), "zero_points": some("f32", (2,))},
        ),
        "half": Composite("torch.complex32", {}, {"values": some("f16", (3, 2))}),
        "bits": Composite("torch.bits", {"dtype": "bits16"}, {"values": some("u16", (3,))}),
        "device": Opaque("torch.device", {"args": ("cuda", 1), "state": None}),
        "dtype": Opaque("torch.bfloat16", {}),
        "plain": [None, True, -1, 2**70, 0.5, 1j, "é", b"\xff", (), {1, "a"}, shared, shared],
        "cycle": [Opaque(CYCLE, {"up": 1})],
        1: {(1, "x"): 2, None: 3},
    }


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    tree = rich()
    assert write(tree, tmp_path / "m.pt") == ()
    with read(tmp_path / "m.pt") as checkpoint:
        assert form(checkpoint.tree) == form(tree)
        first, second = checkpoint.at(("tied", 0)), checkpoint.at(("tied", 1))
        assert isinstance(first, Tensor)
        assert isinstance(second, Tensor)
        assert first.identity == second.identity
        write(checkpoint.tree, tmp_path / "again.pt")
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "m.pt").read_bytes()


@pytest.mark.parametrize("name", [name for name in DTYPE_NAMES if name not in LACKING])
def test_every_type_comes_back(tmp_path: Path, name: str) -> None:
    tree: Tree = {str(shape): some(name, shape) for shape in [(), (0,), (2, 0), (4,), (2, 3, 4)]}
    if name == "f4_e2m1fn":
        del tree["()"]  # type: ignore[union-attr, arg-type] # pairs make no single element
    write(tree, tmp_path / "m.pt")
    with read(tmp_path / "m.pt") as checkpoint:
        assert form(checkpoint.tree) == form(tree)


def test_pickles_are_as_python_reads_them() -> None:
    tree: Tree = {
        "a": [1, 2.5, None, "x", b"\x00\xff", (1, 2), {3}, 1j, -(2**100)],
        "b": tagged({"k": 1}, Tag("collections.OrderedDict", {"_note": "n"})),
        3: tagged(b"q", Tag("builtins.bytearray")),
    }
    file = io.BytesIO()
    write_to(tree, file)
    with zipfile.ZipFile(file) as archive:
        value = pickle.loads(archive.read("archive/data.pkl"))  # noqa: S301 - our own
    assert value == {"a": tree["a"], "b": OrderedDict(k=1), 3: bytearray(b"q")}  # type: ignore[index, call-overload]
    assert vars(value["b"]) == {"_note": "n"}


def test_the_emitter_and_the_interpreter_agree() -> None:
    numbers = [0, 1, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 1 << 2038]
    out = Emitter()
    out.op(b"(")
    for number in numbers:
        out.integer(number)
    for index in range(300):
        out.text(f"text {index}")
    out.text("text 299")
    out.op(b"t")
    data = out.finish()
    value, end = interpret(data)
    assert value == (*numbers, *(f"text {index}" for index in range(300)), "text 299")
    assert end == len(data)
    assert pickle.loads(data) == value  # noqa: S301 - our own
    with pytest.raises(OverflowError):
        Emitter().integer(1 << 2039)


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    write({"w": some("f32", (3,))}, tmp_path / "m.pt")
    checkpoint = read(tmp_path / "m.pt")
    checkpoint.close()
    with pytest.raises(StorageError, match=r"closed|could not read"):
        checkpoint.tensors()["w"].numpy()


def test_strings_of_any_shape_are_written_and_told_of() -> None:
    for node, expected in (
        (Strings((2, 0), ()), [[], []]),
        (Strings((0,), ()), []),
        (Strings((2, 1), (b"a", b"b")), [[b"a"], [b"b"]]),
    ):
        file = io.BytesIO()
        assert [f.kind for f in write_to(node, file)] == ["strings-as-list"]
        with zipfile.ZipFile(file) as archive:
            assert pickle.loads(archive.read("archive/data.pkl")) == expected  # noqa: S301 - our own


class PlainLeaves:
    def tensor(self, tensor: Tensor, shared: Hashable | None) -> object:
        del shared
        return tensor.numpy().tolist()

    def composite(self, node: Composite, build: Callable[[Tree], object]) -> object:
        return {key: build(part) for key, part in node.parts.items()}

    def opaque(self, node: Opaque) -> object:
        return node.name

    def sequence(self, items: tuple[object, ...], tag: Tag) -> object:
        return (tag.name, *items)


def test_trees_become_plain_containers() -> None:
    shared: Tree = [1]
    tree: Tree = {
        "a": [shared, shared, Opaque(CYCLE, {"up": 2})],
        "t": tagged((1,), Tag("torch.Size")),
        "c": Composite("x", {}, {"p": Tensor.of(np.ones(2))}),
        "d": tagged({"k": [1]}, Tag("collections.defaultdict", {"default_factory": "builtins.list"})),
        "e": tagged({}, Tag("collections.defaultdict", {"default_factory": "os.system"})),
        "o": Opaque("os.system", {"args": ("touch sentinel",)}),
    }
    made = StateBuilder(PlainLeaves()).build(tree)
    assert isinstance(made, dict)
    assert made["a"][0] is made["a"][1]
    assert made["a"][2] is made
    assert (made["t"], made["c"], made["o"]) == (("torch.Size", 1), {"p": [1, 1]}, "os.system")
    assert made["d"].default_factory is builtins.list
    assert type(made["e"]) is dict


def test_neither_direction_imports_torch(tmp_path: Path) -> None:
    write({"w": some("bf16", (3,))}, tmp_path / "m.pt")
    script = (
        "import sys; from ckptfmt.frameworks.pytorch.reader import read;"
        "from ckptfmt.frameworks.pytorch.writer import write;"
        "c = read(sys.argv[1]); write(c.tree, sys.argv[2]); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "m.pt"), str(tmp_path / "n.pt")]
    assert subprocess.run(command, check=False).returncode == 0
    assert struct.unpack("<L", (tmp_path / "n.pt").read_bytes()[:4])[0] == 0x04034B50
