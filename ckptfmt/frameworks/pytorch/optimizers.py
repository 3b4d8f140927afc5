"""The state of an optimizer by the names of its parameters, and back.

A file has numbers where a model has names: the places of parameters in the optimizer's groups, and before
PyTorch 1.6 the addresses that they had in memory. Which parameter each one is, the order of the groups tells
and nothing else, so every count and shape that can be compared is compared, and doubt is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.errors import ConversionError
from ckptfmt.tree.nodes import tag_of, tagged
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["SHAPED", "named_optimizer", "numbered_optimizer", "parameter_keys", "slots"]

SHAPED = frozenset(
    (
        "acc_delta",
        "ax",
        "exp_avg",
        "exp_avg_sq",
        "exp_inf",
        "grad_avg",
        "max_exp_avg_sq",
        "momentum_buffer",
        "prev",
        "square_avg",
        "step_size",
        "sum",
    )
)
"""Names of what the optimizers of PyTorch 2.13 (``torch/optim``) keep in the shape of the parameter."""
_SHOWN = 5


def named_optimizer(
    optimizer: Tree,
    parameter_names: Sequence[str] | Sequence[Sequence[str]] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Tree:
    """Return an optimizer's state dict with names in place of numbers or addresses.

    Parameters
    ----------
    optimizer : Tree
        As ``Optimizer.state_dict()`` has it: ``state`` and ``param_groups``.
    parameter_names : sequence of str, or one such for each group, optional
        In the order in which the optimizer was given the parameters; `live.parameter_names` tells it of
        objects in memory. May be left out where the file has them (``param_names``, since PyTorch 2.6).
    shapes : mapping of str to tuple of int, optional
        Of the parameters; what the optimizer keeps in their shape is compared with them.

    Returns
    -------
    Tree
        The same, with names as keys of ``state`` and as ``params`` of each group. No tensor is read.

    Raises
    ------
    ConversionError
        It is no state of an optimizer; there are several groups and one list of names; names are missing,
        too many or there twice; state belongs to no parameter; or a shape differs.
    """
    state, groups = _parts(optimizer)
    members = [_members(group) for group in groups]
    names = _names(groups, members, parameter_names)
    by_key = dict(zip(_flat(members), _flat(names), strict=True))
    if len(by_key) != sum(map(len, members)):
        raise ConversionError("a parameter is in the optimizer's groups twice")
    if len(set(by_key.values())) != len(by_key):
        raise ConversionError(f"a name is given twice: {_twice(_flat(names))}")
    lost = [key for key in state if key not in by_key]
    if lost:
        raise ConversionError(f"{len(lost)} states belong to no parameter, that of {lost[0]!r} among them")
    named: dict[Key, Tree] = {by_key[key]: entry for key, entry in state.items()}
    if shapes is not None:
        _check_shapes(named, shapes)
    return _assembled(
        optimizer, named, [_with(group, list(own)) for group, own in zip(groups, names, strict=True)]
    )


def numbered_optimizer(optimizer: Tree, *, keys: Sequence[int] | None = None) -> Tree:
    """Return the state dict that `named_optimizer` was given.

    Parameters
    ----------
    optimizer : Tree
        With names.
    keys : sequence of int, optional
        The number of each parameter, in the order of the groups; 0, 1, 2 ... by default, as PyTorch has them
        since 1.6.

    Raises
    ------
    ConversionError
        It is no such state, a name is there twice or in no group, or there is another number of keys.
    """
    state, groups = _parts(optimizer)
    members = [_members(group) for group in groups]
    order = _flat(members)
    numbers = range(len(order)) if keys is None else keys
    if len(numbers) != len(order) or len(set(numbers)) != len(order):
        raise ConversionError(f"{len(set(numbers))} numbers for {len(order)} parameters")
    by_name = dict(zip(order, numbers, strict=True))
    if len(by_name) != len(order):
        raise ConversionError(f"a name is there twice: {_twice(order)}")
    lost = [name for name in state if name not in by_name]
    if lost:
        raise ConversionError(f"{len(lost)} states belong to no parameter, that of {lost[0]!r} among them")
    numbered: dict[Key, Tree] = {by_name[name]: entry for name, entry in state.items()}
    back = [_with(group, [by_name[name] for name in own]) for group, own in zip(groups, members, strict=True)]
    return _assembled(optimizer, numbered, back)


def parameter_keys(optimizer: Tree) -> list[Key]:
    """Return what stands for each parameter, in the order of the groups.

    Raises
    ------
    ConversionError
        It is no state of an optimizer.
    """
    return _flat([_members(group) for group in _parts(optimizer)[1]])


def slots(
    tree: Tree, *, variables: Sequence[str] | None = None, optimizer: str | None = None
) -> dict[str, dict[str, Tree]]:
    """Return the values of the one optimizer in a tree by name of their parameter, and by their own name.

    Parameters
    ----------
    tree : Tree
        An optimizer's state dict, or mappings in which there is one.
    variables : sequence of str, optional
        As `parameter_names` of `named_optimizer`.
    optimizer : str, optional
        Not needed: PyTorch's files name the values.

    Raises
    ------
    ConversionError
        There is no optimizer or more than one, or as `named_optimizer` says.
    """
    if optimizer is not None:
        raise ConversionError("a file of PyTorch names its values; the optimizer's class is not needed")
    found = dict(_states(tree, ()))
    if len(found) != 1:
        known = ", ".join(display(path) for path in found)
        message = (
            f"there are {len(found)} optimizers, {known}: say which" if found else "there is no optimizer"
        )
        raise ConversionError(f"{message} (a mapping with `state` and `param_groups`)")
    state, _ = _parts(named_optimizer(next(iter(found.values())), variables))
    return {str(name): _by_name(entry) for name, entry in state.items()}


def _states(tree: Tree, path: Path) -> Iterator[tuple[Path, Tree]]:
    """Yield what looks like an optimizer's state in nested mappings, without going into it."""
    if not isinstance(tree, dict) or len(path) > MAX_DEPTH:
        return
    if {"state", "param_groups"} <= tree.keys():
        yield path, tree
        return
    for key, node in tree.items():
        yield from _states(node, (*path, key))


