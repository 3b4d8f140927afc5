"""The real Chainer 7.8.1 loads what we write, strictly, and goes on from it to the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

import ckptfmt
from tools.make_golden.chainer import network, trainer_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

Foreign: TypeAlias = Any  # an object of a library without types

pytestmark = pytest.mark.framework

OPTIMIZERS = (
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AMSGrad",
    "CorrectedMomentumSGD",
    "MomentumSGD",
    "MSVAG",
    "NesterovAG",
    "RMSprop",
    "RMSpropGraves",
    "SGD",
    "SMORMS3",
)
KINDS = ("chainer-npz", "chainer-hdf5")


def stepped(chainer: ModuleType, optimizer: Foreign, *, seed: int = 0, fresh: bool = False) -> Foreign:
    """Return a model after a step of an optimizer; a fresh layer is never called."""
    np.random.seed(seed)  # noqa: NPY002 - Chainer's initialisers use it
    model = network(chainer, fresh=fresh)
    optimizer.setup(model)
    batch = np.random.rand(4, 1, 6, 6).astype("f4")  # noqa: NPY002
    optimizer.update(model, batch, np.arange(4, dtype="i4") % 3)
    return model


def arrays(chainer: ModuleType, obj: Foreign) -> dict[str, np.ndarray]:
    """Return what Chainer's own serializer makes of an object."""
    made: dict[str, np.ndarray] = chainer.serializers.npz.serialize(obj)
    return made


def assert_same(chainer: ModuleType, one: Foreign, two: Foreign, *, but: tuple[str, ...] = ()) -> None:
    first, second = arrays(chainer, one), arrays(chainer, two)
    assert set(first) == set(second)
    for name, value in first.items():
        if not name.endswith(but or ("\0",)):
            left, right = np.asarray(value), np.asarray(second[name])
            assert (left.dtype, left.shape) == (right.dtype, right.shape), name
            assert left.dtype == object or left.tobytes() == right.tobytes(), name


def save(chainer: ModuleType, path: Path, obj: Foreign, kind: str) -> None:
    """Save with Chainer."""
    serializers = chainer.serializers
    (serializers.save_npz if kind == "chainer-npz" else serializers.save_hdf5)(str(path), obj)


def load(chainer: ModuleType, path: Path, obj: Foreign, kind: str) -> None:
    """Load with Chainer, as strictly as it can."""
    if kind == "chainer-npz":
        chainer.serializers.load_npz(str(path), obj, strict=True)
    else:
        chainer.serializers.load_hdf5(str(path), obj)


