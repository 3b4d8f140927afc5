"""Loading: lazily, verified when asked for, boxes and given arrays, and clear errors for what is none."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptfmt
from ckptfmt.format.digests import chunk_digest
from ckptfmt.parallel import rowsource
from ckptfmt.testing.strategies import arrays, boxes
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfmt.tree.paths import Key

FIXED = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
SHAPE = (3, 700, 1031)


def tensor(checkpoint: ckptfmt.Checkpoint, *path: Key) -> ckptfmt.Tensor:
    """Return the tensor at a path."""
    found = checkpoint.at(path)
    assert isinstance(found, ckptfmt.Tensor)
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, Path]:
    folder = tmp_path_factory.mktemp("large")
    array = np.random.default_rng(0).integers(0, 9, SHAPE).astype("f4")
    for codec in ("raw", "zstd", "planes+zstd"):
        ckptfmt.save({"w": array, "small": np.arange(5)}, folder / codec, codec=codec)
    return array, folder


@FIXED
@given(box=boxes(SHAPE), codec=st.sampled_from(["raw", "zstd", "planes+zstd"]), copy=st.booleans())
def test_a_box_is_what_numpy_slices(
    box: ckptfmt.Box,
    codec: str,
    copy: bool,  # noqa: FBT001 - a parameter
    large: tuple[np.ndarray, Path],
) -> None:
    array, folder = large
    index = tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
    with ckptfmt.load(folder / codec, copy=copy) as checkpoint:
        assert np.array_equal(tensor(checkpoint, "w").read(box), array[index])


@pytest.mark.parametrize("copy", [False, True])
def test_a_box_verifies_only_the_chunks_it_crosses(
    copy: bool,  # noqa: FBT001 - a parameter
    large: tuple[np.ndarray, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array, folder = large
    lengths: list[int] = []

    def counted(data: memoryview) -> bytes:
        lengths.append(len(data))
        return chunk_digest(data)

    monkeypatch.setattr(rowsource, "chunk_digest", counted)
    with ckptfmt.load(folder / "raw", copy=copy) as checkpoint:
        assert not lengths
        assert np.array_equal(tensor(checkpoint, "w")[1, 10:12], array[1, 10:12])
        assert lengths == [4 << 20]


def damage(path: Path) -> None:
    file = next(path.glob("data-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_damage_is_found_when_the_bytes_are_handed_out_and_not_before(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.arange(2000), "z": np.arange(3)}, tmp_path / "c")
    damage(tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        assert tensor(checkpoint, "a").numpy()[-1] == 1999
        ways: list[Callable[[ckptfmt.Tensor], object]] = [
            lambda t: t.numpy(),
            lambda t: t[0],
            lambda t: t.into(np.empty(3, int)),
            lambda t: t.bytes(),
        ]
        for ask in ways:
            with pytest.raises(ckptfmt.ChecksumError) as caught:
                ask(tensor(checkpoint, "z"))
            assert (caught.value.tensor, caught.value.rule, caught.value.chunk) == ("z", "R-052", 0)
    with pytest.raises(ckptfmt.ChecksumError):
        ckptfmt.load(tmp_path / "c", verify="full")
    with ckptfmt.load(tmp_path / "c", verify="none") as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["unverified"]
        assert tensor(checkpoint, "z").numpy()[0] == 0


def test_copied_bytes_are_verified_each_time_they_are_read(tmp_path: Path) -> None:
    ckptfmt.save({"z": np.arange(3)}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", copy=True) as checkpoint:
        first = tensor(checkpoint, "z").numpy()
        file = next((tmp_path / "c").glob("data-*"))
        with file.open("r+b") as out:
            out.seek(-1, 2)
            out.write(b"\xff")
        with pytest.raises(ckptfmt.ChecksumError):
            tensor(checkpoint, "z").numpy()
        assert first.tolist() == [0, 1, 2]


def test_given_arrays_are_filled_in_place(tmp_path: Path) -> None:
    array = np.arange(12, dtype="f4").reshape(3, 4)
    ckptfmt.save({"m": {"w": array, "v": array + 1}, "s": [array * 2], "n": 5}, tmp_path / "c")
    out: dict[str, Any] = {"m": {"w": np.empty((3, 4), "f4")}, "s": [np.empty((4, 3), ">f4").T]}
    with ckptfmt.load(tmp_path / "c", into=out) as checkpoint:
        assert np.array_equal(out["m"]["w"], array)
        assert np.array_equal(out["s"][0], array * 2)
        assert np.shares_memory(tensor(checkpoint, "m", "w").numpy(), out["m"]["w"])
        assert np.array_equal(tensor(checkpoint, "m", "v").numpy(), array + 1)
        assert checkpoint["n"] == 5


@pytest.mark.framework
def test_given_torch_tensors_are_filled_in_place(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    ckptfmt.save({"w": torch.arange(6.0).to(torch.bfloat16)}, tmp_path / "c")
    out = torch.zeros(6, dtype=torch.bfloat16)
    ckptfmt.load(tmp_path / "c", into={"w": out}).close()
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.framework
def test_torch_tensors_that_numpy_cannot_share_are_refused_not_left_empty(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    ckptfmt.save({"w": np.arange(6, dtype="c8").reshape(2, 3), "v": np.arange(3.0)}, tmp_path / "c")
    wrong = {
        "conjugated": {"w": torch.zeros(2, 3, dtype=torch.complex64).conj()},
        "negated": {"v": torch.zeros(3, dtype=torch.complex128).conj().imag},
        "nowhere": {"v": torch.zeros(3, dtype=torch.float64, device="meta")},
        "sparse": {"v": torch.zeros(3, dtype=torch.float64).to_sparse()},
        "expanded": {"v": torch.zeros(1, dtype=torch.float64).expand(3)},
        "other type": {"v": torch.zeros(3)},
        "other shape": {"v": torch.zeros(1, 3, dtype=torch.float64)},
    }
    for name, into in wrong.items():
        with pytest.raises(ckptfmt.TreeError, match=r"cannot .* at [wv]$|given at v"):
            pytest.fail(f"{name}: {ckptfmt.load(tmp_path / 'c', into=into)}")
    turned = torch.zeros(3, 2, dtype=torch.complex64).t()
    every = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64)[::2])
    ckptfmt.load(tmp_path / "c", into={"w": turned, "v": every}).close()
    assert turned.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert every.tolist() == [0, 1, 2]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("codec", ["raw", "planes+zstd"])
@pytest.mark.parametrize("copy", [False, True])
def test_given_arrays_may_have_any_strides_and_byte_order(
    order: str,
    codec: str,
    copy: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
) -> None:
    array = np.random.default_rng(1).standard_normal((5, 6, 7))
    ckptfmt.save({"w": array}, tmp_path / "c", codec=codec)
    base = np.zeros((12, 12, 14), f"{order}f8")
    outs = [
        base[:5, :6, :7],
        base[9:4:-1, ::2, ::2],
        np.zeros((7, 6, 5), f"{order}f8").T,
        np.zeros((6, 5, 7), f"{order}f8").transpose(1, 0, 2),
        np.zeros(211, f"{order}f8")[1:].reshape(5, 6, 7),
    ]
    for out in outs:
        base[:] = 0
        ckptfmt.load(tmp_path / "c", into={"w": out}, copy=copy).close()
        assert np.array_equal(out, array)
    assert np.count_nonzero(base) == 0  # of the last fill, which is not in it


def test_packed_and_empty_tensors_are_filled_too(tmp_path: Path) -> None:
    codes = np.array([-8, 7, 3]).astype(ml_dtypes.int4)
    ckptfmt.save({"p": codes, "e": np.zeros((0, 3)), "b": np.array([True, False])}, tmp_path / "c")
    out = {"p": np.zeros(6, ml_dtypes.int4)[::2], "e": np.zeros((0, 3)), "b": np.zeros(2, bool)}
    ckptfmt.load(tmp_path / "c", into=out).close()
    assert out["p"].astype(int).tolist() == [-8, 7, 3]
    assert out["b"].tolist() == [True, False]
    with pytest.raises(ckptfmt.TreeError, match="at p"):
        ckptfmt.load(tmp_path / "c", into={"p": np.zeros(3, np.int8)})


@pytest.mark.parametrize(
    "out",
    [
        np.broadcast_to(np.zeros(4), (3, 4)),
        np.lib.stride_tricks.as_strided(np.zeros(6), (3, 4), (8, 8)),
        np.lib.stride_tricks.as_strided(np.zeros(4), (3, 4), (0, 8)),
    ],
    ids=["read-only", "sliding", "repeated"],
)
def test_arrays_whose_elements_share_memory_are_refused(out: np.ndarray, tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones((3, 4))}, tmp_path / "c")
    with pytest.raises(ckptfmt.TreeError, match="at w"):
        ckptfmt.load(tmp_path / "c", into={"w": out})


def test_plain_values_are_left_alone_and_texts_refused(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(2), "lr": 0.5, "names": np.array(["a", "b"])}, tmp_path / "c")
    out = {"w": np.zeros(2), "lr": 0.0}
    with ckptfmt.load(tmp_path / "c", into=out) as checkpoint:
        assert checkpoint["lr"] == 0.5
        assert (out["lr"], np.asarray(out["w"]).tolist()) == (0.0, [1.0, 1.0])
    with pytest.raises(ckptfmt.TreeError, match="given at names"):
        ckptfmt.load(tmp_path / "c", into={"names": np.array(["", ""])})


@pytest.mark.parametrize(
    "into",
    [
        {"w": np.empty((3, 5), "f4")},
        {"w": np.empty((3, 4), "f8")},
        {"nothing": np.empty(1)},
        {"n": np.empty(())},
        {"w": [np.empty((3, 4), "f4")]},
    ],
    ids=["shape", "type", "path", "scalar", "structure"],
)
def test_arrays_that_do_not_fit_are_refused_by_path(into: dict, tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones((3, 4), "f4"), "n": 5}, tmp_path / "c")
    with pytest.raises(ckptfmt.TreeError, match=next(iter(into))):
        ckptfmt.load(tmp_path / "c", into=into)


def test_only_what_is_wanted_is_in_the_tree(tmp_path: Path) -> None:
    tree = {"model": {"w": np.ones(2), "b": np.ones(1)}, "opt": [np.ones(3), 5], "step": 1}
    ckptfmt.save(tree, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", want=["model/w", "step"]) as checkpoint:
        assert list(checkpoint.tensors()) == ["model/w"]
        assert checkpoint["step"] == 1
    with ckptfmt.load(tmp_path / "c", want=["opt/1"]) as checkpoint:
        assert checkpoint.tree == {"opt": [None, 5]}


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.pt").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ckptfmt.NotFoundError):
        ckptfmt.load(tmp_path / "nothing")
    with pytest.raises(ckptfmt.FormatError, match=r"ckptfmt\.read"):
        ckptfmt.load(tmp_path / "file.pt")
    with pytest.raises(ckptfmt.MissingFileError, match="no checkpoint") as caught:
        ckptfmt.load(tmp_path / "empty")
    assert caught.value.rule == "R-001"
    with pytest.raises(ckptfmt.OptionError):
        ckptfmt.load(tmp_path / "empty", verify="maybe")  # type: ignore[arg-type] # that is the point


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_a_number_of_threads_that_is_none_is_refused(threads: Any, tmp_path: Path) -> None:  # noqa: ANN401
    ckptfmt.save({"w": np.ones(3)}, tmp_path / "c")
    for use in (ckptfmt.load, ckptfmt.check, ckptfmt.digest):
        with pytest.raises(ckptfmt.OptionError, match="threads"):
            use(tmp_path / "c", threads=threads)
    with pytest.raises(ckptfmt.OptionError, match="want"):
        ckptfmt.load(tmp_path / "c", want=[5])  # type: ignore[list-item] # that is the point


def test_a_shard_of_another_step_is_named_as_such(tmp_path: Path) -> None:
    receipts = [ckptfmt.save({"w": np.full(9, step)}, tmp_path / str(step), step=step) for step in (1, 2)]
    name = "data-00001-of-00001.safetensors"
    shutil.copy(tmp_path / "2" / name, tmp_path / "1" / name)
    with ckptfmt.load(tmp_path / "1") as checkpoint, pytest.raises(ckptfmt.ReplacedError) as caught:
        tensor(checkpoint, "w").numpy()
    assert receipts[1].root.hex() in str(caught.value)


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.ones(9)}, tmp_path / "c")
    checkpoint = ckptfmt.load(tmp_path / "c")
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(ckptfmt.StorageError):
        tensor(checkpoint, "w").numpy()


def test_damage_is_no_misfit(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.arange(3)}, tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(ckptfmt.ChecksumError) as caught:
        ckptfmt.load(tmp_path / "c", into={"w": np.zeros(3, int)})
    assert (caught.value.tensor, caught.value.chunk) == ("w", 0)


def test_nothing_is_filled_unless_everything_fits(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.ones(3), "b": np.ones(4)}, tmp_path / "c")
    a = np.zeros(3)
    with pytest.raises(ckptfmt.TreeError, match="at b"):
        ckptfmt.load(tmp_path / "c", into={"a": a, "b": np.zeros(5)})
    assert a.tolist() == [0, 0, 0]


@pytest.mark.parametrize("codec", ["raw", "zstd", "planes+zstd"])
def test_a_box_of_every_type_is_what_numpy_slices(codec: str, tmp_path: Path) -> None:
    shape = (7, 5, 9)
    data = np.random.default_rng(2).integers(0, 2, 315 * 16, np.uint8)  # of a bool, too
    state = {
        name: data[: 315 * dtype(name).numpy.itemsize].view(dtype(name).numpy).reshape(shape)
        for name in [*DTYPE_NAMES, "s3"]
    }
    ckptfmt.save(state, tmp_path / "c", codec=codec)
    indices: list[tuple[Any, ...]] = [
        (slice(1, 3), slice(2, 4), slice(3, 8)),
        (slice(0, 7), 4, slice(8, 9)),
        (3, slice(None), slice(1, 2)),
        (slice(2, 5),),
        (-1, -1, -1),
        (slice(0, 7), slice(0, 5), 0),
        (slice(3, 3), slice(None), 1),
    ]
    for copy in (False, True):
        with ckptfmt.load(tmp_path / "c", copy=copy) as checkpoint:
            for name, array in state.items():
                for index in indices:
                    found = tensor(checkpoint, name)[index]
                    expected = np.asarray(array[index], array.dtype)
                    assert (found.dtype, found.shape) == (array.dtype, expected.shape)
                    assert found.tobytes() == expected.tobytes(), (name, index)


@FIXED
@given(data=st.data(), array=arrays(), codec=st.sampled_from(["raw", "zstd"]), copy=st.booleans())
def test_any_box_of_any_tensor_is_what_numpy_slices(
    data: st.DataObject,
    array: np.ndarray,
    codec: str,
    copy: bool,  # noqa: FBT001 - a parameter
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("box") / "c"
    ckptfmt.save(array, path, codec=codec, direct=False)
    box = data.draw(boxes(array.shape))
    expected = array
    for axis, (offset, length) in enumerate(zip(box.offset, box.shape, strict=True)):
        expected = np.take(expected, range(offset, offset + length), axis)
    with ckptfmt.load(path, copy=copy) as checkpoint:
        found = tensor(checkpoint).read(box)
    assert (found.dtype, found.shape) == (array.dtype, box.shape)
    assert found.tobytes() == expected.tobytes()