def _by_name(entry: Tree) -> dict[str, Tree]:
    return {str(name): node for name, node in entry.items()} if isinstance(entry, dict) else {"": entry}


def _parts(optimizer: Tree) -> tuple[dict[Key, Tree], list[dict[Key, Tree]]]:
    if isinstance(optimizer, dict):
        state, groups = optimizer.get("state"), optimizer.get("param_groups")
        if isinstance(state, dict) and isinstance(groups, list | tuple):
            found = [group for group in groups if isinstance(group, dict)]
            if len(found) == len(groups):
                return state, found
    raise ConversionError("this is no state of an optimizer: it has no state and groups of parameters")


def _members(group: dict[Key, Tree]) -> list[Key]:
    members = group.get("params")
    if not isinstance(members, list | tuple) or not all(type(key) in (int, str) for key in members):
        raise ConversionError("a group of parameters without a list of them")
    return list(members)  # type: ignore[arg-type] # numbers or names, see above


def _names(
    groups: list[dict[Key, Tree]],
    members: list[list[Key]],
    given: Sequence[str] | Sequence[Sequence[str]] | None,
) -> list[list[str]]:
    """Return the names of each group's parameters."""
    if given is None:
        recorded = [group.get("param_names") for group in groups]
        if not all(isinstance(names, list | tuple) for names in recorded):
            raise ConversionError(
                "the file has no names of parameters: give them, in the order of the optimizer (--variables)"
            )
        lists = [[str(name) for name in names] for names in recorded if isinstance(names, list | tuple)]
    elif all(isinstance(name, str) for name in given):
        if len(groups) > 1:
            message = f"there are {len(groups)} groups of parameters: give the names of each group"
            raise ConversionError(message)
        lists = [[name for name in given if isinstance(name, str)]] if groups else []
    else:
        lists = [list(names) for names in given if not isinstance(names, str)]
    counts, wanted = [len(names) for names in lists], [len(own) for own in members]
    if counts != wanted:
        raise ConversionError(f"groups of {wanted} parameters, and names for {counts}")
    return lists


def _check_shapes(named: dict[Key, Tree], shapes: Mapping[str, Sequence[int]]) -> None:
    wrong = []
    for name, entry in named.items():
        wanted = shapes.get(str(name))
        if wanted is None:
            raise ConversionError(f"there is no parameter called {name!r}")
        for slot, value in entry.items() if isinstance(entry, dict) else ():
            if slot in SHAPED and isinstance(value, Tensor) and value.shape != tuple(wanted):
                wrong.append(f"{slot} of {name!s} is {value.shape}, the parameter {tuple(wanted)}")
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConversionError(f"the names do not fit: {'; '.join(wrong[:_SHOWN])}{more}")


def _with(group: dict[Key, Tree], members: list[Key]) -> Tree:
    made: dict[Key, Tree] = {key: list(members) if key == "params" else value for key, value in group.items()}
    tag = tag_of(group)
    return made if tag is None else tagged(made, tag)


def _assembled(optimizer: Tree, state: dict[Key, Tree], groups: list[Tree]) -> Tree:
    assert isinstance(optimizer, dict)  # noqa: S101 - see _parts
    tag = tag_of(optimizer["state"])
    parts: dict[Key, Tree] = {
        "state": state if tag is None else tagged(state, tag),
        "param_groups": groups,
    }
    made: dict[Key, Tree] = {
        key: parts.get(key, value) if isinstance(key, str) else value for key, value in optimizer.items()
    }
    tag = tag_of(optimizer)
    return made if tag is None else tagged(made, tag)


def _flat(lists: Sequence[Sequence[Key]]) -> list[Key]:
    return [key for each in lists for key in each]


def _twice(names: Sequence[Key]) -> str:
    """Return the first name that is there before."""
    return repr(next(name for at, name in enumerate(names) if name in names[:at]))
