from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.conversion import convert, read, write
from ckptfmt.conversion.rehearsal import rehearse
from ckptfmt.conversion.targets import options_for
from ckptfmt.errors import (
    ConversionError,
    ExistsError,
    FormatError,
    LossyError,
    NotFoundError,
    UnknownFormatError,
    VerificationError,
)
from ckptfmt.registry import write_foreign
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Opaque
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

NAMES = {"ckptfmt": "x", "npz": "x.npz", "safetensors": "x.safetensors", "torch": "x.pt"}
# The root of {"model": {"w": float32 [[1, 2], [3, 4]]}, "step": 7}, from the specification.
ROOT = "72ec1cfba328a3f8c90bc07ecb26eac018ebae7536eb684c329be0186e0f89bb"
BAG = "ee69c28bf0c8c2c1d24d498f8989c2614cda739c390594870cd1752eef9766b8"


def small() -> dict[str, object]:
    return {"model": {"w": np.array([[1, 2], [3, 4]], np.float32)}, "step": 7}


def large() -> dict[str, object]:
    generator = np.random.default_rng(3)
    tied = generator.normal(size=(300, 70)).astype(np.float32)
    return {
        "model": {"a.b": tied, "c": tied, "half": generator.normal(size=(64, 33)).astype(ml_dtypes.bfloat16)},
        "ints": [np.arange(5), np.zeros((0, 3), np.uint8), np.ones((), np.bool_)],
        "plain": {"rate": 0.1, 3: None, "name": "é", "pair": (1, 2)},
    }


@pytest.fixture
def native(tmp_path: Path) -> Path:
    ckptfmt.save(large(), tmp_path / "source", step=12)
    return tmp_path / "source"


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("to", NAMES)
def test_the_root_of_the_specification_comes_out_of_every_format(to: str, tmp_path: Path) -> None:
    ckptfmt.save(small(), tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / f"t-{NAMES[to]}")
    assert report.root is not None
    assert report.bag is not None
    assert (report.target_format, report.root.hex(), report.bag.hex()) == (to, ROOT, BAG)
    assert report.verified
    assert report.same_root


@pytest.mark.parametrize("middle", NAMES)
@pytest.mark.parametrize("last", NAMES)
def test_a_tree_comes_through_any_two_formats(middle: str, last: str, native: Path, tmp_path: Path) -> None:
    first = convert(native, tmp_path / f"m-{NAMES[middle]}", to=middle)
    second = convert(tmp_path / f"m-{NAMES[middle]}", tmp_path / f"l-{NAMES[last]}", to=last)
    assert first.same_root
    assert second.same_root
    assert second.root == first.root
    with read(native) as source, read(tmp_path / f"l-{NAMES[last]}") as target:
        wanted, found = source.tensors(), target.tensors()
        assert set(found) == set(wanted)
        assert all(same_bits(found[path].numpy(), wanted[path].numpy()) for path in wanted)
        assert target["plain"] == {"rate": 0.1, 3: None, "name": "é", "pair": (1, 2)}


def test_a_step_is_kept_or_given(native: Path, tmp_path: Path) -> None:
    assert convert(native, tmp_path / "same").step == 12
    assert convert(native, tmp_path / "other", step=13).step == 13
    assert convert(native, tmp_path / "x.npz").step is None
    with ckptfmt.load(tmp_path / "other") as checkpoint:
        assert checkpoint.step == 13


def test_parts_are_taken_and_left_out_by_globs(native: Path, tmp_path: Path) -> None:
    report = convert(native, tmp_path / "x.npz", include=["model", "plain/rate"], exclude=["model/c"])
    assert set(report.dropped) == {
        "model/c",
        "ints/0",
        "ints/1",
        "ints/2",
        "plain/3",
        "plain/name",
        "plain/pair/0",
        "plain/pair/1",
    }
    assert report.tensors == 2
    with read(tmp_path / "x.npz") as target:
        assert set(target.tensors()) == {"model/a.b", "model/half"}


