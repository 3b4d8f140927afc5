"""Chainer's objects in memory, to a tree and back. The only module that imports Chainer.

What an object serialises stands in its tree as a file of the same object has it; optimizers, updaters and
trainers also tell what files lack (`settings`). Arrays on the CPU are shared, not copied. Restoring checks
everything before anything is changed, and neither casts nor broadcasts.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.chainer.matching import RENAMED, LazyState, OpenState, array_of, mismatches
from ckptfmt.frameworks.chainer.settings import (
    capture_random,
    restore_random,
    restore_settings,
    restore_starts,
    settings_of,
    settings_problems,
    starts_of,
)
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

try:
    import chainer as library
    from chainer import serializer as protocol
    from chainer.backends import _cpu
except AttributeError as error:
    message = (
        f"Chainer cannot be imported with numpy {np.__version__} ({error}): set numpy.sctypes to its old"
        " value before, or use a numpy older than 2"
    )
    raise ImportError(message, name="chainer") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["adapt", "capture", "capture_random", "restore", "restore_random"]

Foreign: TypeAlias = Any  # Chainer has no types
_Names: TypeAlias = "dict[str, Any]"

_SHOWN = 200
chainer: Foreign = library
_to_cpu: Foreign = _cpu._to_cpu  # noqa: SLF001 - what Chainer's own serializers call
_Serializer: Foreign = protocol.Serializer
_Deserializer: Foreign = protocol.Deserializer


# --- to a tree -------------------------------------------------------------------------------------------


def capture(obj: object) -> Tree:
    """Return the tree of a link, optimizer, iterator, updater, trainer, variable, or containers of such.

    A link, iterator or extension stands for what it serialises. An optimizer and an updater are a mapping of
    ``serialized`` and what snapshots lack; a trainer has ``random`` too, the state of the global generators
    of numpy and Python. The hidden state of stateful recurrent links is in none of them: Chainer does not
    serialise it.

    Parameters
    ----------
    obj : object

    Raises
    ------
    TreeError
        A value cannot be kept; the message names its path.
    ConversionError
        An object serialises what no array holds.
    """
    return as_tree(obj, adapt=adapt)[0]


def adapt(value: object) -> object:
    """Return what stands for one of Chainer's objects in a tree, or NotImplemented for any other object."""
    value = _actual(value)
    if isinstance(value, chainer.Variable):
        return _to_cpu(value.array)
    if isinstance(value, chainer.Optimizer):
        return {"serialized": _serialized(value), **settings_of(value)}
    if isinstance(value, chainer.training.Updater):
        return {"serialized": _serialized(value), "optimizers": _settings(value)}
    if isinstance(value, chainer.training.Trainer):
        made = {"serialized": _serialized(value), "optimizers": _settings(value.updater)}
        return {**made, "starts": starts_of(value), "random": capture_random()}
    if hasattr(value, "serialize") and not isinstance(value, type):
        return _serialized(value)
    return NotImplemented


def _actual(value: Foreign) -> Foreign:
    """Return an optimizer itself in place of what ChainerMN wraps around it."""
    wrapped = type(value).__module__.partition(".")[0] == "chainermn" and hasattr(value, "actual_optimizer")
    return value.actual_optimizer if wrapped else value


def _settings(updater: Foreign) -> dict[str, object]:
    return {name: settings_of(optimizer) for name, optimizer in _optimizers(updater).items()}


def _optimizers(updater: Foreign) -> dict[str, Foreign]:
    return {name: _actual(optimizer) for name, optimizer in updater.get_all_optimizers().items()}


class _Capture(_Serializer):  # type: ignore[misc] # of a library without types
    """Collects what an object serialises, nested by names; arrays are shared."""

    def __init__(self, made: _Names) -> None:
        self._made = made

    def __getitem__(self, key: str) -> _Capture:
        made = self._made
        for part in key.strip("/").split("/"):
            made = made.setdefault(part, {})
        return _Capture(made)

    def __call__(self, key: str, value: Foreign) -> Foreign:
        *above, last = key.lstrip("/").split("/")
        made = self._made
        for part in above:
            made = made.setdefault(part, {})
        made[last] = None if value is None else _array(key, value)
        return value


def _array(key: str, value: Foreign) -> object:
    array = np.asanyarray(_to_cpu(value))
    if array.dtype == object:
        raise ConversionError(f"{key!r} is a {type(value).__name__}: no array holds that")
    return array


def _serialized(obj: Foreign) -> _Names:
    made: _Names = {}
    if isinstance(obj, chainer.training.Trainer) and obj._start_at is None and not obj._done:  # noqa: SLF001
        obj = _Unstarted(obj)
    _Capture(made).save(obj)
    return cast("_Names", _without_empty(made))


class _Unstarted:
    """A trainer that was not started: the time it took so far is what it was told at most."""

    def __init__(self, trainer: Foreign) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Foreign:
        return getattr(self._trainer, name)

    @property
    def elapsed_time(self) -> float:
        return float(self._trainer._snapshot_elapsed_time)  # noqa: SLF001

    def serialize(self, serializer: Foreign) -> None:
        chainer.training.Trainer.serialize(self, serializer)


