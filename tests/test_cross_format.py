"""One state, one digest, in every format: files by the real programs, by us, and live objects."""

from __future__ import annotations

import collections
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.tree.nodes import Composite, Opaque, Strings, Tag, tagged
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def plain() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "w": rng.standard_normal((7, 3)).astype("f4"),
        "empty": np.zeros((0, 4), "f8"),
        "scalar": np.array(7, "i8"),
        "flags": np.array([True, False]),
        "half": np.arange(5, dtype="f2"),
    }


@pytest.fixture
def torch() -> ModuleType:
    found: ModuleType = pytest.importorskip("torch", reason="needs the extra `torch`")
    return found


@pytest.mark.framework
def test_the_same_tensors_have_the_same_digests_in_every_format(torch: ModuleType, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy", reason="needs safetensors").save_file
    state = plain()
    np.savez(tmp_path / "a.npz", **state)  # type: ignore[arg-type] # arrays all
    save_file(state, tmp_path / "a.safetensors")
    torch.save({name: torch.from_numpy(array) for name, array in state.items()}, tmp_path / "a.pt")
    receipt = ckptfmt.save(state, tmp_path / "a")
    for name in ("a.npz", "a.safetensors", "a.pt", "a"):
        with ckptfmt.read(tmp_path / name) as checkpoint:
            found = ckptfmt.digest(checkpoint)
            assert found.bag == receipt.bag, name
            assert found.tensors == ckptfmt.digest(state).tensors, name


def everything() -> dict:
    one = Tensor.of(np.arange(6, dtype="f4").reshape(2, 3))
    inner = {"v": np.ones(3, ml_dtypes.bfloat16)}
    return {
        "model": tagged(
            {"w": one, "tied": one, "a.b": Tensor.of(np.zeros(2))}, Tag("collections.OrderedDict")
        ),
        "a": {"b": np.zeros((1, 0))},
        "shared": [inner, inner],
        "kinds": (None, True, 2**70, 0.1, -0.0, 1j, "é", b"\x00", {1, 2}, frozenset("ab")),
        1: "one",
        (1, "x"): {None: 1, 0.5: 2, b"k": 3},
        "strings": Strings((2,), ("a", "")),
        "composite": Composite("thing", {"n": 1}, {"part": Tensor.of(np.arange(3))}),
        "opaque": Opaque("some.Class", {"args": (1,), "state": {"x": None}}),
        "types": [
            np.zeros(3, kind) for kind in (ml_dtypes.int4, ml_dtypes.float8_e8m0fnu, "c16", "S3", "?", "u2")
        ],
    }


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_tree_of_every_kind_comes_back_through_the_structure_note(suffix: str, tmp_path: Path) -> None:
    receipt = ckptfmt.save(everything(), tmp_path / "one")
    report = ckptfmt.convert(tmp_path / "one", tmp_path / f"two{suffix}", strict=True)
    assert not [finding for finding in report.findings if finding.severity is ckptfmt.Severity.LOSS]
    ckptfmt.convert(tmp_path / f"two{suffix}", tmp_path / "three")
    with ckptfmt.load(tmp_path / "three", verify="full") as checkpoint:
        assert (checkpoint.root, checkpoint.bag) == (receipt.root, receipt.bag)
        tensors = checkpoint.tensors()
        assert tensors["model/w"] is tensors["model/tied"]
        assert isinstance(checkpoint.tree, dict)
        assert list(checkpoint.tree) == list(everything())


def test_what_a_pt_cannot_hold_is_a_loss_and_strict_writes_nothing(tmp_path: Path) -> None:
    ckptfmt.save(everything(), tmp_path / "one")
    report = ckptfmt.convert(tmp_path / "one", tmp_path / "two.pt")
    lost = {finding.path for finding in report.findings if finding.severity is ckptfmt.Severity.LOSS}
    assert {"opaque", "strings"} <= {path.split("/")[0] for path in lost}
    with pytest.raises(ckptfmt.LossyError) as caught:
        ckptfmt.convert(tmp_path / "one", tmp_path / "three.pt", strict=True)
    assert {finding.path for finding in caught.value.findings} == lost
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two.pt"]


_TORCH_SAVE = """
import sys, torch
order = sys.argv[2].split(",")
values = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3), "n": 5}
torch.save({key: values[key] for key in order}, sys.argv[1])
"""


@pytest.mark.framework
def test_a_pt_has_one_root_whatever_its_name_key_order_and_process(torch: ModuleType, tmp_path: Path) -> None:
    assert torch.__name__ == "torch"
    roots = set()
    for name, order in (("a.pt", "w,b,n"), ("other-name.bin", "n,b,w"), ("a", "b,w,n")):
        subprocess.run([sys.executable, "-c", _TORCH_SAVE, tmp_path / name, order], check=True)
        with ckptfmt.read(tmp_path / name) as checkpoint:
            roots.add(ckptfmt.digest(checkpoint).root)
    assert len(roots) == 1
    assert len({(tmp_path / name).read_bytes() for name in ("a.pt", "other-name.bin", "a")}) == 3


def trained(torch: ModuleType) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 6))
    model[4].weight = model[3].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return model, optimizer, scheduler


