"""Chainer's objects come back to the same bits; what does not fit is listed before anything is changed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import ConversionError
from ckptfmt.registry import adapt as registry_adapt
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.walk import leaves
from tests.frameworks.chainer.test_judges import OPTIMIZERS, VOLATILE, assert_same, run, save, stepped
from tools.make_golden.chainer import network, trainer_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from ckptfmt.tree.nodes import Tree

Foreign: TypeAlias = Any  # an object of a library without types

pytestmark = pytest.mark.framework


@pytest.fixture
def live(chainer: ModuleType) -> Foreign:
    """The module under test, which imports Chainer."""
    del chainer
    return pytest.importorskip("ckptfmt.frameworks.chainer.live", reason="Chainer is not installed")


def through(tree: Tree, place: Path) -> Tree:
    """Return a tree as it comes back from our own format."""
    ckptfmt.save(tree, place)
    return ckptfmt.load(place).tree


def test_a_model_and_an_iterator_are_what_their_file_is(
    tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    model = stepped(chainer, chainer.optimizers.Adam(), fresh=True)
    iterator = chainer.iterators.SerialIterator(list(range(10)), 3)
    iterator.next()
    for obj in (model, iterator):
        save(chainer, tmp_path / type(obj).__name__, obj, "chainer-npz")
        with ckptfmt.read(tmp_path / type(obj).__name__, format="chainer-npz") as checkpoint:
            assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(live.capture(obj)).root


def test_a_trainer_holds_what_its_snapshot_holds(tmp_path: Path, chainer: ModuleType, live: Foreign) -> None:
    trainer = trainer_of(chainer, chainer.optimizers.Adam(), tmp_path)
    run(trainer, chainer, 3)
    save(chainer, tmp_path / "snapshot", trainer, "chainer-npz")
    captured = {path for path, _ in leaves(live.capture(trainer)["serialized"])}
    with ckptfmt.read(tmp_path / "snapshot") as checkpoint:
        assert {path for path, _ in leaves(checkpoint.tree)} == captured


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fresh_optimizer_takes_state_and_settings(
    name: str, tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    """The parameters of the fresh model have no data yet, its rules no state."""
    optimizer = getattr(chainer.optimizers, name)()
    model = stepped(chainer, optimizer, fresh=True)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.25))
    first = next(iter(vars(optimizer.hyperparam).keys() - {"_parent"}))
    setattr(optimizer.hyperparam, first, 0.125)
    rule = model.predictor.conv.W.update_rule
    setattr(rule.hyperparam, first, 0.5)
    model.predictor.head.b.update_rule.enabled = False
    tree = through({"model": live.capture(model), "optimizer": live.capture(optimizer)}, tmp_path / "native")
    other, later = network(chainer), getattr(chainer.optimizers, name)()
    later.setup(other)
    later.add_hook(chainer.optimizer_hooks.WeightDecay(1.0))
    live.restore(tree, {"model": other, "optimizer": later})
    assert_same(chainer, model, other)
    assert_same(chainer, optimizer, later)
    assert getattr(later.hyperparam, first) == 0.125
    assert getattr(other.predictor.conv.W.update_rule.hyperparam, first) == 0.5
    assert later._hookable._pre_update_hooks["WeightDecay"].rate == 0.25
    assert not other.predictor.head.b.update_rule.enabled
    assert ckptfmt.digest(live.capture(later)).root == ckptfmt.digest(live.capture(optimizer)).root


@pytest.mark.parametrize(("name", "setting"), [("MSVAG", "lr"), ("AdaBound", "alpha")])
def test_rules_that_keep_numbers_of_their_own_go_on_to_the_same_bits(
    name: str, setting: str, tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    """Powers of beta and the rate that bounds began with are attributes of rules; no snapshot has them."""
    optimizer = getattr(chainer.optimizers, name)(**{setting: 0.25})
    model = stepped(chainer, optimizer, fresh=True)
    tree = through({"model": live.capture(model), "optimizer": live.capture(optimizer)}, tmp_path / "native")
    other, later = network(chainer), getattr(chainer.optimizers, name)(**{setting: 0.5})
    later.setup(other)
    live.restore(tree, {"model": other, "optimizer": later})
    model.predictor.cell.reset_state()  # in no file, nor in what is captured
    batch, labels = np.ones((4, 1, 6, 6), "f4"), np.arange(4, dtype="i4") % 3
    for rule, net in ((optimizer, model), (later, other)):
        np.random.seed(1)  # noqa: NPY002 - for dropout
        rule.update(net, batch, labels)
    assert_same(chainer, model, other)
    assert_same(chainer, optimizer, later)
    del later.target.predictor.conv.W.update_rule.__dict__[next(iter(tree_attributes(tree)))]
    with pytest.raises(ConversionError, match="attributes"):
        live.restore(tree, {"model": other, "optimizer": later})


def tree_attributes(tree: Tree) -> Foreign:
    """Return the attributes of one rule of a captured optimizer."""
    return cast("Foreign", tree)["optimizer"]["rules"]["predictor/conv/W"]["attributes"]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("iteration", [4, 5, 7])
def test_a_restored_trainer_goes_on_to_the_same_bits(
    seed: int, iteration: int, tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    """In the middle of an epoch, over the next reshuffle, with dropout: random states come back, too."""

    def trainer(**options: float) -> Foreign:
        optimizer = chainer.optimizers.MomentumSGD(**options)
        return trainer_of(chainer, optimizer, tmp_path / "out", seed)

    whole = trainer(lr=0.07, momentum=0.8)
    run(whole, chainer, 12)
    half = trainer(lr=0.07, momentum=0.8)
    run(half, chainer, iteration)
    tree = through(live.capture(half), tmp_path / "native")
    draws = random.random(), np.random.rand()  # noqa: NPY002, S311
    later = trainer()
    live.restore(tree, later)
    assert (random.random(), np.random.rand()) == draws  # noqa: NPY002, S311
    live.restore(tree, later)
    assert later.updater.get_optimizer("main").momentum == 0.8
    run(later, chainer, 12)
    assert_same(chainer, whole, later, but=VOLATILE)


def test_master_copies_in_single_precision_come_back(
    tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    """Rules that update halves keep a copy that no snapshot has."""

    def made(seed: int) -> tuple[Foreign, Foreign]:
        np.random.seed(seed)  # noqa: NPY002
        with chainer.using_config("dtype", np.float16):
            model = chainer.links.Classifier(chainer.links.Linear(4, 3))
        optimizer = chainer.optimizers.MomentumSGD(lr=0.01)
        optimizer.setup(model)
        optimizer.use_fp32_update()
        return model, optimizer

    x, t = np.random.default_rng(0).random((5, 4)).astype("f2"), np.arange(5, dtype="i4") % 3
    model, optimizer = made(0)
    for _ in range(5):
        optimizer.update(model, x, t)
    tree = through(ckptfmt_tree([live.capture(model), live.capture(optimizer)]), tmp_path / "native")
    other, later = made(1)
    live.restore(tree, [other, later])
    for _ in range(5):
        optimizer.update(model, x, t)
        later.update(other, x, t)
    assert_same(chainer, model, other)
    assert_same(chainer, optimizer, later)


def test_what_chainermn_wraps_around_an_optimizer_is_looked_through(
    chainer: ModuleType, live: Foreign
) -> None:
    optimizers = pytest.importorskip("chainermn.optimizers", reason="Chainer is not installed")
    plain = chainer.optimizers.Adam()
    stepped(chainer, plain)
    wrapped = optimizers._MultiNodeOptimizer(plain, None, zero_fill=False)
    assert ckptfmt.digest(live.capture(wrapped)).root == ckptfmt.digest(live.capture(plain)).root
    found, _ = as_tree({"optimizer": wrapped}, adapt=registry_adapt)
    assert isinstance(found, dict)
    plain.alpha = 0.5
    live.restore(found["optimizer"], wrapped)
    assert plain.alpha == 0.001


def test_a_snapshots_tree_is_taken_without_settings(
    tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    trainer = trainer_of(chainer, chainer.optimizers.Adam(), tmp_path, fresh=False)
    run(trainer, chainer, 3)
    save(chainer, tmp_path / "snapshot", trainer, "chainer-npz")
    later = trainer_of(chainer, chainer.optimizers.Adam(), tmp_path, 1, fresh=False)
    with ckptfmt.read(tmp_path / "snapshot") as checkpoint:
        live.restore(checkpoint.tree, later)
    assert_same(chainer, trainer.updater, later.updater)


@pytest.mark.parametrize("kind", ["SerialIterator", "MultithreadIterator", "MultiprocessIterator"])
def test_an_iterator_goes_on_with_the_same_items(
    kind: str, tmp_path: Path, chainer: ModuleType, live: Foreign
) -> None:
    """Over the next shuffle with the generator's state (chainer/chainer#3754); workers draw ahead."""
    options: dict[str, object] = {}
    if kind == "MultiprocessIterator":
        options = {"n_processes": 1, "shuffle": None, "order_sampler": lambda order, _: order[::-1].copy()}
    make = getattr(chainer.iterators, kind)
    for seed in range(3):
        np.random.seed(seed)  # noqa: NPY002
        whole = make(list(range(10)), 3, **options)
        for _ in range(2):
            whole.next()
        tree = {"iterator": live.capture(whole), "random": live.capture_random()}
        kept = through(ckptfmt_tree(tree), tmp_path / f"native-{seed}")
        wanted = [whole.next() for _ in range(9)]
        later = make(list(range(10)), 3, **options)
        found = cast("dict[str, Tree]", kept)
        live.restore(found["iterator"], later)
        live.restore_random(found["random"])
        assert [later.next() for _ in range(9)] == wanted
        whole.finalize()
        later.finalize()


