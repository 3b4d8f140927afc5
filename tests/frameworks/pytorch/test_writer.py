from __future__ import annotations

import collections
import io
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.errors import ExistsError
from ckptfmt.frameworks.pytorch.reader import read
from ckptfmt.frameworks.pytorch.writer import write, write_to
from ckptfmt.tree.canonical import dumps
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, Tree, tagged
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason='PyTorch reads what we write: needs the extra "torch"')
pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # PyTorch's own: beta features, deprecations
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SHAPES: list[tuple[int, ...]] = [(), (0,), (2, 0), (0, 3), (5,), (2, 3, 4)]
LACKING = {"i4", "u4", "i2", "u2", "f8_e4m3b11fnuz", "f4_e2m1fn"}


def written(tree: Tree) -> bytes:
    file = io.BytesIO()
    write_to(tree, file)
    return file.getvalue()


def loaded(tree: Tree) -> object:
    return torch.load(io.BytesIO(written(tree)), weights_only=True)


def lost(tree: Tree) -> list[tuple[str, str]]:
    return [(f.kind, f.path) for f in write_to(tree, io.BytesIO()) if f.severity is Severity.LOSS]


def as_bytes(tensor: object) -> bytes:
    return bytes(tensor.contiguous().clone().untyped_storage().tolist())  # type: ignore[attr-defined]


def some_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = dtype(name)
    codes = np.random.default_rng(3).integers(0, 256, (*shape, kind.numpy.itemsize), np.uint8)
    if name == "bool":
        codes &= 1
    if kind.packed:
        codes &= (1 << kind.bits) - 1
        return codes[..., 0].view(kind.numpy) if name[0] in "uf" else (codes[..., 0] >> 1).view(kind.numpy)
    return np.frombuffer(codes.tobytes(), kind.numpy).reshape(shape)


@pytest.mark.parametrize("name", [name for name in DTYPE_NAMES if name not in LACKING])
def test_every_type_that_pytorch_has_comes_back_by_bits(name: str) -> None:
    arrays = {str(shape): some_array(name, shape) for shape in SHAPES}
    tree: Tree = {key: Tensor.of(array) for key, array in arrays.items()}
    assert lost(tree) == []
    back = loaded(tree)
    assert isinstance(back, dict)
    for key, array in arrays.items():
        assert tuple(back[key].shape) == array.shape
        assert as_bytes(back[key]) == array.tobytes()


@pytest.mark.parametrize("name", sorted(LACKING))
def test_types_that_pytorch_lacks_keep_their_values_and_are_told_of(name: str) -> None:
    arrays = {str(shape): some_array(name, shape) for shape in [*SHAPES, (3, 5)]}
    tree: Tree = {key: Tensor.of(array) for key, array in arrays.items()}
    told = [path for kind, path in lost(tree) if kind == "dtype-widened"]
    back = loaded(tree)
    assert isinstance(back, dict)
    for key, array in arrays.items():
        if key in told:
            wide = back[key].to(torch.float64).numpy()
            np.testing.assert_array_equal(wide, array.astype(np.float64))
        else:
            assert name == "f4_e2m1fn"
            assert array.shape[-1] % 2 == 0
            assert back[key].dtype is torch.float4_e2m1fn_x2
            packed = Tensor.of(array).bytes()
            assert bytes(back[key].view(torch.uint8).flatten().tolist()) == bytes(packed)
    assert len(told) == (4 if name == "f4_e2m1fn" else 7)


def test_byte_strings_gain_a_dimension_and_are_told_of() -> None:
    tree: Tree = {"s": Tensor.of(np.array([[b"ab", b"c"]]))}
    assert lost(tree) == [("dtype-as-bytes", "s")]
    back = loaded(tree)
    assert isinstance(back, dict)
    assert back["s"].tolist() == [[[97, 98], [99, 0]]]


def test_values_of_every_kind_come_back() -> None:
    tree: Tree = {
        "none": None,
        "bools": [True, False],
        "ints": [0, 255, 256, 65_536, -1, 2**31, -(2**31), 2**70, -(2**2000)],
        "floats": [0.5, -0.0, float("inf")],
        "text": ["", "é" * 300, "same", "same"],
        "complex": 1 - 2j,
        "bytes": b"\x00\xff",
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "set": {1, "a", (2, 3)},
        1: {True: 1, None: 2, 2.5: 3, (1, "x"): 4, b"\xff": 5},
        "long": list(range(2500)),
        "wide": {str(i): i for i in range(2500)},
    }
    back = loaded(tree)
    assert back == tree
    assert repr(back) == repr(tree) or {**back, "set": 0} == {**tree, "set": 0}  # type: ignore[dict-item]