def _without_empty(made: object) -> object:
    """Return nested mappings without those that hold nothing: no file shows them."""
    if not isinstance(made, dict):
        return made
    kept = {name: _without_empty(child) for name, child in made.items()}
    return {name: child for name, child in kept.items() if not isinstance(child, dict) or child}


# --- back into objects -----------------------------------------------------------------------------------


def restore(tree: Tree, target: object) -> None:
    """Put a tree into an object, or into a dict or list of such, in place.

    Everything is checked before anything is changed: all names, shapes and types must be the same. Parameters
    and rules that were never used are initialised. Random generators come last.

    Parameters
    ----------
    tree : Tree
        What `capture` of an equal object, or for links, iterators and extensions a reader of its file, gave.
        An optimizer, updater or trainer also takes what a file has of it; its settings stay then.
    target : object
        A link, optimizer, iterator, updater, trainer, variable, numpy array, or a dict or list of such. Other
        values in a dict or list are replaced.

    Raises
    ------
    ConversionError
        Something is missing, unexpected, or of another shape or type; the message lists all of it.
    """
    plan = _Plan()
    if not plan.add(tree, target, ()):
        raise ConversionError(f"a {type(target).__name__} cannot be restored in place")
    plan.run()


class _Plan:
    """Collects what is wrong and what is to be done."""

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._jobs: list[Callable[[], object]] = []
        self._last: list[Callable[[], object]] = []

    def run(self) -> None:
        if self._problems:
            shown = self._problems[:_SHOWN]
            more = len(self._problems) - len(shown)
            lines = "\n  ".join([*shown, *([f"and {more} more"] if more else [])])
            raise ConversionError(f"cannot be restored, and nothing was changed:\n  {lines}")
        for job in (*self._jobs, *self._last):
            job()

    def add(self, node: Tree, target: object, path: Path) -> bool:
        """Plan to put a node into a target; return whether the target is of a kind that takes it in place."""
        target = _actual(target)
        if isinstance(target, chainer.Variable):
            self._problems += mismatches(node, as_tree(adapt(target))[0], path)
            self._jobs.append(lambda: _fill_variable(cast("Foreign", target), node))
        elif isinstance(target, np.ndarray):
            self._problems += mismatches(node, Tensor.of(target), path)
            self._jobs.append(lambda: cast("Tensor", node).into(target))
        elif isinstance(target, chainer.Optimizer | chainer.training.Updater | chainer.training.Trainer):
            self._trained(node, target, path)
        elif hasattr(target, "serialize") and not isinstance(target, type):
            self._serialized(node, target, path)
        elif isinstance(target, dict):
            self._mapping(node, target, path)
        elif isinstance(target, list):
            self._list(node, target, path)
        else:
            return False
        return True

    def _serialized(self, node: Tree, target: Foreign, path: Path) -> None:
        self._problems += mismatches(node, _wanted(target), path)
        self._jobs.append(lambda: _Restore(cast("dict[Key, Tree]", node)).load(target))

    def _trained(self, node: Tree, target: Foreign, path: Path) -> None:
        """Plan for what has optimizers: with its settings, or as a file of Chainer has it, without."""
        if not isinstance(node, dict) or "serialized" not in node:
            self._serialized(node, target, path)
            return
        self._serialized(node["serialized"], target, (*path, "serialized"))
        if isinstance(target, chainer.Optimizer):
            settings = {name: child for name, child in node.items() if name != "serialized"}
            self._settings(settings, target, path)
            return
        updater = target.updater if isinstance(target, chainer.training.Trainer) else target
        found, wanted = node.get("optimizers"), _optimizers(updater)
        found = found if isinstance(found, dict) else {}
        self._names(found, wanted, (*path, "optimizers"))
        for name, optimizer in wanted.items():
            if name in found:
                self._settings(found[name], optimizer, (*path, "optimizers", name))
        if isinstance(target, chainer.training.Trainer):
            self._starts(node.get("starts", {}), target, (*path, "starts"))
            if "random" in node:
                self._last.append(partial(restore_random, node["random"]))

    def _starts(self, node: Tree, trainer: Foreign, path: Path) -> None:
        extensions = trainer._extensions  # noqa: SLF001 - there is no other way to all of them
        found = node if isinstance(node, dict) else {}
        self._problems += [
            f"{display((*path, name))}: unexpected" for name in found if name not in extensions
        ]
        self._jobs.append(partial(restore_starts, found, trainer))

    def _settings(self, node: Tree, optimizer: Foreign, path: Path) -> None:
        self._problems += settings_problems(node, optimizer, path)
        self._jobs.append(lambda: restore_settings(node, optimizer, chainer.Variable))

    def _names(self, node: Mapping[Key, Tree], wanted: Mapping[Foreign, object], path: Path) -> None:
        for name in wanted:
            if name not in node:
                self._problems.append(f"{display((*path, name))}: missing")
        for name in node:
            if name not in wanted:
                self._problems.append(f"{display((*path, name))}: unexpected")

    def _mapping(self, node: Tree, target: dict[Key, object], path: Path) -> None:
        if not isinstance(node, dict):
            self._problems.append(f"{display(path) or 'the root'}: a {type(node).__name__}, no mapping")
            return
        self._names(node, target, path)
        for key, item in target.items():
            if key in node and not self.add(node[key], item, (*path, key)):
                self._jobs.append(partial(target.__setitem__, key, _plain(node[key])))

    def _list(self, node: Tree, target: list[object], path: Path) -> None:
        if not isinstance(node, list | tuple) or len(node) != len(target):
            self._problems.append(
                f"{display(path) or 'the root'}: a list of {len(target)} items must be here"
            )
            return
        for index, item in enumerate(target):
            if not self.add(node[index], item, (*path, index)):
                self._jobs.append(partial(target.__setitem__, index, _plain(node[index])))