@pytest.mark.parametrize("codec", ["raw", "deflate"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_models_and_optimizers_come_back_through_our_format(
    name: str, kind: str, codec: str, tmp_path: Path, chainer: ModuleType
) -> None:
    if kind == "chainer-hdf5":
        pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    optimizer = getattr(chainer.optimizers, name)()
    model = stepped(chainer, optimizer)
    fresh = getattr(chainer.optimizers, name)()
    other = stepped(chainer, fresh, seed=1)
    for what, target in ((model, other), (optimizer, fresh)):
        source, native, again = (tmp_path / f"{type(what).__name__}.{end}" for end in "abc")
        save(chainer, source, what, kind)
        ckptfmt.convert(source, native, source_format=kind, to="ckptfmt")
        ckptfmt.convert(native, again, to=kind, codec=codec, strict=True)
        load(chainer, again, target, kind)
        assert_same(chainer, what, target)


def test_a_lazy_parameter_is_initialised_by_what_we_write(tmp_path: Path, chainer: ModuleType) -> None:
    """The state of its optimizer, too (chainer/chainer#2118); what was never initialised stays so."""
    optimizer = chainer.optimizers.Adam()
    model = stepped(chainer, optimizer)
    save(chainer, tmp_path / "model", model, "chainer-npz")
    save(chainer, tmp_path / "optimizer", optimizer, "chainer-npz")
    lazy, later = network(chainer, fresh=False), chainer.optimizers.Adam()
    later.setup(lazy)
    assert lazy.predictor.head.W.array is None
    for name, target in (("model", lazy), ("optimizer", later)):
        with ckptfmt.read(tmp_path / name, format="chainer-npz") as checkpoint:
            ckptfmt.write(checkpoint.tree, tmp_path / f"{name}.npz", to="chainer-npz", strict=True)
        load(chainer, tmp_path / f"{name}.npz", target, "chainer-npz")
    assert_same(chainer, model, lazy)
    assert_same(chainer, optimizer, later)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_was_never_initialised_stays_so(
    kind: str, tmp_path: Path, chainer: ModuleType
) -> None:
    """Chainer itself cannot load the optimizer of such a model (#5501); we read what there is of it."""
    if kind == "chainer-hdf5":
        pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    optimizer = chainer.optimizers.MomentumSGD()
    model = stepped(chainer, optimizer, fresh=True)
    save(chainer, tmp_path / "model", model, kind)
    save(chainer, tmp_path / "optimizer", optimizer, kind)
    with ckptfmt.read(tmp_path / "model", format=kind) as checkpoint:
        ckptfmt.write(checkpoint.tree, tmp_path / "again", to=kind, strict=True)
    other = stepped(chainer, chainer.optimizers.MomentumSGD(), seed=1, fresh=True)
    load(chainer, tmp_path / "again", other, kind)
    assert_same(chainer, model, other)
    assert other.predictor.fresh.W.array is None
    with ckptfmt.read(tmp_path / "optimizer", format=kind) as checkpoint:
        assert set(checkpoint.at(("predictor", "fresh", "W"))) == {"t"}  # type: ignore[arg-type] # a mapping
        assert set(checkpoint.at(("predictor", "head", "W"))) == {"t", "v"}  # type: ignore[arg-type]
    again = chainer.optimizers.MomentumSGD().setup(network(chainer))
    with pytest.raises(KeyError):
        load(chainer, tmp_path / "optimizer", again, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_numbers_ties_and_a_note_do_not_disturb_chainer(
    kind: str, tmp_path: Path, chainer: ModuleType
) -> None:
    if kind == "chainer-hdf5":
        pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    chain = chainer.Chain(one=chainer.Link(), two=chainer.Link())
    for link in (chain.one, chain.two):
        link.add_persistent("W", np.zeros((2, 3), "f4"))
    for name, value in {"whole": 0, "real": 0.0, "yes": False, "none": None}.items():
        chain.one.add_persistent(name, value)
    shared = np.arange(6, dtype="f4").reshape(2, 3)
    tree: dict[str, object] = {
        "one": {"W": shared, "whole": 7, "real": 0.5, "yes": True, "none": None},
        "two": {"W": shared},
        "besides": {"list": [1, (2, b"x")], 3: np.ones(2), "bf16": ckptfmt.Tensor.of(np.ones(2, "f2"))},
    }
    findings = ckptfmt.write(tree, tmp_path / "file", to=kind, strict=True)
    assert {"structure-note", "tie-noted"} <= {finding.kind for finding in findings}
    load(chainer, tmp_path / "file", chain, kind)
    assert chain.one.W.tobytes() == chain.two.W.tobytes() == shared.tobytes()
    assert (chain.one.whole, chain.one.real, chain.one.yes, chain.one.none) == (7, 0.5, True, None)
    assert [type(chain.one.whole), type(chain.one.real), type(chain.one.yes)] == [int, float, bool]
    assert ckptfmt.detect(tmp_path / "file").name == kind
    with ckptfmt.read(tmp_path / "file") as checkpoint:
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root


def test_a_flat_mapping_of_names_is_loaded_too(tmp_path: Path, chainer: ModuleType) -> None:
    model = stepped(chainer, chainer.optimizers.SGD())
    save(chainer, tmp_path / "model.npz", model, "chainer-npz")
    with ckptfmt.read(tmp_path / "model.npz") as flat:
        assert flat.format == "npz"
        ckptfmt.write(flat.tree, tmp_path / "again.npz", to="chainer-npz", strict=True)
        with ckptfmt.read(tmp_path / "again.npz") as again:
            assert ckptfmt.digest(again).root == ckptfmt.digest(flat).root
    other = stepped(chainer, chainer.optimizers.SGD(), seed=1)
    load(chainer, tmp_path / "again.npz", other, "chainer-npz")
    assert_same(chainer, model, other)


def test_a_chain_without_parameters_comes_back(tmp_path: Path, chainer: ModuleType) -> None:
    """An empty file is one, of either kind (chainer/chainer#4542)."""
    save(chainer, tmp_path / "empty.npz", chainer.Chain(), "chainer-npz")
    with ckptfmt.read(tmp_path / "empty.npz", format="chainer-npz") as checkpoint:
        assert checkpoint.tree == {}
        ckptfmt.write(checkpoint.tree, tmp_path / "again.npz", to="chainer-npz", strict=True)
    load(chainer, tmp_path / "again.npz", chainer.Chain(), "chainer-npz")


def test_a_group_of_a_file_is_read_with_the_names_it_has(tmp_path: Path, chainer: ModuleType) -> None:
    """An HDF5 file with a model below ``test/`` (chainer/chainer PR#812)."""
    h5py = pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    model = stepped(chainer, chainer.optimizers.SGD())
    with h5py.File(tmp_path / "file.h5", "w") as file:
        chainer.serializers.HDF5Serializer(file.create_group("test")).save(model)
    with ckptfmt.read(tmp_path / "file.h5", format="chainer-hdf5") as checkpoint:
        below = checkpoint["test"]
        ckptfmt.write(below, tmp_path / "model.npz", to="chainer-npz", strict=True)
    other = stepped(chainer, chainer.optimizers.SGD(), seed=1)
    load(chainer, tmp_path / "model.npz", other, "chainer-npz")
    assert_same(chainer, model, other)


def test_text_is_told_as_lost_to_chainer_in_hdf5(tmp_path: Path, chainer: ModuleType) -> None:
    pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")
    chain = chainer.Chain()
    chain.add_persistent("text", "abc")
    save(chainer, tmp_path / "file.npz", chain, "chainer-npz")
    with ckptfmt.read(tmp_path / "file.npz", format="chainer-npz") as checkpoint:
        (told,) = [
            finding
            for finding in ckptfmt.write(checkpoint.tree, tmp_path / "file.h5", to="chainer-hdf5")
            if finding.severity is ckptfmt.Severity.LOSS
        ]
        assert (told.kind, told.path) == ("text-lost", "text")
        with pytest.raises(ckptfmt.LossyError):
            ckptfmt.write(checkpoint.tree, tmp_path / "strict.h5", to="chainer-hdf5", strict=True)
        with ckptfmt.read(tmp_path / "file.h5") as again:
            assert ckptfmt.digest(again).root == ckptfmt.digest(checkpoint).root


VOLATILE = ("elapsed_time", "_log", "_snapshot_elapsed_time")


def run(trainer: Foreign, chainer: ModuleType, steps: int) -> None:
    """Let a trainer run until an iteration."""
    trainer.stop_trigger = chainer.training.triggers.IntervalTrigger(steps, "iteration")
    trainer.run()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["Adam", "MomentumSGD"])
def test_a_snapshot_that_went_through_our_format_resumes_to_the_same_bits(
    name: str, seed: int, tmp_path: Path, chainer: ModuleType
) -> None:
    """From the middle of an epoch over a reshuffle, with dropout and the state of numpy's generator."""

    def trainer() -> Foreign:
        return trainer_of(chainer, getattr(chainer.optimizers, name)(), tmp_path / "out", seed, fresh=False)

    whole = trainer()
    run(whole, chainer, 9)
    half = trainer()
    run(half, chainer, 4)
    numbers = np.random.get_state()  # noqa: NPY002
    save(chainer, tmp_path / "snapshot", half, "chainer-npz")
    ckptfmt.convert(tmp_path / "snapshot", tmp_path / "native", to="ckptfmt")
    report = ckptfmt.convert(tmp_path / "native", tmp_path / "again", to="chainer-npz", strict=True)
    assert report.same_root is True
    later = trainer()
    load(chainer, tmp_path / "again", later, "chainer-npz")
    np.random.set_state(numbers)  # noqa: NPY002
    run(later, chainer, 9)
    assert later.updater.iteration == 9
    assert_same(chainer, whole, later, but=VOLATILE)


def test_a_snapshot_in_hdf5_is_told_and_resumes_from_either_kind_of_file(
    tmp_path: Path, chainer: ModuleType
) -> None:
    """Chainer can save a trainer so where no extension holds text."""
    pytest.importorskip("h5py", reason="reading HDF5 needs h5py (the extra chainer)")

    def trainer() -> Foreign:
        made = trainer_of(chainer, chainer.optimizers.MomentumSGD(), tmp_path / "out", fresh=False)
        del made._extensions["LogReport"]
        return made

    first = trainer()
    run(first, chainer, 4)
    save(chainer, tmp_path / "snapshot", first, "chainer-hdf5")
    assert ckptfmt.detect(tmp_path / "snapshot").name == "chainer-hdf5"
    with ckptfmt.read(tmp_path / "snapshot") as checkpoint:
        assert checkpoint.step == 4
    for kind in KINDS:
        ckptfmt.convert(tmp_path / "snapshot", tmp_path / kind, to=kind, strict=True)
        assert ckptfmt.detect(tmp_path / kind).name == kind
        later = trainer()
        load(chainer, tmp_path / kind, later, kind)
        assert_same(chainer, first.updater, later.updater)
