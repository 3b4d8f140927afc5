from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import FormatError
from ckptfmt.frameworks.pytorch.reader import read
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.nodes import Composite
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.nodes import Tree

torch = pytest.importorskip("torch", reason='reads files that PyTorch writes: needs the extra "torch"')
pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # PyTorch's own: beta features, deprecations
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex128", "complex64", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
SHAPES = [(), (0,), (2, 0), (0, 3), (5,), (2, 3, 4)]


def saved(value: object, folder: Path, **options: object) -> Path:
    path = folder / "model.pt"
    torch.save(value, path, **options)
    return path


def rezipped(
    path: Path, changed: dict[str, bytes | None] | None = None, *, method: int = zipfile.ZIP_STORED
) -> Path:
    """Write the archive again, with other members by their last component; None leaves one out."""
    target, changed = path.with_name("again.pt"), dict(changed or {})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            data = changed.pop(name.rpartition("/")[2], old.read(name))
            if data is not None:
                new.writestr(zipfile.ZipInfo(name), data, method)
        for name, data in changed.items():
            assert data is not None
            new.writestr(zipfile.ZipInfo(f"model/{name}"), data, method)
    return target


def as_bytes(tensor: object) -> bytes:
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()  # type: ignore[attr-defined]
    return bytes(whole.untyped_storage().tolist())


def assert_same(node: Tree, tensor: object) -> None:
    assert isinstance(node, Tensor)
    assert node.shape == tuple(tensor.shape)  # type: ignore[attr-defined]
    assert bytes(node.bytes()) == as_bytes(tensor)


def random_tensor(kind: str, shape: tuple[int, ...]) -> object:
    dtype = getattr(torch, kind)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    width = torch.empty((), dtype=dtype).element_size()
    codes = np.random.default_rng(1).integers(0, 2 if kind == "bool" else 256, (*shape, width), np.uint8)
    return torch.from_numpy(codes).view(dtype).reshape(shape)


@pytest.mark.parametrize("kind", DTYPES)
def test_every_type_and_shape_has_pytorchs_bytes(tmp_path: Path, kind: str) -> None:
    tensors = {str(shape): random_tensor(kind, shape) for shape in SHAPES}
    with read(saved(tensors, tmp_path)) as checkpoint:
        assert len(checkpoint.tensors()) == len(tensors)
        for name, tensor in tensors.items():
            assert_same(checkpoint[name], tensor)