def test_tags_are_honoured() -> None:
    ones = Tensor.of(np.ones((2, 3, 4, 5), np.float32))

    def with_tag(tag: Tag) -> Tensor:
        return Tensor(ones.dtype, ones.shape, ones.source, tag=tag)

    metadata = tagged({"": {"version": 2}}, Tag("collections.OrderedDict"))
    tree: Tree = {
        "state": tagged({"b": 1, "a": 2}, Tag("collections.OrderedDict", {"_metadata": metadata})),
        "counter": tagged({"x": 2}, Tag("collections.Counter")),
        "size": tagged((1, 2), Tag("torch.Size")),
        "bytearray": tagged(b"xy", Tag("builtins.bytearray")),
        "parameter": with_tag(Tag("torch.nn.parameter.Parameter", {"requires_grad": True})),
        "frozen": with_tag(Tag("torch.nn.parameter.Parameter", {"requires_grad": False, "state": {"n": 1}})),
        "grad": with_tag(Tag("torch.Tensor", {"requires_grad": True})),
        "buffer": with_tag(Tag("torch.Tensor", {"state": {"persistent": True, "_is_buffer": True}})),
        "last": with_tag(Tag("torch.Tensor", {"memory_format": "channels_last"})),
        "storage": Tensor.of(np.arange(3.0, dtype="f4"), tag=Tag("torch.FloatStorage")),
        "untyped": Tensor.of(np.arange(3, dtype="u1"), tag=Tag("torch.storage.UntypedStorage")),
    }
    assert lost(tree) == []
    back = loaded(tree)
    assert isinstance(back, dict)
    assert type(back["state"]) is collections.OrderedDict
    assert list(back["state"].items()) == [("b", 1), ("a", 2)]
    assert vars(back["state"])["_metadata"] == {"": {"version": 2}}
    assert type(vars(back["state"])["_metadata"]) is collections.OrderedDict
    assert back["counter"] == collections.Counter(x=2)
    assert type(back["size"]) is torch.Size
    assert back["bytearray"] == bytearray(b"xy")
    assert type(back["parameter"]) is torch.nn.Parameter
    assert back["parameter"].requires_grad
    assert not back["frozen"].requires_grad
    assert back["frozen"].n == 1
    assert back["grad"].requires_grad
    assert isinstance(back["buffer"], torch.nn.Buffer)
    assert back["last"].is_contiguous(memory_format=torch.channels_last)
    assert bool((back["last"] == 1).all())
    assert back["storage"].tolist() == [0, 1, 2]
    assert back["untyped"].tolist() == [0, 1, 2]


def test_channels_last_keeps_every_value_in_place() -> None:
    array = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    volume = np.arange(48, dtype=np.int64).reshape(2, 3, 2, 2, 2)
    tree: Tree = {
        "plane": Tensor.of(array, tag=Tag("torch.Tensor", {"memory_format": "channels_last"})),
        "volume": Tensor.of(volume, tag=Tag("torch.Tensor", {"memory_format": "channels_last_3d"})),
    }
    back = loaded(tree)
    assert isinstance(back, dict)
    assert back["plane"].tolist() == array.tolist()
    assert back["volume"].tolist() == volume.tolist()
    assert back["volume"].is_contiguous(memory_format=torch.channels_last_3d)


def test_what_has_no_counterpart_is_written_plainly_and_told_of() -> None:
    one = Tensor.of(np.ones(1))
    tree: Tree = {
        "frozen": frozenset([1, 2]),
        "nested": {frozenset([2, 1]), 3},
        "default": tagged({"a": 1}, Tag("collections.defaultdict", {"default_factory": "builtins.list"})),
        "named": tagged((1, 2), Tag("pkg.Point", {"fields": ("x", "y")})),
        "line": Tensor.of(np.zeros(1), tag=Tag("pkg.Lines")),
        "array": Tensor.of(np.zeros(2), tag=Tag("numpy.ndarray")),
        "strings": Strings((2, 2), ("a", "b", "c", "d")),
        "word": Strings((), ("w",)),
        "opaque": Opaque("os.system", {"args": ("touch sentinel",), "state": {"w": one}}),
        "composite": Composite("numpy.time", {"unit": "1s"}, {"values": one}),
        "huge": 1 << 5000,
    }
    assert dict(map(reversed, lost(tree))) == {  # type: ignore[arg-type]
        "frozen": "frozenset-as-set",
        "default": "class-dropped",
        "named": "class-dropped",
        "line": "class-dropped",
        "strings": "strings-as-list",
        "word": "strings-as-list",
        "opaque": "opaque-as-dict",
        "composite": "composite-as-dict",
        "huge": "int-as-text",
    }
    back = loaded(tree)
    assert isinstance(back, dict)
    assert back["frozen"] == {1, 2}
    assert back["nested"] == {(1, 2), 3}
    assert (back["default"], back["named"]) == ({"a": 1}, (1, 2))
    assert (back["strings"], back["word"]) == ([["a", "b"], ["c", "d"]], "w")
    assert back["opaque"]["class"] == "os.system"
    assert back["opaque"]["args"] == ("touch sentinel",)
    assert back["opaque"]["state"]["w"].item() == 1
    assert back["composite"]["parts"]["values"].item() == 1
    assert int(back["huge"], 16) == 1 << 5000