def _wanted(target: Foreign) -> Tree:
    """Return what an object serialises, with the states that its rules would make."""
    made = _serialized(target)
    for place, optimizer in _placed(target):
        held = made
        for part in place:
            held = held.get(part, {})
        for name, parameter in optimizer.target.namedparams():
            rule = parameter.update_rule
            if rule is not None and rule.state is None:
                _make_lazy(held, name.strip("/").split("/"), _state_names(rule))
    wanted = _wanted_tree(made)
    if isinstance(target, chainer.training.Trainer) and isinstance(wanted, dict):
        own = wanted.get("extensions")
        if isinstance(own, dict):
            wanted["extensions"] = {
                name: OpenState(child) if isinstance(child, dict) else child for name, child in own.items()
            }
    return wanted


def _wanted_tree(made: _Names) -> Tree:
    """Return nested arrays as a tree; what is lazy stays so."""
    kept: dict[Key, Tree] = {}
    for name, child in made.items():
        if isinstance(child, LazyState):
            kept[name] = LazyState(cast("dict[Key, Tree]", as_tree(dict(child))[0]), child.names)
        else:
            kept[name] = _wanted_tree(child) if isinstance(child, dict) else as_tree(child)[0]
    return kept


def _make_lazy(held: _Names, parts: list[str], names: frozenset[str]) -> None:
    for part in parts[:-1]:
        held = held.get(part, {})
    if isinstance(held.get(parts[-1]), dict):
        held[parts[-1]] = LazyState(held[parts[-1]], names)


def _placed(target: Foreign) -> Iterator[tuple[tuple[str, ...], Foreign]]:
    """Yield where in its serialised form an object has optimizers, and these."""
    if isinstance(target, chainer.Optimizer):
        yield (), target
    if isinstance(target, chainer.training.Updater):
        for name, optimizer in _optimizers(target).items():
            yield (f"optimizer:{name}",), optimizer
    if isinstance(target, chainer.training.Trainer):
        for place, optimizer in _placed(target.updater):
            yield ("updater", *place), optimizer


def _state_names(rule: Foreign) -> frozenset[str]:
    """Return the names of the state that a rule would make, as ``UpdateRule.serialize`` finds them."""
    probe = copy.copy(rule)
    probe._state = {}  # noqa: SLF001 - as Chainer does itself
    array = np.empty(1, np.float32)
    probe.init_state(chainer.Variable(array, grad=array))
    return frozenset(probe._state)  # noqa: SLF001


def _fill_variable(variable: Foreign, node: Tree) -> None:
    if not isinstance(node, Tensor):
        return
    if variable.array is None:
        variable.initialize(node.shape)
    _fill(variable.array, node)


def _fill(array: Foreign, node: Tensor) -> None:
    """Fill an array on whatever device it lies."""
    if isinstance(array, np.ndarray):
        node.into(array)
    else:
        array[...] = chainer.backend.get_device_from_array(array).send(node.numpy())


def _plain(node: Tree) -> object:
    """Return a node as a value with memory of its own."""
    if isinstance(node, Tensor):
        return np.array(node.numpy())
    if isinstance(node, dict):
        return {key: _plain(child) for key, child in node.items()}
    return [_plain(child) for child in node] if type(node) is list else node


class _Restore(_Deserializer):  # type: ignore[misc] # of a library without types
    """Gives an object what a tree holds that was checked against it."""

    def __init__(self, node: dict[Key, Tree]) -> None:
        self._node = node

    def __getitem__(self, key: str) -> _Restore:
        found: Tree = self._node
        for part in key.strip("/").split("/"):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        return _Restore(found if isinstance(found, dict) else {})

    def __call__(self, key: str, value: Foreign) -> Foreign:
        *above, last = key.lstrip("/").split("/")
        held = self["/".join(above)]._node if above else self._node  # noqa: SLF001 - one of its own kind
        name = last if last in held else RENAMED.get(last, last)
        if value is None and name not in held:  # the state of a rule that was never used
            return None
        node = array_of(held[name])
        if node is None:
            return None
        if isinstance(node, Strings):
            return node.values[0]
        if value is None:
            return np.array(node.numpy())
        if isinstance(value, chainer.get_array_types()):
            _fill(value, node)
            return value
        return type(value)(node.numpy()[()])