def step(torch: ModuleType, parts: tuple[Any, Any, Any], seed: int) -> None:
    model, optimizer, scheduler = parts
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    scheduler.step()


def whole(model: Any, optimizer: Any, scheduler: Any) -> dict[str, Any]:  # noqa: ANN401 - torch's objects
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return {name: part.state_dict() for name, part in parts.items()}


@pytest.mark.framework
def test_live_state_its_pt_and_its_checkpoint_have_one_root(torch: ModuleType, tmp_path: Path) -> None:
    parts = trained(torch)
    for seed in range(3):
        step(torch, parts, seed)
    state = whole(*parts)
    torch.save(state, tmp_path / "s.pt")
    receipt = ckptfmt.save(state, tmp_path / "s")
    with ckptfmt.read(tmp_path / "s.pt") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(state).root == receipt.root
        assert ckptfmt.compare(checkpoint, state).equal


@pytest.mark.framework
def test_training_goes_on_to_the_same_bits_from_a_checkpoint(torch: ModuleType, tmp_path: Path) -> None:
    restore = pytest.importorskip("ckptfmt.frameworks.pytorch.live").restore
    parts = trained(torch)
    for seed in range(3):
        step(torch, parts, seed)
    ckptfmt.save(whole(*parts), tmp_path / "s")
    step(torch, parts, 9)
    expected = ckptfmt.digest(whole(*parts)).root
    again = trained(torch)
    with ckptfmt.load(tmp_path / "s") as checkpoint:
        restore(checkpoint["model"], again[0])
        restore(checkpoint["optimizer"], again[1])
        restore(checkpoint["scheduler"], again[2])
    step(torch, again, 9)
    assert ckptfmt.digest(whole(*again)).root == expected


def test_uninitialised_parameters_of_an_npz_are_none(tmp_path: Path) -> None:
    members: dict[str, Any] = {"l1/W": np.array(None), "l1/b": np.zeros(3, "f4"), "l2/W": np.ones((2, 2))}
    np.savez(tmp_path / "model.npz", **members)
    with ckptfmt.read(tmp_path / "model.npz") as checkpoint:
        root = ckptfmt.digest(checkpoint).root
        assert checkpoint["l1/W"] is None
    ckptfmt.convert(tmp_path / "model.npz", tmp_path / "model.pt")
    ckptfmt.convert(tmp_path / "model.pt", tmp_path / "back.npz")
    with ckptfmt.read(tmp_path / "back.npz") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == root
        assert checkpoint["l1/W"] is None


def test_an_ordered_dict_has_the_root_of_a_dict() -> None:
    assert ckptfmt.digest(collections.OrderedDict(a=1, b=2)).root == ckptfmt.digest({"b": 2, "a": 1}).root


def test_paths_checkpoints_and_values_are_digested_and_compared_alike(tmp_path: Path) -> None:
    state = plain()
    receipt = ckptfmt.save(state, tmp_path / "a")
    np.savez(tmp_path / "a.npz", **state)  # type: ignore[arg-type] # arrays all
    for value in (tmp_path / "a", str(tmp_path / "a.npz"), state):
        assert ckptfmt.digest(value).root == receipt.root
        assert ckptfmt.compare(value, state).equal
    with pytest.raises(ckptfmt.NotFoundError):
        ckptfmt.digest("no such path")