def test_lists_made_on_the_way_are_not_taken_for_each_other() -> None:
    tree: Tree = [Strings((2,), (str(i), "x")) for i in range(200)]
    assert loaded(tree) == [[str(i), "x"] for i in range(200)]


def test_ties_are_one_storage() -> None:
    array = np.arange(6.0).reshape(2, 3)
    tree: Tree = {"a": Tensor.of(array), "b": Tensor.of(array), "c": Tensor.of(array.copy())}
    data = written(tree)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
    assert [name for name in names if "/data/" in name] == ["archive/data/0", "archive/data/1"]
    back = torch.load(io.BytesIO(data))
    assert back["a"].data_ptr() == back["b"].data_ptr() != back["c"].data_ptr()


def test_sharing_and_cycles_come_back() -> None:
    shared: Tree = {"x": [1]}
    tree: Tree = {"a": shared, "b": [shared, Opaque(CYCLE, {"up": 1}), Opaque(CYCLE, {"up": 2})]}
    back = loaded(tree)
    assert isinstance(back, dict)
    assert back["a"] is back["b"][0]
    assert back["b"][1] is back["b"]
    assert back["b"][2] is back


def everything() -> dict[str, object]:
    dense = torch.tensor([[0.0, 1, 0, 2], [0, 0, 3, 0]])
    six = torch.arange(6.0).reshape(2, 3)
    scales, zeros = torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([1, 2])
    return {
        "coo": dense.to_sparse(),
        "loose": torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,)),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((1, 2)),
        "bsc": dense.to_sparse_bsc((1, 2)),
        "quantized": torch.quantize_per_tensor(six, 0.5, 3, torch.quint8),
        "channel": torch.quantize_per_channel(six, scales, zeros, 0, torch.qint8),
        "packed": torch.quantize_per_channel(six / 10, scales.float(), zeros.float(), 0, torch.quint4x2),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)]),
        "half": torch.view_as_complex(torch.randn(3, 2)).to(torch.complex32),
        "bits": torch.arange(4, dtype=torch.uint8).view(torch.bits4x2),
        "meta": torch.empty(2, 3, device="meta", dtype=torch.float16),
        "fp4": torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "layout": torch.sparse_csr,
        "scheme": torch.per_tensor_affine,
        "grad": torch.ones(2, requires_grad=True),
        "module": torch.nn.BatchNorm1d(3).state_dict(),
        "empty": torch.ones(0, 3),
    }


def form(tree: Tree) -> bytes:
    """Return the structure of a tree without its tensors' bytes."""
    return dumps(encode_tree(tree, lambda tensor: tensor.size))