def ckptfmt_tree(value: object) -> Tree:
    """Return a value's tree, by a copy of its arrays."""
    return as_tree(value)[0]


def test_save_takes_chainers_objects_as_they_are(tmp_path: Path, chainer: ModuleType, live: Foreign) -> None:
    model = stepped(chainer, chainer.optimizers.Adam())
    ckptfmt.save({"model": model, "step": 3, "one": chainer.Variable(np.ones(2, "f4"))}, tmp_path / "native")
    other = stepped(chainer, chainer.optimizers.Adam(), seed=1)
    variable = chainer.Variable(np.zeros(2, "f4"))
    target = {"model": other, "step": 0, "one": variable}
    with ckptfmt.load(tmp_path / "native") as checkpoint:
        live.restore(checkpoint.tree, target)
    assert_same(chainer, model, other)
    assert target["step"] == 3
    assert variable.array.tolist() == [1, 1]


def test_everything_that_does_not_fit_is_listed_and_nothing_is_changed(
    chainer: ModuleType, live: Foreign
) -> None:
    model = stepped(chainer, chainer.optimizers.SGD())
    tree = cast("Foreign", ckptfmt_tree({"model": live.capture(model)}))["model"]["predictor"]
    tree["conv"]["W"] = ckptfmt.Tensor.of(np.ones((1, 1, 1, 1), "f4"))  # Chainer would broadcast it
    tree["conv"]["b"] = ckptfmt.Tensor.of(np.ones(2))  # and cast this
    tree["more"] = {"W": None}
    tree["head"]["W"] = None
    del tree["norm"]["gamma"]
    before = {name: np.array(value) for name, value in chainer.serializers.npz.serialize(model).items()}
    with pytest.raises(ConversionError) as caught:
        live.restore({"predictor": tree}, model)
    said = str(caught.value)
    for line in (
        "predictor/conv/W: f32 (1, 1, 1, 1) where f32 (2, 1, 3, 3) must be",
        "predictor/conv/b: f64 (2,) where f32 (2,) must be",
        "predictor/more: unexpected",
        "predictor/head/W: never initialised in the checkpoint, and initialised here",
        "predictor/norm/gamma: missing",
    ):
        assert line in said
    after = chainer.serializers.npz.serialize(model)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_settings_that_do_not_fit_are_listed(chainer: ModuleType, live: Foreign) -> None:
    optimizer, later = chainer.optimizers.Adam(), chainer.optimizers.SGD()
    stepped(chainer, optimizer)
    stepped(chainer, later)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
    later.add_hook(chainer.optimizer_hooks.Lasso(1.0))
    with pytest.raises(ConversionError) as caught:
        live.restore(live.capture(optimizer), later)
    said = str(caught.value)
    for line in (
        "hyperparameters/alpha: unexpected",
        "hyperparameters/lr: missing",
        "hooks/GradientClipping: unexpected",
        "hooks/Lasso: missing",
        "serialized/predictor/conv/W/m: unexpected",
    ):
        assert line in said


def test_no_state_of_random_generators_is_refused_and_changes_nothing(live: Foreign) -> None:
    before = live.capture_random()
    tree = cast("Foreign", ckptfmt_tree(before))
    for broken in ({}, {"numpy": {}, "python": tree["python"]}, {**tree, "python": {"words": None}}):
        with pytest.raises(ConversionError):
            live.restore_random(broken)
        assert ckptfmt.digest(ckptfmt_tree(live.capture_random())).root == ckptfmt.digest(tree).root


def test_an_object_without_arrays_is_refused(chainer: ModuleType, live: Foreign) -> None:
    with pytest.raises(ConversionError, match="cannot be restored in place"):
        live.restore({}, object())
    chain = chainer.Chain()
    chain.add_persistent("thing", np.array([object()]))
    with pytest.raises(ConversionError, match="thing"):
        live.capture(chain)
