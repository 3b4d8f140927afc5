"""The laws of the format, on real directories: one state, one digest, the same bytes, never later values."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptfmt
from ckptfmt.format.digests import node_digest
from ckptfmt.testing.strategies import arrays, trees
from ckptfmt.tree.dtypes import DTYPE_NAMES, DType, dtype
from ckptfmt.tree.source import unpack

if TYPE_CHECKING:
    from ckptfmt.tree.paths import Key

FIXED = settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
CHOICES: list[dict[str, Any]] = [
    {},
    {"codec": "zstd"},
    {"codec": "planes+zstd", "level": 9},
    {"shard_size": 64},
    {"separate": ["*a*", "model"]},
    {"threads": 1},
    {"direct": False},
]


def tensor(checkpoint: ckptfmt.Checkpoint, *path: Key) -> ckptfmt.Tensor:
    """Return the tensor at a path."""
    found = checkpoint.at(path)
    assert isinstance(found, ckptfmt.Tensor)
    return found


def files(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


@FIXED
@given(tree=trees(), choice=st.sampled_from(CHOICES))
def test_any_tree_comes_back_with_its_root(
    tree: object, choice: dict, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("law") / "c"
    receipt = ckptfmt.save(tree, path, **choice)
    assert receipt.root == node_digest(tree)  # type: ignore[arg-type] # a tree
    for copy in (False, True):
        with ckptfmt.load(path, verify="full", copy=copy) as checkpoint:
            found = ckptfmt.digest(checkpoint)
            assert (found.root, found.bag) == (receipt.root, receipt.bag)


def state() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((300, 70)).astype("f4")
    return {
        "model": {
            "w": weight,
            "tied": weight,
            "b": np.arange(33, dtype="i2"),
            "h": weight.astype(ml_dtypes.bfloat16),
        },
        "step": 3,
        "opt": [{"lr": 0.1, "m": rng.standard_normal((5, 7))}],
    }


def test_digests_do_not_depend_on_codec_shards_threads_or_ties(tmp_path: Path) -> None:
    receipts = [ckptfmt.save(state(), tmp_path / str(i), **choice) for i, choice in enumerate(CHOICES)]
    untied = state()
    untied["model"]["tied"] = untied["model"]["w"].copy()
    receipts.append(ckptfmt.save(untied, tmp_path / "untied"))
    assert len({(receipt.root, receipt.bag) for receipt in receipts}) == 1
    assert receipts[-1].tensors == receipts[0].tensors + 1


def test_bytes_do_not_depend_on_threads_or_on_how_they_are_written(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{}, {"threads": 1}, {"threads": 5}, {"direct": False}]
    for i, choice in enumerate(ways):
        ckptfmt.save(state(), tmp_path / str(i), **choice)
    assert len({json.dumps(files(path)) for path in tmp_path.iterdir()}) == 1


def test_bytes_do_not_depend_on_key_order(tmp_path: Path) -> None:
    first = state()
    second = {key: first[key] for key in ("opt", "step", "model")}
    second["model"] = dict(reversed(first["model"].items()))
    one, two = ckptfmt.save(first, tmp_path / "one"), ckptfmt.save(second, tmp_path / "two")
    assert one.root == two.root
    different = {
        name for name, digest in files(tmp_path / "one").items() if files(tmp_path / "two")[name] != digest
    }
    assert different == {"manifest.json"}
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert {key for key in manifests[0] if manifests[0][key] != manifests[1][key]} == {"tree", "self"}
    with ckptfmt.load(tmp_path / "two") as checkpoint:
        assert isinstance(checkpoint.tree, dict)
        assert list(checkpoint.tree) == ["opt", "step", "model"]


def test_bytes_do_not_depend_on_the_process_or_its_hash_seed(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np, ckptfmt\n"
        "ckptfmt.save({'s': {'a', 'b', 'c', 1, None}, 'f': frozenset('xyz'), 'w': np.ones(9)}, sys.argv[1])"
    )
    for seed in ("0", "1", "random"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(ckptfmt.__file__).parents[1])}
        subprocess.run([sys.executable, "-c", program, tmp_path / seed], check=True, env=environment)
    assert len({json.dumps(files(path)) for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("codec", ["raw", "planes+zstd"])
def test_every_type_and_shape_comes_back_bit_for_bit(codec: str, tmp_path: Path) -> None:
    shapes = [(), (0,), (2, 0), (0, 3), (1,), (3,), (5, 3), (2, 3, 4)]
    state: dict[str, np.ndarray] = {}
    for name in [*DTYPE_NAMES, "s1", "s7"]:
        for shape in shapes:
            kind = dtype(name)
            state[f"{name}{shape}"] = example(kind, shape)
    ckptfmt.save(state, tmp_path / "c", codec=codec)
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        for name, array in state.items():
            found = tensor(checkpoint, name).numpy()
            assert found.dtype == array.dtype, name
            assert found.shape == array.shape, name
            assert found.tobytes() == array.tobytes(), name


def example(kind: DType, shape: tuple) -> np.ndarray:
    data = np.random.default_rng(len(kind.name)).integers(0, 256, kind.nbytes(shape), np.uint8)
    if kind.name == "bool":
        data &= 1
    count = int(np.prod(shape))
    return (unpack(data, count, kind) if kind.packed else data.view(kind.numpy)).reshape(shape)


@FIXED
@given(array=arrays(dtype("f32"), (6, 5, 4)))
def test_strides_and_byte_order_do_not_show(
    array: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("law")
    variants = {
        "c": array,
        "f": np.asfortranarray(array),
        "t": np.ascontiguousarray(array.T).T,
        "negative": np.ascontiguousarray(array[::-1])[::-1],
        "step": np.repeat(array, 2, axis=1)[:, ::2],
        "big": array.astype(">f4"),
    }
    roots = {name: ckptfmt.save({"w": value}, path / name).root for name, value in variants.items()}
    assert len(set(roots.values())) == 1


def test_an_expanded_array_is_stored_as_what_it_shows(tmp_path: Path) -> None:
    ckptfmt.save(np.broadcast_to(np.float32(2), (100, 3)), tmp_path / "c")
    assert tensor(ckptfmt.load(tmp_path / "c")).numpy().tolist() == [[2.0] * 3] * 100


def test_overlapping_views_are_stored_apart_and_told(tmp_path: Path) -> None:
    base = np.arange(10.0)
    receipt = ckptfmt.save({"a": base[:6], "b": base[4:], "c": base[:4]}, tmp_path / "c")
    assert [finding.kind for finding in receipt.findings].count("overlap") >= 1
    assert receipt.nbytes == 8 * (6 + 6 + 4)


def test_a_lazy_checkpoint_keeps_its_bytes_when_its_path_is_overwritten(tmp_path: Path) -> None:
    old = np.arange(3_000_000, dtype="f4")
    ckptfmt.save({"w": old, "v": old[::-1]}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        seen = tensor(checkpoint, "w").numpy()
        ckptfmt.save({"w": old + 1}, tmp_path / "c", overwrite=True)
        assert np.array_equal(seen, old)
        assert np.array_equal(tensor(checkpoint, "v").numpy(), old[::-1])
    assert np.array_equal(tensor(ckptfmt.load(tmp_path / "c"), "w").numpy(), old + 1)


def test_a_lazy_checkpoint_keeps_its_bytes_when_its_path_is_removed(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.arange(1000)}, tmp_path / "c")
    checkpoint = ckptfmt.load(tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    array = tensor(checkpoint, "w").numpy()
    checkpoint.close()
    assert np.array_equal(array, np.arange(1000))


def test_a_lazy_checkpoint_can_be_saved_over_itself(tmp_path: Path) -> None:
    weight = np.arange(2_000_000, dtype="f4")
    ckptfmt.save({"w": weight, "b": weight[:5]}, tmp_path / "c")
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        tree = {"w": checkpoint["w"], "b": np.zeros(2)}
        ckptfmt.save(tree, tmp_path / "c", overwrite=True)
        assert np.array_equal(tensor(checkpoint, "w").numpy(), weight)
    with ckptfmt.load(tmp_path / "c", verify="full") as again:
        assert np.array_equal(tensor(again, "w").numpy(), weight)
        assert tensor(again, "b").numpy().tolist() == [0, 0]


def test_loaded_arrays_are_writable_and_the_file_stays(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.zeros(100_000)}, tmp_path / "c")
    before = files(tmp_path / "c")
    array = tensor(ckptfmt.load(tmp_path / "c"), "w").numpy()
    array[:] = 7
    assert files(tmp_path / "c") == before
    assert tensor(ckptfmt.load(tmp_path / "c"), "w").numpy().max() == 0


@pytest.mark.parametrize("change", ["all", "some"])
def test_what_was_written_to_loaded_arrays_is_saved_whole(change: str, tmp_path: Path) -> None:
    """Lengths are odd, so that spans of the new file share pages: all of each must come from one place."""
    state = {f"w{i}": np.arange((1 << 20) + 1 + 11 * i, dtype="f4") for i in range(6)}
    ckptfmt.save(state, tmp_path / "one")
    before = files(tmp_path / "one")
    with ckptfmt.load(tmp_path / "one") as checkpoint:
        for name in list(state)[:: 1 if change == "all" else 2]:
            array = tensor(checkpoint, name).numpy()
            array *= -1
            state[name] = -state[name]
        receipt = ckptfmt.save(checkpoint, tmp_path / "two", shard_size=9 << 20)
        assert ckptfmt.digest(checkpoint).root == receipt.root
        for name, array in state.items():
            out = np.empty_like(array)
            tensor(checkpoint, name).into(out)
            assert np.array_equal(out, array)
    assert files(tmp_path / "one") == before
    with ckptfmt.load(tmp_path / "two", verify="full") as checkpoint:
        assert all(np.array_equal(tensor(checkpoint, name).numpy(), array) for name, array in state.items())


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.pt"])
def test_what_was_written_to_arrays_read_from_files_is_saved_too(name: str, tmp_path: Path) -> None:
    state = {"w": np.arange(1_500_001, dtype="f4"), "v": np.arange(7.0)}
    ckptfmt.write(state, tmp_path / name)
    before = files(tmp_path)
    with ckptfmt.read(tmp_path / name) as found:
        for key in state:
            np.negative(tensor(found, key).numpy(), out=tensor(found, key).numpy())
        shown = {key: tensor(found, key).numpy()[1] for key in state}
        receipt = ckptfmt.save(found, tmp_path / "c")
        assert ckptfmt.digest(found).root == receipt.root
    with ckptfmt.load(tmp_path / "c", verify="full") as checkpoint:
        assert {key: tensor(checkpoint, key).numpy()[1] for key in state} == shown
    shutil.rmtree(tmp_path / "c")
    assert files(tmp_path) == before


def test_a_tree_with_nothing_to_store_is_a_checkpoint(tmp_path: Path) -> None:
    nothings: tuple[object, ...] = (None, {}, [], 5, "x", {"a": np.zeros((0, 3))})
    for i, tree in enumerate(nothings):
        receipt = ckptfmt.save(tree, tmp_path / str(i))
        with ckptfmt.load(tmp_path / str(i), verify="full") as checkpoint:
            assert ckptfmt.digest(checkpoint).root == receipt.root


def views() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    base = np.arange(100.0)
    square = base.reshape(10, 10)
    return {
        "interleaved": (base[::2], base[1::2]),
        "reversed": (base, base[::-1]),
        "transposed": (square, square.T),
        "columns": (square[:, :5], square[:, 5:]),
        "other type": (base, base.view("i8")),
        "other shape": (base, square),
        "inside": (base, base[10:20]),
    }


@pytest.mark.parametrize("name", list(views()))
def test_other_views_of_one_memory_are_stored_apart_and_told(name: str, tmp_path: Path) -> None:
    a, b = views()[name]
    receipt = ckptfmt.save({"a": a, "b": b}, tmp_path / "c")
    (finding,) = receipt.findings
    assert (finding.kind, finding.severity.value) == ("overlap", "info")
    assert (receipt.tensors, receipt.nbytes) == (2, a.nbytes + b.nbytes)
    with ckptfmt.load(tmp_path / "c") as checkpoint:
        assert np.array_equal(tensor(checkpoint, "a").numpy(), a)
        assert np.array_equal(tensor(checkpoint, "b").numpy(), b)


def test_neighbours_and_empty_views_are_no_overlap(tmp_path: Path) -> None:
    base = np.arange(100.0)
    receipt = ckptfmt.save({"a": base[:50], "b": base[50:], "c": base[20:20]}, tmp_path / "c")
    assert receipt.findings == ()


def test_ties_are_stored_once_and_come_back_as_ties(tmp_path: Path) -> None:
    weight = np.arange(6.0).reshape(2, 3)
    tree = {"b": [weight], "a": weight, "same": weight[:], "copy": weight.copy()}
    one = ckptfmt.save(tree, tmp_path / "one")
    assert (one.tensors, one.nbytes) == (2, 2 * weight.nbytes)
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert [row[0] for row in manifest["tensors"]] == [["a"], ["copy"]]
    with ckptfmt.load(tmp_path / "one") as checkpoint:
        tied, copied = tensor(checkpoint, "a"), tensor(checkpoint, "copy")
        assert tensor(checkpoint, "b", 0).identity == tied.identity != copied.identity
        assert np.shares_memory(tied.numpy(), tensor(checkpoint, "same").numpy())
        assert not np.shares_memory(tied.numpy(), copied.numpy())
        two = ckptfmt.save(checkpoint, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert (two.root, two.tensors) == (one.root, 2)


def test_views_of_no_memory_are_no_ties(tmp_path: Path) -> None:
    nothing = np.zeros((0, 3))
    assert ckptfmt.save({"a": nothing, "b": nothing[:]}, tmp_path / "c").tensors == 2


def test_tensors_of_two_checkpoints_do_not_mix(tmp_path: Path) -> None:
    """Both have a row 0; that makes them no tie."""
    for name, value in (("one", 1.0), ("two", 2.0)):
        ckptfmt.save({"w": np.full(4, value)}, tmp_path / name)
    with ckptfmt.load(tmp_path / "one") as one, ckptfmt.load(tmp_path / "two") as two:
        ckptfmt.save({"a": one["w"], "b": two["w"], "whole": two}, tmp_path / "both")
    with ckptfmt.load(tmp_path / "both") as both:
        assert [float(t[0]) for t in both.tensors().values()] == [1.0, 2.0, 2.0]
        assert len({t.identity for t in both.tensors().values()}) == 2


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("verify", ["access", "full", "none"])
def test_arrays_are_writable_and_outlive_their_checkpoint(
    codec: str,
    copy: bool,  # noqa: FBT001 - a parameter
    verify: Any,  # noqa: ANN401 - a parameter
    tmp_path: Path,
) -> None:
    state = {name: example(dtype(name), (3, 5)) for name in [*DTYPE_NAMES, "s3"]}
    state |= {f"{name}0": example(dtype(name), ()) for name in DTYPE_NAMES}
    ckptfmt.save(state, tmp_path / "c", codec=codec)
    before = files(tmp_path / "c")
    with ckptfmt.load(tmp_path / "c", copy=copy, verify=verify) as checkpoint:
        whole = {name: tensor(checkpoint, name).numpy() for name in state}
        parts = {name: tensor(checkpoint, name)[1:, 2:] for name in state if not name.endswith("0")}
    if verify == "none":
        shutil.rmtree(tmp_path / "c")
    for name, array in state.items():
        assert whole[name].tobytes() == array.tobytes()
        whole[name][...] = np.zeros((), array.dtype)
        assert whole[name].tobytes() == bytes(array.nbytes)
    for array in parts.values():
        array[...] = np.zeros((), array.dtype)
    assert verify == "none" or files(tmp_path / "c") == before
