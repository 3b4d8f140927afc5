"""Directories that we write, judged by PyTorch's own reader and planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.frameworks.pytorch.dcp.writer import write
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Severity
from ckptfmt.tree.nodes import Composite, Opaque, Tag, tagged
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

Foreign: TypeAlias = Any  # an object of a library without types

KINDS = [
    *(
        "f64",
        "f32",
        "f16",
        "bf16",
        "i64",
        "i32",
        "i16",
        "i8",
        "u8",
        "bool",
        "c128",
        "c64",
        "u16",
        "u32",
        "u64",
    ),
    *("f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0fnu"),
]
SHAPES = [(), (0,), (2, 0), (1,), (5,), (2, 3, 4)]


def of_bits(kind: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of bits that are all different from each other's."""
    found = dtype(kind)
    data = np.random.default_rng([len(shape), found.bits]).integers(0, 256, found.nbytes(shape), np.uint8)
    if kind == "bool":
        data &= 1
    return Tensor(found, shape, BytesSource(data.data))


def raw(tensor: Foreign) -> bytes:
    """Return the bytes of one of PyTorch's tensors."""
    return bytes(tensor.detach().contiguous().clone().untyped_storage().tolist())


@pytest.mark.framework
@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_reads_every_type_bit_for_bit(dcp: Foreign, shape: tuple[int, ...], tmp_path: Path) -> None:
    tree = {kind: of_bits(kind, shape) for kind in KINDS}
    assert write(as_tree(tree)[0], tmp_path / "a") == ()
    found = dcp.everything(tmp_path / "a")
    assert list(found) == KINDS
    for kind, tensor in tree.items():
        assert tuple(found[kind].shape) == shape
        assert raw(found[kind]) == bytes(tensor.bytes()), kind
        assert str(found[kind].dtype).removeprefix("torch.") in (tensor.dtype.numpy.name, "float8_e4m3fn")


def nested() -> dict[str, Any]:
    weight = np.arange(6, dtype="f4").reshape(2, 3)
    return {
        "model": {"w": weight, "tied": weight, "t": weight.T, "dotted.name": {"a.b": np.zeros(1)}},
        "optim": {
            "param_groups": [{"lr": 0.1, "betas": (0.8, 0.9), "params": ["w"]}],
            "state": {"w": {"n": 1}},
        },
        "list": [np.ones(1), {"deep": [np.zeros(1), 5]}, 7, [1, 2]],
        "plain": [1, 2.5, None, "é", b"x", True],
        "tuple": (1, np.ones(2)),
    }


