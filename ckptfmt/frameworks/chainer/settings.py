"""What Chainer's snapshots lack: hyper-parameters, attributes of rules, hooks, loss scale, random generators.

Of an optimizer, each as plain values. An entry of a hook that is no plain value (a function, say) stays the
hook's own. CuPy's generators show their state to nobody: what runs on a GPU and draws there is not restarted
to the same bits. Nothing here imports Chainer.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.chainer.matching import mismatches
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.nodes import Strings, Tree
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.tree.paths import Path

__all__ = [
    "capture_random",
    "restore_random",
    "restore_settings",
    "restore_starts",
    "settings_of",
    "settings_problems",
    "starts_of",
]

Foreign: TypeAlias = Any  # Chainer has no types

_LOSS_SCALE = (
    "_loss_scale",
    "_loss_scale_max",
    "_loss_scaling_is_dynamic",
    "_loss_scaling_isnan_ever",
    "_loss_scaling_multiplier",
)
_PLAIN = (bool, int, float, str, type(None))
_OF_EVERY_RULE = {"hyperparam", "enabled", "t"}


def settings_of(optimizer: Foreign) -> dict[str, object]:
    """Return the hyper-parameters, rules, hooks and loss scale of an optimizer that is set up."""
    rules = {}
    for name, parameter in _parameters(optimizer):
        own = _rule(parameter.update_rule)
        if own:
            rules[name] = own
    return {
        "hyperparameters": _own(getattr(optimizer, "hyperparam", None)),
        "rules": rules,
        "hooks": _hooks(optimizer._hookable),  # noqa: SLF001 - there is no other way to them
        "loss_scale": {name: getattr(optimizer, name) for name in _LOSS_SCALE if hasattr(optimizer, name)},
    }


def _parameters(optimizer: Foreign) -> list[tuple[str, Foreign]]:
    target = getattr(optimizer, "target", None)
    if target is None:
        return []
    rules = [(name.lstrip("/"), parameter) for name, parameter in target.namedparams()]
    return [(name, parameter) for name, parameter in rules if parameter.update_rule is not None]


def _rule(rule: Foreign) -> dict[str, object]:
    """Return what a rule has of its own, beside what its optimizer gives it."""
    found = {
        "hyperparameters": _own(rule.hyperparam),
        "hooks": _hooks(rule._hookable),  # noqa: SLF001
        "attributes": _attributes(rule),
    }
    made: dict[str, object] = {name: value for name, value in found.items() if value}
    if not rule.enabled:
        made["enabled"] = False
    master = rule._fp32_param  # noqa: SLF001 - the only place of the copy in single precision
    if master is not None:
        made["fp32_param"] = np.asarray(master.array)
    return made


def _attributes(rule: Foreign) -> dict[str, object]:
    """Return what a rule counts or keeps beside its state, as the powers of MSVAG: no snapshot has it."""
    known = {name: value for name, value in vars(rule).items() if not name.startswith("_")}
    return {name: value for name, value in known.items() if name not in _OF_EVERY_RULE and _is_plain(value)}


def _own(hyperparam: Foreign) -> dict[str, object]:
    known = vars(hyperparam) if hyperparam is not None else {}
    return {name: value for name, value in known.items() if name != "_parent"}


def _hooks(holder: Foreign) -> dict[str, object]:
    made: dict[str, object] = {}
    for timing in ("pre", "post"):
        for name, hook in (getattr(holder, f"_{timing}_update_hooks") or {}).items():
            kind = hook if hasattr(hook, "__qualname__") else type(hook)
            plain = {key: value for key, value in vars(hook).items() if _is_plain(value)}
            made[name] = {"class": f"{kind.__module__}.{kind.__qualname__}", "timing": timing, "state": plain}
    return made


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (
        isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O"
    )


def starts_of(trainer: Foreign) -> dict[str, object]:
    """Return the values that extensions which change a hyper-parameter began with; snapshots lack them.

    They take the optimizer's value at their first call otherwise, which a restored one has changed already.
    """
    extensions = {name: entry.extension for name, entry in trainer._extensions.items()}  # noqa: SLF001
    starts = {name: getattr(extension, "_init", None) for name, extension in extensions.items()}
    return {name: value for name, value in starts.items() if value is not None and _is_plain(value)}


def restore_starts(node: Tree, trainer: Foreign) -> None:
    """Give extensions the values that they began with."""
    for name, value in cast("dict[str, Tree]", node).items():
        trainer._extensions[name].extension._init = _value(value)  # noqa: SLF001


# --- back ------------------------------------------------------------------------------------------------


def settings_problems(node: Tree, optimizer: Foreign, path: Path) -> Iterator[str]:
    """Yield what stands against giving an optimizer its settings."""
    wanted = cast("dict[str, Tree]", as_tree(settings_of(optimizer))[0])
    if not isinstance(node, dict) or set(node) != set(wanted):
        yield f"{display(path) or 'the root'}: no settings of an optimizer"
        return
    for part in ("hyperparameters", "loss_scale", "hooks"):
        yield from _names(node[part], wanted[part], (*path, part))
    yield from _hook_problems(node["hooks"], wanted["hooks"], (*path, "hooks"))
    rules = node["rules"] if isinstance(node["rules"], dict) else {}
    known = dict(_parameters(optimizer))
    for name, own in rules.items():
        parameter = known.get(name) if isinstance(name, str) else None
        if parameter is None or not isinstance(own, dict):
            where = display((*path, "rules", name))
            yield f"{where}: unexpected"
            continue
        held, _ = as_tree(_hooks(parameter.update_rule._hookable))  # noqa: SLF001
        yield from _names(own.get("hooks", {}), held, (*path, "rules", name, "hooks"))
        yield from _hook_problems(own.get("hooks", {}), held, (*path, "rules", name, "hooks"))
        if "attributes" in own:
            held, _ = as_tree(_attributes(parameter.update_rule))
            yield from _names(own["attributes"], held, (*path, "rules", name, "attributes"))


def _names(node: Tree, wanted: Tree, path: Path) -> Iterator[str]:
    found = node if isinstance(node, dict) else {}
    expected = wanted if isinstance(wanted, dict) else {}
    yield from (f"{display((*path, name))}: missing" for name in expected if name not in found)
    yield from (f"{display((*path, name))}: unexpected" for name in found if name not in expected)


def _hook_problems(node: Tree, wanted: Tree, path: Path) -> Iterator[str]:
    if not isinstance(node, dict) or not isinstance(wanted, dict):
        return
    for name, hook in node.items():
        held = wanted.get(name)
        if not isinstance(hook, dict) or not isinstance(held, dict):
            continue  # told by its name
        for part in ("class", "timing"):
            found = hook.get(part)
            if found != held[part]:
                where = display((*path, name, part))
                yield f"{where}: {found!r} where {held[part]!r} must be"
        state, own = hook.get("state"), held["state"]
        yield from _names(state if isinstance(state, dict) else {}, own, (*path, name, "state"))


def restore_settings(node: Tree, optimizer: Foreign, variable: Foreign) -> None:
    """Give an optimizer its settings, which were checked.

    Parameters
    ----------
    node : Tree
    optimizer : chainer.Optimizer
    variable : type
        ``chainer.Variable``.
    """
    settings = cast("dict[str, dict[str, Tree]]", node)
    for name, value in settings["hyperparameters"].items():
        setattr(optimizer.hyperparam, name, _value(value))
    for name, value in settings["loss_scale"].items():
        setattr(optimizer, name, _value(value))
    _set_hooks(settings["hooks"], optimizer._hookable)  # noqa: SLF001
    for name, parameter in _parameters(optimizer):
        _set_rule(cast("dict[str, Tree]", settings["rules"].get(name, {})), parameter, variable)


def _set_rule(node: dict[str, Tree], parameter: Foreign, variable: Foreign) -> None:
    rule = parameter.update_rule
    rule.enabled = node.get("enabled", True) is not False
    for name in list(_own(rule.hyperparam)):
        delattr(rule.hyperparam, name)
    for key, value in cast("dict[str, Tree]", node.get("hyperparameters", {})).items():
        setattr(rule.hyperparam, key, _value(value))
    for key, value in cast("dict[str, Tree]", node.get("attributes", {})).items():
        setattr(rule, key, _value(value))
    _set_hooks(cast("dict[str, Tree]", node.get("hooks", {})), rule._hookable)  # noqa: SLF001
    master = node.get("fp32_param")
    if isinstance(master, Tensor):
        rule._fp32_param = variable(np.array(master.numpy()), name=parameter.name)  # noqa: SLF001


def _set_hooks(node: dict[str, Tree], holder: Foreign) -> None:
    for name, saved in node.items():
        hook = cast("dict[str, Tree]", saved)
        hooks = holder._pre_update_hooks if hook["timing"] == "pre" else holder._post_update_hooks  # noqa: SLF001
        target = hooks[name]
        for key, value in cast("dict[str, Tree]", hook["state"]).items():
            setattr(target, key, _value(value))


def _value(node: Tree) -> object:
    if isinstance(node, Tensor):
        return np.array(node.numpy())[()]
    return node.values[0] if isinstance(node, Strings) and not node.shape else node


# --- random generators -----------------------------------------------------------------------------------


def capture_random() -> dict[str, object]:
    """Return the state of the global generators of numpy and of Python, which snapshots do not hold.

    Iterators shuffle, layers drop out and initialisers draw with numpy's. CuPy's is not in it.
    """
    version, words, gauss = random.getstate()
    return {
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the one that Chainer uses
        "python": {"version": version, "words": np.array(words, np.uint64), "gauss": gauss},
    }


def restore_random(node: Tree) -> None:
    """Give the global generators of numpy and of Python a state: the last thing before training goes on.

    Raises
    ------
    ConversionError
        It is no such state; nothing was changed.
    """
    wanted = cast("dict[str, dict[str, Tree]]", as_tree(capture_random())[0])
    found = node if isinstance(node, dict) else {}
    own = found.get("python")
    words = own.get("words") if isinstance(own, dict) else None
    if set(found) != set(wanted) or list(mismatches(words, wanted["python"]["words"], ("words",))):
        raise ConversionError("no state of the random generators of numpy and Python")
    old = np.random.get_state(legacy=False)  # noqa: NPY002
    python = cast("dict[str, Tree]", own)
    try:
        np.random.set_state(cast("dict[str, Any]", _plain_state(found["numpy"])))  # noqa: NPY002
        numbers = tuple(cast("Tensor", words).numpy().tolist())
        random.setstate((_value(python["version"]), numbers, _value(python["gauss"])))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        np.random.set_state(old)  # noqa: NPY002
        raise ConversionError(f"no state of a random generator: {error}") from error


def _plain_state(node: Tree) -> object:
    if isinstance(node, dict):
        return {key: _plain_state(child) for key, child in node.items()}
    return _value(node)