@pytest.mark.parametrize("kind", [kind for kind in DTYPES if not kind.endswith("e8m0fnu")])
def test_big_endian_files_have_the_same_values(tmp_path: Path, kind: str) -> None:
    tensor = random_tensor(kind, (3, 5))
    width = tensor.element_size() // (2 if kind.startswith("complex") else 1)  # type: ignore[attr-defined]
    path = saved({"t": tensor, "v": tensor.t()[1:]}, tmp_path)  # type: ignore[attr-defined]
    with zipfile.ZipFile(path) as archive:
        raw = archive.read("model/data/0")
    swapped = np.frombuffer(raw, np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    big = rezipped(path, {"byteorder": b"big", "0": swapped})
    if (
        not kind.startswith("uint") or kind == "uint8"
    ):  # PyTorch forgets to swap what lies in untyped storages
        assert as_bytes(torch.load(big)["t"]) == as_bytes(tensor)
    with read(big) as checkpoint:
        assert_same(checkpoint["t"], tensor)
        assert_same(checkpoint["v"], tensor.t()[1:])  # type: ignore[attr-defined]


def test_views_of_any_strides_are_packed(tmp_path: Path) -> None:
    base = torch.arange(120, dtype=torch.int32).reshape(4, 5, 6)
    views = {
        "transposed": base.permute(2, 0, 1),
        "stepped": base[::2, 1::3, ::2],
        "offset": base[2],
        "expanded": base[0, 0].expand(7, 6),
        "scalar": base[1, 2, 3],
        "empty": base[:, 5:],
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "volume": torch.randn(2, 3, 4, 5, 2).to(memory_format=torch.channels_last_3d),
        "conj": torch.tensor([1 + 2j, -0.0 + 1j]).conj(),
        "neg": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "negint": torch._neg_view(torch.tensor([1, -(2**31), 7], dtype=torch.int32)),
        "both": torch._neg_view(torch.tensor([1 + 2j, 0j]).conj()),
    }
    with read(saved(views, tmp_path)) as checkpoint:
        for name, view in views.items():
            assert_same(checkpoint[name], view)
        assert checkpoint["channels"].tag.attributes == {"memory_format": "channels_last"}  # type: ignore[union-attr]
        assert checkpoint["volume"].tag.attributes == {"memory_format": "channels_last_3d"}  # type: ignore[union-attr]
        conj = checkpoint["conj"]
        assert isinstance(conj, Tensor)
        piece = bytearray(5)
        conj.source.readinto(6, memoryview(piece))  # a range that cuts numbers
        assert bytes(piece) == as_bytes(views["conj"])[6:11]
        assert [f.kind for f in checkpoint.findings] == ["views-apart"]


def test_ties_are_one_identity_and_empty_tensors_none(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    value = {"a": weight, "b": weight.view(4, 3), "t": weight.t(), "c": weight.clone()}
    empty = torch.ones(0)
    with read(saved({**value, "e": empty, "f": empty}, tmp_path)) as checkpoint:
        found = {name: tensor.identity for name, tensor in checkpoint.tensors().items()}
    assert found["a"] == found["b"]
    assert len({found["a"], found["t"], found["c"]}) == 3
    assert found["e"] is found["f"] is None


def test_packed_and_half_types_are_kept_by_bits(tmp_path: Path) -> None:
    pairs = torch.tensor([[0x21, 0x43, 0x65], [0x87, 0xA9, 0xCB]], dtype=torch.uint8)
    value = {
        "fp4": pairs.view(torch.float4_e2m1fn_x2),
        "half": torch.view_as_complex(torch.randn(3, 2)).to(torch.complex32),
        "bits": pairs.view(torch.bits4x2),
        "bits16": pairs.flatten().view(torch.bits16),
    }
    with read(saved(value, tmp_path)) as checkpoint:
        fp4 = checkpoint["fp4"]
        assert isinstance(fp4, Tensor)
        assert (fp4.dtype.name, fp4.shape) == ("f4_e2m1fn", (2, 6))
        assert bytes(fp4.bytes()) == bytes(pairs.flatten().tolist())
        assert fp4.numpy().view(np.uint8)[1].tolist() == [7, 8, 9, 10, 11, 12]
        half = checkpoint["half"]
        assert isinstance(half, Composite)
        assert_same(half.parts["values"], torch.view_as_real(value["half"]))
        for name, shape in (("bits", (2, 3)), ("bits16", (3,))):
            bits = checkpoint[name]
            assert isinstance(bits, Composite)
            values = bits.parts["values"]
            assert isinstance(values, Tensor)
            assert values.shape == shape
            assert bytes(values.bytes()) == bytes(pairs.flatten().tolist())


def test_sparse_layouts_are_composites(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 1, 0, 2], [0, 0, 3, 0]])
    value = {
        "sparse_coo": dense.to_sparse(),
        "sparse_csr": dense.to_sparse_csr(),
        "sparse_csc": dense.to_sparse_csc(),
        "sparse_bsr": dense.to_sparse_bsr((1, 2)),
        "sparse_bsc": dense.to_sparse_bsc((1, 2)),
    }
    with read(saved(value, tmp_path)) as checkpoint:
        for name, tensor in value.items():
            node = checkpoint[name]
            assert isinstance(node, Composite)
            assert node.name == name
            assert node.attributes["size"] == (2, 4)
            for part, inside in node.parts.items():
                method = getattr(tensor, f"_{part!s}" if name == "sparse_coo" else str(part))
                assert_same(inside, method())
        coo = checkpoint["sparse_coo"]
        assert isinstance(coo, Composite)
        assert coo.attributes["is_coalesced"] is True


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")])
def test_a_class_that_a_composite_cannot_keep_is_a_loss(tensor: object, tmp_path: Path) -> None:
    with read(saved({"w": torch.nn.Parameter(tensor)}, tmp_path)) as checkpoint:
        told = {finding.kind: finding.severity for finding in checkpoint.findings}
    assert told["class-dropped"] is Severity.LOSS