def same(found: Foreign, wanted: Foreign) -> None:
    """Assert that PyTorch's objects are those of numpy's, kind for kind."""
    if isinstance(wanted, np.ndarray):
        assert raw(found) == wanted.tobytes()
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            same(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert (type(found), found) == (type(wanted), wanted)


@pytest.mark.framework
def test_pytorch_gets_the_nested_state_back(dcp: Foreign, tmp_path: Path) -> None:
    tree, _ = as_tree(nested())
    assert write(tree, tmp_path / "a") == ()
    same(dcp.everything(tmp_path / "a"), nested())


@pytest.mark.framework
def test_the_default_planner_loads_in_place_even_beside_a_note(dcp: Foreign, tmp_path: Path) -> None:
    tree, _ = as_tree(nested() | {"numbers": {1: np.ones(2, "i4")}, "empty": {}})
    findings = write(tree, tmp_path / "a")
    assert [finding.kind for finding in findings] == ["structure-note"]
    torch = dcp.torch
    state: dict[str, Foreign] = {
        "model": {"w": torch.zeros(2, 3), "dotted.name": {"a.b": torch.ones(1, dtype=torch.float64)}},
        "numbers": {1: torch.zeros(2, dtype=torch.int32)},
        "optim": {"param_groups": [{"lr": None, "betas": None, "params": None}]},
    }
    dcp.load(state, tmp_path / "a")
    assert state["model"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert state["numbers"][1].tolist() == [1, 1]
    assert state["optim"]["param_groups"] == nested()["optim"]["param_groups"]


@pytest.mark.framework
def test_what_we_write_and_what_pytorch_writes_read_alike(dcp: Foreign, tmp_path: Path) -> None:
    torch = dcp.torch
    state = {
        "m": {"w": torch.arange(6.0).reshape(2, 3), "h": torch.ones(2, dtype=torch.bfloat16)},
        "l": [torch.ones(1), 5],
        "n": 7,
        "p": [1, 2],
    }
    dcp.save(state, tmp_path / "theirs")
    torch.save(state, tmp_path / "a.pt")
    ckptfmt.convert(tmp_path / "a.pt", tmp_path / "ours", to="dcp")
    with ckptfmt.read(tmp_path / "theirs") as theirs, ckptfmt.read(tmp_path / "ours") as ours:
        assert ckptfmt.digest(theirs).root == ckptfmt.digest(ours).root
    rows = [dcp.package.FileSystemReader(tmp_path / name).read_metadata() for name in ("theirs", "ours")]
    assert rows[0].state_dict_metadata == rows[1].state_dict_metadata
    assert rows[0].planner_data == rows[1].planner_data
    assert rows[0].version == rows[1].version
    assert set(rows[0].storage_data) == set(rows[1].storage_data)
    assert rows[1].storage_meta.checkpoint_id is None


@pytest.mark.framework
def test_sparse_quantised_and_parameters_are_loaded(dcp: Foreign, tmp_path: Path) -> None:
    torch = dcp.torch
    state = {
        "sparse": torch.eye(3).to_sparse(),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.quint8),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    report_findings = ckptfmt.write(state, tmp_path / "a", to="dcp")
    assert not [finding for finding in report_findings if finding.severity is Severity.LOSS]
    found = dcp.everything(tmp_path / "a")
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(found["quantised"].int_repr(), state["quantised"].int_repr())
    assert found["parameter"].tolist() == [1, 1]
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(state).root
        tag = checkpoint.tensors()["parameter"].tag
        assert tag is not None
        assert tag.name == "torch.nn.parameter.Parameter"


@pytest.mark.framework
def test_a_file_is_closed_at_the_size_asked_for(dcp: Foreign, tmp_path: Path) -> None:
    tree = {f"w{k}": np.full(4096, k, "f4") for k in range(6)}
    ckptfmt.write(tree, tmp_path / "a", to="dcp", shard_size=40_000)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [".metadata", "__0_0.distcp", "__0_1.distcp", "__0_2.distcp"]
    same(dcp.everything(tmp_path / "a"), tree)


def test_ties_are_stored_once_and_come_back(tmp_path: Path) -> None:
    large = np.zeros(100_000, "f4")
    ckptfmt.write({"a": large, "b": {"c": large}}, tmp_path / "a", to="dcp")
    assert (tmp_path / "a" / "__0_0.distcp").stat().st_size < 500_000
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        first, second = checkpoint.tensors().values()
        assert first.identity == second.identity


def test_a_tie_into_a_tuple_is_told_as_broken(tmp_path: Path) -> None:
    weight = np.ones(3)
    tree = {"w": weight, "pair": (weight, weight), "n": {1: 2}}
    findings = ckptfmt.write(tree, tmp_path / "a", to="dcp")
    assert [(f.kind, f.path) for f in findings if f.severity is Severity.LOSS] == [("tie-broken", "pair/0")]
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root
        tensors = checkpoint.tensors()
        assert tensors["pair/0"].identity == tensors["pair/1"].identity != tensors["w"].identity


@pytest.mark.parametrize(
    "tree",
    [
        {"s3": np.array([b"abc", b"d"]), "i4": np.arange(3).astype(ml_dtypes.int4)},
        {"pair": (np.arange(3).astype(ml_dtypes.uint4), np.array([b"abc"]))},
        {"f4": np.ones((2, 3)).astype(ml_dtypes.float4_e2m1fn), "even": np.ones(4, ml_dtypes.float4_e2m1fn)},
        [np.ones(2), {"a": 1}],
        Composite("thing", {"n": 1}, {"w": Tensor.of(np.ones(2))}),
        {"o": Opaque("some.Class", {"args": (Tensor.of(np.ones(2)), {1: 2}), "state": None})},
        tagged(
            {"w": Tensor.of(np.ones(2))}, Tag("collections.OrderedDict", {"_metadata": {"": {"version": 1}}})
        ),
        {"e": {}, "l": [{}, np.ones(1)], "s": frozenset({1})},
        {None: 1, 0.5: np.ones(1), b"k": [np.ones(2)], (1, "x"): {True: np.zeros(1)}},
        np.ones(3),
        {},
    ],
)
def test_what_dcp_has_no_word_for_comes_back_by_the_note(tree: Foreign, tmp_path: Path) -> None:
    findings = ckptfmt.write(tree, tmp_path / "a", to="dcp")
    assert not [finding for finding in findings if finding.severity is Severity.LOSS]
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert checkpoint.findings == ()
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root


def test_a_note_that_does_not_match_is_ignored_with_a_finding(tmp_path: Path) -> None:
    found = ckptfmt.write({"w": np.ones(2), "ckptfmt": "x", "t": {}}, tmp_path / "c", to="dcp")
    assert [finding.kind for finding in found] == ["structure-note"]
    data = bytearray((tmp_path / "c" / ".metadata").read_bytes())
    data = data.replace(b"\x01\x00\x00\x00w", b"\x01\x00\x00\x00v")
    (tmp_path / "c" / ".metadata").write_bytes(data)
    with ckptfmt.read(tmp_path / "c") as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["note-mismatch"]
        assert set(checkpoint.tree) == {"v", "ckptfmt"}  # type: ignore[arg-type] # a dict


@pytest.mark.parametrize(
    "tree",
    [
        {"a.b": 1, "a": {"b": 2}},
        {"d": {1: 1, "1": 2}},
        {"a": {"b.c": 1}, "a.b": {"c": 1}},
        {"l": [np.ones(1)], "l.0": 1},
        {"ckptfmt.tree": 1},
        {"ckptfmt": {"tree": 1}},
    ],
)
def test_paths_of_one_name_are_refused_and_nothing_is_left(tree: Foreign, tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.ConversionError, match="would both be called"):
        ckptfmt.write(tree, tmp_path / "a", to="dcp")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.framework
def test_pytorch_refuses_the_same_paths(dcp: Foreign, tmp_path: Path) -> None:
    for tree in ({"a.b": 1, "a": {"b": 2}}, {"d": {1: 1, "1": 2}}):
        with pytest.raises(BaseException, match="duplicated flatten key"):
            dcp.save(tree, tmp_path / "a")


def test_the_bytes_do_not_depend_on_when_and_where(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        ckptfmt.write(nested() | {"n": int("1000"), "m": int("1000")}, tmp_path / name / "a", to="dcp")
    for file in (".metadata", "__0_0.distcp"):
        assert (tmp_path / "one/a" / file).read_bytes() == (tmp_path / "other/a" / file).read_bytes()


def test_a_checkpoint_is_replaced_whole_and_nothing_else_is(tmp_path: Path) -> None:
    target = tmp_path / "a"
    ckptfmt.write({"w": np.zeros(3)}, target, to="dcp")
    ckptfmt.write({"w": np.ones(2)}, target, to="dcp", overwrite=True)
    with ckptfmt.read(target) as checkpoint:
        assert checkpoint.tensors()["w"].numpy().tolist() == [1, 1]
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ckptfmt.ExistsError, match=r"notes\.txt"):
        ckptfmt.write({"w": np.ones(2)}, target, to="dcp", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failing_source_leaves_nothing(tmp_path: Path) -> None:
    ckptfmt.write({"w": np.zeros(3), "v": np.ones(3)}, tmp_path / "a.npz", to="npz")
    data = bytearray((tmp_path / "a.npz").read_bytes())
    at = data.rindex(np.ones(3).tobytes())
    data[at] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ckptfmt.FormatError):
        ckptfmt.convert(tmp_path / "a.npz", tmp_path / "b", to="dcp")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_keys_that_are_no_text_of_unicode_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.TreeError):
        write({"\ud800": 1}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
