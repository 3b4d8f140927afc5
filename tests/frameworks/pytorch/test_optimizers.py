"""The state of optimizers by name: against PyTorch's own optimizers, old files, and names that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.pytorch.optimizers import named_optimizer, numbered_optimizer, parameter_keys
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "torch"
OLD = ("1.0.0-py2.7", "1.0.0-py3.7", "1.4.0")
Foreign: TypeAlias = Any  # an object of PyTorch
OPTIMIZERS: dict[str, dict[str, object]] = {
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "SGD": {"momentum": 0.9, "lr": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Rprop": {},
    "ASGD": {},
    "Adafactor": {},
    "LBFGS": {},
}


def state(groups: int = 1) -> Any:  # noqa: ANN401 - indexed freely
    """Return the state of an optimizer of two parameters."""
    entry = {"step": 1, "exp_avg": np.zeros((2, 3), "f4")}
    other = {"step": 1, "exp_avg": np.zeros(2, "f4")}
    members = [[0, 1]] if groups == 1 else [[0], [1]]
    tree, _ = as_tree(
        {"state": {0: entry, 1: other}, "param_groups": [{"lr": 0.1, "params": m} for m in members]}
    )
    return tree


def test_names_take_the_place_of_numbers() -> None:
    tree = state()
    named: Any = named_optimizer(tree, ["w", "b"], shapes={"w": (2, 3), "b": (2,)})
    assert list(named) == ["state", "param_groups"]
    assert named["param_groups"] == [{"lr": 0.1, "params": ["w", "b"]}]
    assert named["state"]["w"] is tree["state"][0]
    back: Any = numbered_optimizer(named)
    assert back == tree
    assert tree["param_groups"][0]["params"] == [0, 1]


def test_each_of_several_groups_has_its_names() -> None:
    tree = state(2)
    named: Any = named_optimizer(tree, [["w"], ["b"]])
    assert [group["params"] for group in named["param_groups"]] == [["w"], ["b"]]
    assert list(named["state"]) == ["w", "b"]
    assert numbered_optimizer(named) == tree


def test_names_in_the_file_itself_are_used() -> None:
    tree = state()
    tree["param_groups"][0]["param_names"] = ["w", "b"]
    named: Any = named_optimizer(tree)
    assert list(named["state"]) == ["w", "b"]


@pytest.mark.parametrize(
    ("tree", "names", "words"),
    [
        (state(), ["w"], r"groups of \[2\] parameters, and names for \[1\]"),
        (state(), ["w", "b", "c"], r"names for \[3\]"),
        (state(), ["w", "w"], "twice: 'w'"),
        (state(2), ["w", "b"], "2 groups of parameters: give the names of each group"),
        (state(2), [["w", "b"], []], r"names for \[2, 0\]"),
        (state(), None, "has no names"),
        (state() | {"param_groups": [{"params": [0, 0]}]}, ["w", "b"], "groups twice"),
        (state() | {"param_groups": [{"params": [0]}]}, ["w"], "1 states belong to no parameter"),
        (state() | {"param_groups": [{}]}, ["w"], "without a list"),
        ({"state": {}}, [], "no state of an optimizer"),
        ([], [], "no state of an optimizer"),
    ],
)
def test_names_that_do_not_fit_are_refused(tree: Tree, names: list[Any] | None, words: str) -> None:
    with pytest.raises(ConversionError, match=words):
        named_optimizer(tree, names)


def test_shapes_that_differ_are_refused_and_named() -> None:
    with pytest.raises(ConversionError, match=r"exp_avg of b is \(2, 3\), the parameter \(2,\)"):
        named_optimizer(state(), ["b", "w"], shapes={"w": (2, 3), "b": (2,)})
    with pytest.raises(ConversionError, match="no parameter called 'b'"):
        named_optimizer(state(), ["w", "b"], shapes={"w": (2, 3)})


def test_numbers_that_do_not_fit_are_refused() -> None:
    named = named_optimizer(state(), ["w", "b"])
    for keys in ([1], [1, 1], [1, 2, 3]):
        with pytest.raises(ConversionError, match="numbers for 2 parameters"):
            numbered_optimizer(named, keys=keys)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("name", ["adam.pt", "sgd.pt"])
def test_addresses_of_old_files_become_names_and_addresses_again(version: str, name: str) -> None:
    with ckptfmt.read(GOLDEN / version / name) as checkpoint:
        tree: Any = checkpoint.tree
        optimizer = tree["optimizer"]
        keys = parameter_keys(optimizer)
        assert all(type(key) is int and key > 1 << 16 for key in keys)
        shapes = parameters_of(tree["model"])
        named: Any = named_optimizer(optimizer, list(shapes), shapes=shapes)
        assert set(named["state"]) == set(shapes)
        back: Any = numbered_optimizer(named, keys=[key for key in keys if type(key) is int])
        assert ckptfmt.compare(as_tree(back)[0], as_tree(optimizer)[0]).equal


def parameters_of(model: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the parameters of a state dict, buffers left out."""
    return {
        name: tensor.shape
        for name, tensor in model.items()
        if name.rpartition(".")[2] not in ("running_mean", "running_var", "num_batches_tracked")
    }


def trained(torch: Foreign, name: str) -> tuple[Foreign, Foreign]:
    """Return a model and an optimizer after a step."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, bias=False))
    optimizer = getattr(torch.optim, name)(module.parameters(), **OPTIMIZERS[name])

    def closure() -> Foreign:
        optimizer.zero_grad()
        loss = module(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return module, optimizer


@pytest.mark.framework
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_pytorch_comes_back_from_its_names(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from ckptfmt.frameworks.pytorch import live  # noqa: PLC0415 - it imports torch

    module, optimizer = trained(torch, name)
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    shapes = {key: tuple(value.shape) for key, value in module.named_parameters()}
    with ckptfmt.read(tmp_path / "o.pt") as checkpoint:
        named: Any = named_optimizer(checkpoint.tree, live.parameter_names(optimizer, module), shapes=shapes)
        assert set(named["state"]) == (set(shapes) if name != "LBFGS" else {"0.weight"})
        for key, entry in named["state"].items():
            own = optimizer.state[dict(module.named_parameters())[key]]
            for slot, value in entry.items():
                if isinstance(value, Tensor):
                    assert value.numpy().tobytes() == own[slot].numpy().tobytes()
        ckptfmt.write(numbered_optimizer(named), tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    _, fresh = trained(torch, name)
    fresh.load_state_dict(back)
    assert ckptfmt.compare(live.capture(fresh.state_dict()), live.capture(optimizer.state_dict())).equal


@pytest.mark.framework
def test_names_of_live_groups_are_told_and_strangers_refused() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from ckptfmt.frameworks.pytorch import live  # noqa: PLC0415 - it imports torch

    module = torch.nn.Linear(3, 4)
    groups = [{"params": [module.bias], "lr": 0.1}, {"params": [module.weight]}]
    optimizer = torch.optim.SGD(groups, lr=0.2)
    assert live.parameter_names(optimizer, module) == [["bias"], ["weight"]]
    with pytest.raises(ConversionError, match="none of the module's"):
        live.parameter_names(optimizer, torch.nn.Linear(3, 4))
