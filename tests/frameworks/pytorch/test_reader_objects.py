from __future__ import annotations

import argparse
import collections
import enum
import io
import pathlib
import pickle
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from ckptfmt.frameworks.pytorch.reader import read
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, tag_of
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

torch = pytest.importorskip("torch", reason='reads files that PyTorch writes: needs the extra "torch"')
pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # PyTorch's own: beta features, deprecations
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Colour(enum.Enum):
    RED = "red"


class Outer:
    class Inner:
        pass


class Lines(torch.Tensor):  # type: ignore[misc, name-defined] # torch is known at run time only
    pass


def saved(value: object, folder: Path, **options: object) -> Path:
    path = folder / "model.pt"
    torch.save(value, path, **options)
    return path


def as_bytes(tensor: object) -> bytes:
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()  # type: ignore[attr-defined]
    return bytes(whole.untyped_storage().tolist())


def assert_same(node: Tree, tensor: object) -> None:
    assert isinstance(node, Tensor)
    assert node.shape == tuple(tensor.shape)  # type: ignore[attr-defined]
    assert bytes(node.bytes()) == as_bytes(tensor)


def test_classes_are_tags(tmp_path: Path) -> None:
    module = torch.nn.BatchNorm1d(3)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameter.extra = "kept"
    line = torch.ones(2).as_subclass(Lines)
    line.note = 1
    value = {
        "state": module.state_dict(),
        "parameter": parameter,
        "buffer": torch.nn.Buffer(torch.ones(2)),
        "grad": torch.ones(2, requires_grad=True),
        "line": line,
        "default": collections.defaultdict(list, {"a": [1]}),
        "counter": collections.Counter("aab"),
        "size": torch.Size([1, 2]),
        "bytearray": bytearray(b"xy"),
        "scalar": np.float64(1.5),
        "array": np.arange(6, dtype=">i2").reshape(2, 3).T,
        "plain": torch.ones(2),
    }
    with read(saved(value, tmp_path)) as checkpoint:
        tags = {name: tag_of(checkpoint[name]) for name in value}
        array = checkpoint["array"]
        assert isinstance(array, Tensor)
        assert array.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    shown = {name: None if tag is None else (tag.name, tag.attributes) for name, tag in tags.items()}
    line_class = f"{Lines.__module__}.Lines"
    assert shown == {
        "state": ("collections.OrderedDict", {"_metadata": {"": {"version": 2}}}),
        "parameter": (
            "torch.nn.parameter.Parameter",
            {"requires_grad": False, "state": {"extra": "kept"}},
        ),
        "buffer": ("torch.Tensor", {"state": {"persistent": True, "_is_buffer": True}}),
        "grad": ("torch.Tensor", {"requires_grad": True}),
        "line": (line_class, {"state": {"note": 1}}),
        "default": ("collections.defaultdict", {"default_factory": "builtins.list"}),
        "counter": ("collections.Counter", {}),
        "size": ("torch.Size", {}),
        "bytearray": ("builtins.bytearray", {}),
        "scalar": ("numpy.scalar", {}),
        "array": ("numpy.ndarray", {}),
        "plain": None,
    }


