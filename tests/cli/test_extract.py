from __future__ import annotations

import io
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli.app import invoke
from ckptfmt.cli.picking import pick
from ckptfmt.errors import ConversionError
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

W = np.arange(24, dtype=np.float32).reshape(4, 6)
HALF = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
INT4 = np.array([-8, -1, 0, 7, 3], ml_dtypes.int4)


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tree = {"m": {"w": W, "w[0]": W + 1, "half": HALF, "i4": INT4, "s": np.array([b"ab", b"c"])}, "n": 1}
    ckptfmt.save(tree, tmp_path / "step")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("m/w", W),
        ("m/w[0:2,:3]", W[0:2, :3]),
        ("m/w[-1]", W[-1]),
        ("m/w[1, 2]", W[1, 2]),
        ("m/w[ : , 5 ]", W[:, 5]),
        ("m/w[]", W),
        ("m/w[0]", W + 1),  # a tensor of that very name
        ("m/w[0][1:3]", (W + 1)[1:3]),
        ("m/s", np.array([b"ab", b"c"])),
    ],
)
def test_a_tensor_or_a_box_comes_out_as_numpy_has_it(name: str, wanted: np.ndarray, step: Path) -> None:
    assert invoke(["extract", "step", name]) == 0
    found = np.load(step / "extracted.npy")
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tobytes() == wanted.tobytes()


def test_types_that_numpy_cannot_name_keep_their_bits(step: Path) -> None:
    assert invoke(["extract", "step", "m/half", "-o", "half.npy"]) == 0
    found = np.load(step / "half.npy")
    assert (found.dtype.str, found.shape) == ("|V2", (2, 3))
    assert found.tobytes() == HALF.tobytes()
    assert invoke(["extract", "step", "m/i4[1:]", "-o", "i4.npy"]) == 0
    assert np.load(step / "i4.npy").tolist() == [-1, 0, 7, 3]


def test_several_come_out_as_an_archive(step: Path) -> None:
    assert invoke(["extract", "step", "m/w", "m/half[0]", "-o", "x.npz"]) == 0
    with np.load(step / "x.npz") as found:
        assert found["m/w"].tobytes() == W.tobytes()
    with ckptfmt.read(step / "x.npz") as checkpoint:
        half = checkpoint["m/half"]
        assert isinstance(half, Tensor)
        assert half.numpy().tobytes() == HALF[0].tobytes()


def test_a_sub_tree_and_a_glob_name_what_is_below(step: Path) -> None:
    with ckptfmt.load(step / "step") as checkpoint:
        assert [one.path for one in pick(checkpoint.tree, ["m"])] == list(checkpoint.tensors())
        assert [one.path for one in pick(checkpoint.tree, ["m/?4", "m/i*", "m/i4"])] == ["m/i4"]


def test_a_pipe_gets_the_bytes_of_the_file(step: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for names in (["m/w"], ["m/w", "m/half"]):
        assert invoke(["extract", "step", *names, "-o", "-"]) == 0
        piped = capfdbinary.readouterr().out
        target = "x.npy" if len(names) == 1 else "y.npz"
        assert invoke(["extract", "step", *names, "-o", target]) == 0
        capfdbinary.readouterr()
        assert piped == (step / target).read_bytes()
    assert np.load(io.BytesIO((step / "x.npy").read_bytes())).tolist() == W.tolist()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["m/x"], "no tensor 'm/x'"),
        (["n"], "no tensor; info shows"),
        (["m/w[9]"], "out of range"),
        (["m/w[0,0,0]"], "too many indices"),
        (["m/w[a]"], "no index"),
        (["m/w", "m/w[1:]"], "asked for twice"),
    ],
)
def test_a_name_that_stands_for_nothing_is_an_error(names: list[str], message: str) -> None:
    tree = {"m": {"w": Tensor.of(W)}, "n": 1}
    with pytest.raises(ConversionError, match=message):
        pick(tree, names)  # type: ignore[arg-type] # a tree


def test_nothing_is_replaced_unasked_and_nothing_half_written(step: Path) -> None:
    assert invoke(["extract", "step", "m/w", "-o", "x.npy"]) == 0
    before = (step / "x.npy").read_bytes()
    assert invoke(["extract", "step", "m/half", "-o", "x.npy"]) == 5
    assert (step / "x.npy").read_bytes() == before
    shard = next((step / "step").glob("data-*"))
    data = bytearray(shard.read_bytes())
    data[4096 + 3] ^= 1
    shard.write_bytes(data)
    failed = [invoke(["extract", "step", name, "-o", "z.npy", "--overwrite"]) for name in ("m/w", "m/w[0]")]
    assert 4 in failed
    assert not [path for path in step.iterdir() if path.name.startswith(".")]


def test_the_format_of_a_source_may_be_told(step: Path) -> None:
    assert invoke(["extract", "step", "m/w", "--from", "ckptfmt", "-o", "w.npy"]) == 0
    assert np.array_equal(np.load(step / "w.npy"), W)
    for command in (
        ["info", "step"],
        ["convert", "step", "x.npz"],
        ["extract", "step", "m/w", "-o", "v.npy"],
    ):
        assert invoke([*command, "--from", "npz"]) in (4, 5)
        assert invoke([*command, "--from", "nothing"]) == 2
    assert sorted(path.name for path in step.iterdir()) == ["step", "w.npy"]