def test_a_glob_that_matches_nothing_is_an_error(native: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="'modle'"):
        convert(native, tmp_path / "x.npz", include=["modle"])
    with pytest.raises(ConversionError, match="'modle'"):
        convert(native, tmp_path / "x.npz", exclude=["modle"])
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("to", NAMES)
def test_a_dry_run_writes_nothing(to: str, native: Path, tmp_path: Path) -> None:
    report = convert(native, tmp_path / NAMES[to], dry_run=True)
    assert (report.dry_run, report.verified, report.root, report.stored) == (True, False, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    real = convert(native, tmp_path / NAMES[to])
    assert (report.tensors, report.nbytes, report.findings) == (real.tensors, real.nbytes, real.findings)


def test_no_loss_passes_under_strict_unseen(
    native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Finding("dropped", "plain/rate", Severity.LOSS, "cannot be carried")
    written = []

    def write_lossy(_tree: Tree, target: Path, _name: str, **_: object) -> tuple[Finding, ...]:
        written.append(target)
        return (loss,)

    monkeypatch.setattr("ckptfmt.conversion.rehearsal.write_foreign", write_lossy)
    monkeypatch.setattr("ckptfmt.conversion.converting.write_foreign", write_lossy)
    with pytest.raises(LossyError, match="plain/rate: cannot be carried; nothing was written") as caught:
        convert(native, tmp_path / "x.npz", strict=True)
    assert caught.value.findings == (loss,)
    with pytest.raises(LossyError):
        write(large(), tmp_path / "x.npz", strict=True)
    assert tmp_path / "x.npz" not in written
    assert convert(native, tmp_path / "x.npz", dry_run=True).losses == (loss,)


def test_a_foreign_object_is_a_loss_in_a_torch_file_or_is_kept(tmp_path: Path) -> None:
    tree: Tree = {"w": Tensor.of(np.ones(3)), "o": Opaque("mine.Class", {"args": (1,), "state": None})}
    ckptfmt.save(tree, tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "x.pt")
    assert report.same_root is (not report.losses)
    if report.losses:
        with pytest.raises(LossyError):
            convert(tmp_path / "source", tmp_path / "y.pt", strict=True)
        assert not (tmp_path / "y.pt").exists()


@pytest.mark.parametrize("to", ["npz", "safetensors", "torch"])
def test_a_rehearsal_finds_what_the_writer_finds(to: str, tmp_path: Path) -> None:
    big = np.zeros((700, 401), np.float32)
    tree: Tree = {
        "f4": Tensor.of(np.zeros((1001, 333), ml_dtypes.float4_e2m1fn)),
        "f4 even": Tensor.of(np.zeros((1001, 332), ml_dtypes.float4_e2m1fn)),
        "half": Tensor.of(np.zeros((400, 300), ml_dtypes.bfloat16)),
        "complex": Tensor.of(np.zeros((400, 300), np.complex128)),
        "tied": Tensor.of(big),
        "again": Tensor.of(big),
        "text": Tensor.of(np.zeros(40_000, "S9")),
        "empty": Tensor.of(np.zeros((1 << 40, 0), np.float32)),
        "composite": Composite("sparse", {"size": 3}, {"indices": Tensor.of(np.zeros(90_000, np.int64))}),
        "opaque": Opaque("mine.Class", {"args": ()}),
    }
    foreseen = rehearse(tree, options_for(tmp_path / NAMES[to], to=to))
    found = write(tree, tmp_path / NAMES[to], to=to)
    assert [(one.kind, one.severity) for one in foreseen] == [(one.kind, one.severity) for one in found]
    assert found


def test_a_target_is_replaced_only_when_asked(native: Path, tmp_path: Path) -> None:
    for name in NAMES.values():
        convert(native, tmp_path / name)
        before = (tmp_path / name).stat().st_ino
        with pytest.raises(ExistsError):
            convert(native, tmp_path / name)
        assert (tmp_path / name).stat().st_ino == before
        convert(native, tmp_path / name, overwrite=True)
        assert (tmp_path / name).stat().st_ino != before


def test_a_source_that_is_open_keeps_its_bytes_when_it_is_the_next_target(
    native: Path, tmp_path: Path
) -> None:
    convert(native, tmp_path / "x.npz")
    with read(tmp_path / "x.npz") as opened:
        ckptfmt.save(small(), tmp_path / "other")
        convert(tmp_path / "other", tmp_path / "x.npz", overwrite=True)
        assert opened.tensors()["model/c"].numpy().tobytes() == large()["model"]["c"].tobytes()  # type: ignore[index]


@pytest.mark.parametrize("to", NAMES)
def test_a_damaged_source_gives_no_target(to: str, native: Path, tmp_path: Path) -> None:
    shard = next(native.glob("data-*"))
    data = bytearray(shard.read_bytes())
    data[-70_000] ^= 4
    shard.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        convert(native, tmp_path / NAMES[to])
    assert caught.value.tensor is not None
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("to", ["npz", "safetensors", "torch"])
def test_a_target_that_is_not_what_was_written_is_an_error(
    to: str, native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_wrong(_tree: Tree, target: Path, name: str, **_: object) -> tuple[Finding, ...]:
        other: Tree = {"model": {"a.b": Tensor.of(np.zeros((300, 70), np.float32))}}
        return write_foreign(other, target, name)

    monkeypatch.setattr("ckptfmt.conversion.converting.write_foreign", write_wrong)
    with pytest.raises(VerificationError, match="do not use it") as caught:
        convert(native, tmp_path / NAMES[to])
    assert "model/c" in {finding.path for finding in caught.value.findings}
    assert not convert(native, tmp_path / f"n-{NAMES[to]}", verify=False).verified


def test_a_loss_that_is_told_explains_its_tensor_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Tensor.of(np.ones(3, ml_dtypes.int4))
    ckptfmt.save({"m": {"i4": narrow, "w": np.ones(3)}}, tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "x.pt")
    assert [loss.path for loss in report.losses] == ["m/i4"]
    assert report.verified
    assert report.same_root is False
    with pytest.raises(LossyError):
        convert(tmp_path / "source", tmp_path / "y.pt", strict=True)

    def write_wrong(_tree: Tree, target: Path, name: str, **_: object) -> tuple[Finding, ...]:
        other: Tree = {"m": {"i4": narrow, "w": Tensor.of(np.zeros(3))}}
        return write_foreign(other, target, name)

    monkeypatch.setattr("ckptfmt.conversion.converting.write_foreign", write_wrong)
    with pytest.raises(VerificationError) as caught:
        convert(tmp_path / "source", tmp_path / "z.pt")
    assert [finding.path for finding in caught.value.findings] == ["m/w"]


def test_options_reach_the_writers(native: Path, tmp_path: Path) -> None:
    plain = convert(native, tmp_path / "a.npz").stored
    deflated = convert(native, tmp_path / "b.npz", codec="deflate").stored
    assert plain is not None
    assert deflated is not None
    assert deflated < plain
    coded = convert(native, tmp_path / "coded", codec="planes+zstd")
    assert coded.same_root
    assert list((tmp_path / "coded").glob("*.ckz"))
    convert(native, tmp_path / "shards", shard_size=4096)
    assert len(list((tmp_path / "shards").glob("data-*"))) > 2
    sharded = convert(native, tmp_path / "st", to="safetensors", shard_size=50_000)
    assert sharded.same_root
    assert len(list((tmp_path / "st").glob("*.safetensors"))) > 1
    assert convert(tmp_path / "st", tmp_path / "back.pt").root == coded.root


@pytest.mark.parametrize("to", NAMES)
def test_progress_goes_from_nothing_to_all(to: str, native: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    convert(native, tmp_path / NAMES[to], progress=lambda done, total: told.append((done, total)))
    assert len({total for _, total in told}) == 1
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]


def test_reading_says_what_is_wrong_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read(tmp_path / "none")
    with pytest.raises(UnknownFormatError):
        read(tmp_path)
    with pytest.raises(UnknownFormatError, match="'gguf'"):
        read(tmp_path, format="gguf")


def test_any_value_is_written_in_any_format(tmp_path: Path) -> None:
    for to, name in NAMES.items():
        write(large(), tmp_path / name, to=to)
        with read(tmp_path / name) as checkpoint:
            assert checkpoint.format == to
            assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(large()).root