def plain(node: Tree) -> object:
    if isinstance(node, Opaque):
        return node.name, {key: plain(part) for key, part in node.parts.items()}
    if isinstance(node, dict):
        return {key: plain(part) for key, part in node.items()}
    if isinstance(node, list | tuple):
        parts = [plain(part) for part in node]
        return tuple(parts) if isinstance(node, tuple) else parts
    return node


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_python_objects_are_plain_or_opaque(tmp_path: Path, protocol: int) -> None:
    value = {
        "set": {1, "a", (2, 3)},
        "frozenset": frozenset([1]),
        "complex": 1 - 2j,
        "bytes": b"\x00\xff",
        "slice": slice(1, None, 2),
        "range": range(3),
        "path": pathlib.PurePosixPath("a/b"),
        "space": argparse.Namespace(lr=0.1, names=["x"]),
        "enum": Colour.RED,
        "inner": Outer.Inner,
        "dtype": torch.float32,
        "device": torch.device("cuda", 1),
        "layout": torch.sparse_csr,
        "big": -(2**100),
    }
    with read(saved(value, tmp_path, pickle_protocol=protocol)) as checkpoint:
        tree = {name: plain(checkpoint[name]) for name in value}
    none: dict[str, object] = {"state": None}
    here = Colour.__module__
    inner: tuple[str, dict[str, object]] = (f"{here}.Outer.Inner", {})
    if protocol < 4:  # a class inside a class is spelled as a call of getattr
        inner = ("builtins.getattr", {"args": ((f"{here}.Outer", {}), "Inner"), **none})
    assert tree == {
        **{name: value[name] for name in ("set", "frozenset", "complex", "bytes", "big")},
        "slice": ("builtins.slice", {"args": (1, None, 2), **none}),
        "range": ("builtins.range", {"args": (0, 3, 1), **none}),
        "path": ("pathlib.PurePosixPath", {"args": ("a", "b"), **none}),
        "space": ("argparse.Namespace", {"args": (), "state": {"lr": 0.1, "names": ["x"]}}),
        "enum": (f"{here}.Colour", {"args": ("red",), **none}),
        "inner": inner,
        "dtype": ("torch.float32", {}),
        "device": ("torch.device", {"args": ("cuda", 1), **none}),
        "layout": ("torch.serialization._get_layout", {"args": ("torch.sparse_csr",), **none}),
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numpy_values_are_read(tmp_path: Path, protocol: int) -> None:
    arrays: dict[str, np.ndarray] = {
        "f4": np.arange(6, dtype="f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">c8"),
        "bool": np.array([True, False]),
        "bytes": np.array([b"ab", b"c"]),
        "empty": np.zeros((0, 3)),
        "point": np.array(5),
        "bf16": np.arange(4).astype(ml_dtypes.bfloat16),
        "fp8": np.arange(4).astype(ml_dtypes.float8_e5m2),
    }
    special = {"text": np.array(["é", "long"]), "objects": np.array(["a", "bc"], object)}
    times = np.array(["2020-01-01", "NaT"], "M8[3D]")
    mixed = {**arrays, **special, "times": times, 7: np.int64(3), np.int32(8): 1, "str": np.str_("x")}
    with read(saved(mixed, tmp_path, pickle_protocol=protocol)) as checkpoint:
        for name, array in arrays.items():
            node = checkpoint[name]
            assert isinstance(node, Tensor)
            assert node.shape == array.shape
            assert bytes(node.bytes()) == array.astype(node.dtype.numpy).tobytes()
        for name, array in special.items():
            strings = checkpoint[name]
            assert isinstance(strings, Strings)
            assert list(strings.values) == array.tolist()
        node = checkpoint["times"]
        assert isinstance(node, Composite)
        assert node.attributes["unit"] == "3D"
        assert checkpoint[8] == 1
        assert checkpoint["str"] == "x"


def test_a_whole_module_gives_its_weights(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with read(saved({"model": module}, tmp_path)) as checkpoint:
        found = checkpoint.tensors()
        path = "model/state/_modules/{}/state/_parameters/{}"
        for index in (0, 1):
            for name in ("weight", "bias"):
                assert_same(found[path.format(f'"{index}"', name)], getattr(module[index], name))
        assert_same(found['model/state/_modules/"1"/state/_buffers/running_var'], module[1].running_var)


def test_sharing_and_cycles_survive(tmp_path: Path) -> None:
    shared = {"x": [1]}
    cycle: list[object] = [shared, shared]
    cycle.append({"self": cycle})
    with read(saved({"c": cycle}, tmp_path)) as checkpoint:
        node = checkpoint["c"]
        assert isinstance(node, list)
        assert node[0] is node[1]
        inside = node[2]["self"]  # type: ignore[index, call-overload]
        assert isinstance(inside, Opaque)
        assert (inside.name, inside.parts) == (CYCLE, {"up": 2})


def test_keys_of_any_kind_are_kept(tmp_path: Path) -> None:
    keys: list[Key] = ["a/b", "a.b", "", 1, -5, 2.5, None, True + 1, (1, "x", (None,)), b"\xff", "1"]
    value = {key: index for index, key in enumerate(keys)}
    with read(saved(value, tmp_path)) as checkpoint:
        assert checkpoint.tree == value
    foreign = {torch.float32: 1, Colour.RED: torch.ones(2)}
    with read(saved(foreign, tmp_path)) as checkpoint:
        assert isinstance(checkpoint.tree, Opaque)
        assert_same(checkpoint.tensors()["pairs/1/1"], torch.ones(2))


def test_storages_are_tensors_that_know_their_class(tmp_path: Path) -> None:
    value = {"typed": torch.arange(3.0).storage(), "untyped": torch.ones(2).untyped_storage()}
    with read(saved(value, tmp_path)) as checkpoint:
        assert_same(checkpoint["typed"], torch.arange(3.0))
        untyped = checkpoint["untyped"]
        assert isinstance(untyped, Tensor)
        assert bytes(untyped.bytes()) == as_bytes(torch.ones(2))
        assert tag_of(checkpoint["typed"]).name == "torch.FloatStorage"  # type: ignore[union-attr]
        assert tag_of(untyped).name == "torch.storage.UntypedStorage"  # type: ignore[union-attr]


def test_wrapped_subclasses_keep_their_tensors_within_reach(tmp_path: Path) -> None:
    class Holder:
        def __reduce__(self) -> tuple[object, ...]:
            inner = (torch.Tensor, torch.float32, (2,), (1,), 0, torch.strided, "cpu", False)
            state = {"_local": torch.ones(2)}
            function = torch._utils._rebuild_wrapper_subclass
            return torch._tensor._rebuild_from_type_v2, (function, Lines, inner, state)

    with read(saved({"w": Holder()}, tmp_path)) as checkpoint:
        node = checkpoint["w"]
        assert isinstance(node, Opaque)
        assert node.name == f"{Lines.__module__}.Lines"
        assert_same(checkpoint.tensors()["w/state/_local"], torch.ones(2))


def test_bytes_in_memory_and_pickles_of_pickles_stay_data(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"x": 1}, buffer)
    value = {"inner": buffer.getvalue(), "pickle": pickle.dumps(Colour.RED)}
    with read(saved(value, tmp_path)) as checkpoint:
        assert checkpoint.tree == value