def test_what_pytorch_wrote_comes_back_through_our_files(tmp_path: Path) -> None:
    value = everything()
    torch.save(value, tmp_path / "model.pt")
    with read(tmp_path / "model.pt") as checkpoint:
        assert write(checkpoint.tree, tmp_path / "ours.pt") == ()
        with read(tmp_path / "ours.pt") as ours:
            assert form(ours.tree) == form(checkpoint.tree)
            for name, tensor in checkpoint.tensors().items():
                assert bytes(ours.tensors()[name].bytes()) == bytes(tensor.bytes())
    torch.save(value, tmp_path / "model.pt")
    expected = torch.load(tmp_path / "model.pt")
    for mapped in (False, True):
        back = torch.load(tmp_path / "ours.pt", weights_only=True, mmap=mapped)
        assert list(back) == list(expected)
        for name in ("coo", "csr", "csc", "bsr", "bsc"):
            assert back[name].layout == expected[name].layout
            assert back[name].to_dense().tolist() == expected[name].to_dense().tolist()
        assert back["coo"].is_coalesced()
        assert not back["loose"].is_coalesced()
        for name in ("quantized", "channel", "packed"):
            assert back[name].dtype == expected[name].dtype
            assert back[name].dequantize().tolist() == expected[name].dequantize().tolist()
        assert [t.tolist() for t in back["nested"].unbind()] == [t.tolist() for t in value["nested"].unbind()]  # type: ignore[attr-defined]
        assert torch.equal(torch.view_as_real(back["half"]), torch.view_as_real(value["half"]))
        assert back["bits"].view(torch.uint8).tolist() == [0, 1, 2, 3]
        assert back["meta"].is_meta
        assert back["fp4"].view(torch.uint8).tolist() == [[0, 1, 2], [3, 4, 5]]
        for name in ("dtype", "device", "layout", "scheme"):
            assert back[name] == value[name]
        assert back["grad"].requires_grad


def test_offsets_computed_without_reading_are_right(tmp_path: Path) -> None:
    from torch.utils.serialization import config  # noqa: PLC0415 - torch is optional

    tree: Tree = {str(n): Tensor.of(np.arange(n, dtype=np.float32)) for n in (0, 1, 15, 16, 17, 1000)}
    write(tree, tmp_path / "m.pt")
    with config.patch({"load.calculate_storage_offsets": True}):  # type: ignore[attr-defined] # made at run time
        back = torch.load(tmp_path / "m.pt", mmap=True)
    assert {name: tensor.tolist() for name, tensor in back.items()} == {
        name: list(range(int(name))) for name in back
    }


def test_the_layout_is_pytorchs_own(tmp_path: Path) -> None:
    value = {"w": torch.arange(5.0), "n": 1}
    path = tmp_path / "archive.pt"
    torch.save(value, path)
    with read(path) as checkpoint:
        write(checkpoint.tree, tmp_path / "ours.pt")

    def layout(path: Path) -> list[tuple[object, ...]]:
        with zipfile.ZipFile(path) as archive:
            return [(i.filename, i.flag_bits, i.file_size, i.compress_type) for i in archive.infolist()]

    ours, theirs = layout(tmp_path / "ours.pt"), layout(path)
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    assert ours[1:] == theirs[1:]  # the pickles differ in the order of their memo at most


def test_bytes_do_not_depend_on_the_file_name_or_the_object(tmp_path: Path) -> None:
    def tree() -> Tree:
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        return {"w": Tensor.of(array), "t": Tensor.of(array.T), "s": {"x", "y", "z", 1}}

    write(tree(), tmp_path / "one.pt")
    write(tree(), tmp_path / "two.bin")
    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "two.bin").read_bytes()


SCRIPT = """
import hashlib, io, numpy
from ckptfmt.frameworks.pytorch.writer import write_to
from ckptfmt.tree.tensor import Tensor
file = io.BytesIO()
write_to({"s": {"x", "yy", "zzz", ("t", 1)}, "w": Tensor.of(numpy.arange(5))}, file)
print(hashlib.sha256(file.getvalue()).hexdigest())
"""


def test_bytes_do_not_depend_on_the_process() -> None:
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_key_order_is_kept() -> None:
    back = loaded({"b": 1, "a": 2, 3: 4})
    assert isinstance(back, dict)
    assert list(back) == ["b", "a", 3]


def test_a_target_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(b"old")
    with pytest.raises(ExistsError):
        write({}, path)
    assert path.read_bytes() == b"old"
    write({}, path, overwrite=True)
    assert torch.load(path) == {}


def test_a_bare_value_can_be_the_root() -> None:
    for value in (1, None, "text"):
        assert loaded(value) == value
    tensor = loaded(Tensor.of(np.ones(3, ml_dtypes.bfloat16)))
    assert tensor.tolist() == [1, 1, 1]  # type: ignore[attr-defined]


def test_large_tensors_are_written_in_pieces(tmp_path: Path) -> None:
    largest = 0

    class Zeros:
        def view(self, start: int, stop: int) -> None:
            del start, stop

        def readinto(self, start: int, out: memoryview) -> None:
            nonlocal largest
            del start
            largest = max(largest, len(out))
            out[:] = bytes(len(out))

    kind = dtype("f32")
    write({"w": Tensor(kind, (9 << 20,), Zeros())}, tmp_path / "m.pt")
    assert largest == 16 << 20
    assert torch.load(tmp_path / "m.pt")["w"].shape == (9 << 20,)