def test_quantised_tensors_are_composites(tmp_path: Path) -> None:
    dense = torch.arange(6.0).reshape(2, 3)
    scales, zeros = torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([1, 2])
    value = {
        "tensor": torch.quantize_per_tensor(dense, 0.5, 3, torch.quint8),
        "signed": torch.quantize_per_tensor(dense, 0.5, 3, torch.qint32),
        "channel": torch.quantize_per_channel(dense, scales, zeros, 0, torch.qint8),
        "packed": torch.quantize_per_channel(dense / 10, scales.float(), zeros.float(), 0, torch.quint4x2),
    }
    with read(saved(value, tmp_path)) as checkpoint:
        found = {name: checkpoint[name] for name in value}
        for name in ("tensor", "signed", "channel"):
            node = found[name]
            assert isinstance(node, Composite)
            assert_same(node.parts["values"], value[name].int_repr())
        tensor, channel, packed = found["tensor"], found["channel"], found["packed"]
        assert isinstance(tensor, Composite)
        assert tensor.attributes == {
            "dtype": "quint8",
            "qscheme": "per_tensor_affine",
            "scale": 0.5,
            "zero_point": 3,
        }
        assert isinstance(channel, Composite)
        assert channel.attributes == {"dtype": "qint8", "qscheme": "per_channel_affine", "axis": 0}
        assert_same(channel.parts["scales"], scales)
        assert_same(channel.parts["zero_points"], zeros)
        assert isinstance(packed, Composite)
        codes = packed.parts["values"]
        assert isinstance(codes, Tensor)
        expected = torch.round(value["packed"].dequantize() / scales.float()[:, None] + zeros[:, None])
        assert codes.dtype.name == "u4"
        assert codes.numpy().astype(int).tolist() == expected.int().tolist()


def test_nested_and_meta_tensors_are_composites(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)])
    value = {"nested": nested, "meta": torch.empty(2, 3, device="meta", dtype=torch.float16)}
    with read(saved(value, tmp_path)) as checkpoint:
        node, meta = checkpoint["nested"], checkpoint["meta"]
        assert isinstance(node, Composite)
        assert_same(node.parts["buffer"], nested.values())
        assert_same(node.parts["sizes"], nested._nested_tensor_size())
        assert isinstance(meta, Composite)
        assert meta.attributes == {
            "dtype": "float16",
            "size": (2, 3),
            "stride": (3, 1),
            "requires_grad": False,
        }
        assert [f.kind for f in checkpoint.findings] == ["meta-tensor"]


def open_all(path: Path) -> Checkpoint:
    checkpoint = read(path)
    for tensor in checkpoint.tensors().values():
        tensor.bytes()
    return checkpoint


def test_rezipped_and_deflated_files_are_read(tmp_path: Path) -> None:
    value = {"w": torch.randn(300, 7), "t": torch.randn(5, 4).t()}
    path = saved(value, tmp_path)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with read(rezipped(path, method=method)) as checkpoint:
            for name, tensor in value.items():
                assert_same(checkpoint[name], tensor)


def test_files_without_checksums_are_read_and_told_of(tmp_path: Path) -> None:
    from torch.utils.serialization import config  # noqa: PLC0415 - torch is optional

    with config.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined] # made at run time
        path = saved({"w": torch.arange(5)}, tmp_path)
    with open_all(path) as checkpoint:
        assert_same(checkpoint["w"], torch.arange(5))
        assert [f.kind for f in checkpoint.findings] == ["crc-absent"]


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    path = saved({"model": {"w": torch.randn(1000)}, "x": torch.ones(3).t()}, tmp_path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        raw = archive.read("model/data/0")
    data[data.index(raw) + 100] ^= 1
    path.write_bytes(data)
    torch.load(path)  # says nothing
    with read(path) as checkpoint:
        with pytest.raises(FormatError, match=r"data/0.*tensor model/w") as caught:
            checkpoint.tensors()["model/w"].numpy()
        assert caught.value.kind == "checksum"
        assert_same(checkpoint["x"], torch.ones(3))


def test_old_names_and_python_2_are_read(tmp_path: Path) -> None:
    pickled = (
        b"\x80\x02}(U\x03\xc3\xa9\xffctorch._utils\n_rebuild_tensor\n((U\x07storagectorch\nFloatStorage\n"
        b"U\x010U\x03cpuK\x03tQK\x00K\x03\x85K\x01\x85tRU\x04textU\x02\xc3\xa9U\x02idI140619061185824\n"
        b"U\x04oldtctorch\nFloatTensor\n)R((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x03tQ"
        b"K\x01K\x02\x85K\x01\x85tbu."
    )
    path = rezipped(saved({"w": torch.arange(3.0)}, tmp_path), {"data.pkl": pickled, "byteorder": None})
    with read(path) as checkpoint:
        assert_same(checkpoint["Ã©ÿ"], torch.arange(3.0))
        assert_same(checkpoint["oldt"], torch.arange(1.0, 3.0))
        assert checkpoint["text"] == "é"
        assert checkpoint["id"] == 140_619_061_185_824


def test_optimizer_states_of_all_kinds_are_read(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adafactor):
        optimizer = make(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        with read(saved(state, tmp_path)) as checkpoint:
            for index, entry in state["state"].items():
                for name, value in entry.items():
                    if isinstance(value, torch.Tensor):
                        assert_same(checkpoint.at(("state", index, name)), value)
            assert checkpoint.at(("param_groups", 0, "lr")) == 0.1
