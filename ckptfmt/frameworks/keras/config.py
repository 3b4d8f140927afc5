"""What the configuration of a Keras model says, read as data: nothing of it is ever imported or called.

A configuration names the layers of sequential and functional models, their classes, types and order. Of a
subclassed model it says nothing, and no more is made of it. A `Lambda` layer or a custom class is a name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ckptfmt.errors import FormatError, LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Config", "Layer", "Value", "layers", "optimizer_of", "parse", "snake_case", "unique_name"]

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
Config: TypeAlias = "dict[str, Value]"

_MAX_TEXT = 64 << 20
_MAX_DEPTH = 48
_NESTED = ("Sequential", "Functional", "Model")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that a configuration names.

    Attributes
    ----------
    path : tuple of str
        The group that ``.weights.h5`` files keep it in, such as ``("layers", "dense_1")``.
    name : str
        What the user calls it; empty where nothing is said.
    kind : str
        Its class, without its module.
    config : mapping
        Its own configuration.
    trainable : bool
        Whether it, and every model around it, is trainable.
    nested : bool
        Whether it is a model, whose layers follow it.
    """

    path: tuple[str, ...]
    name: str
    kind: str
    config: Mapping[str, Value]
    trainable: bool
    nested: bool

    @property
    def dtype(self) -> str | None:
        """The type of its variables by its dtype policy, such as ``"bfloat16"``; None if nothing is said.

        Of a mixed policy variables are float32 (keras/src/dtype_policies/dtype_policy.py).
        """
        policy = self.config.get("dtype")
        if isinstance(policy, dict):
            inner = policy.get("config")
            policy = inner.get("name") if isinstance(inner, dict) else None
        if not isinstance(policy, str):
            return None
        return "float32" if policy.startswith("mixed_") else policy


def parse(text: str, *, file: str) -> Config:
    """Return a configuration.

    Parameters
    ----------
    text : str
    file : str
        What to call it in errors.

    Raises
    ------
    FormatError
        It is no JSON object.
    LimitError
        It is longer than 64 MiB or nested deeper than Python's reader follows.
    """
    if len(text) > _MAX_TEXT:
        raise LimitError(f"a configuration of {len(text)} characters", file=file)
    try:
        value = json.loads(text)
    except RecursionError:
        raise LimitError("a configuration that is nested too deeply", file=file) from None
    except ValueError as error:
        raise FormatError(f"the configuration is no JSON: {str(error)[:200]}", file=file) from None
    if not isinstance(value, dict):
        raise FormatError("the configuration is no JSON object", file=file)
    return value


def layers(config: Config) -> tuple[Layer, ...]:
    """Return the layers of a sequential or functional model in its order, those of a nested one after it.

    Paths are made as ``_save_container_state`` of keras/src/saving/saving_lib.py makes them.

    Parameters
    ----------
    config : Config
        Of the whole model: ``class_name`` and ``config``.

    Returns
    -------
    tuple of Layer
        Empty for a subclassed model.

    Raises
    ------
    LimitError
        Models are nested deeper than 48.
    """
    return tuple(_walk(config, (), trainable=True))


def _walk(model: Config, path: tuple[str, ...], *, trainable: bool) -> Iterator[Layer]:
    if len(path) > 2 * _MAX_DEPTH:
        raise LimitError(f"models nested more than {_MAX_DEPTH} deep")
    used: dict[str, int] = {}
    for entry in _members(model):
        config = entry.get("config")
        own = config if isinstance(config, dict) else {}
        kind = _text(entry.get("class_name")).rpartition(">")[2]
        name = _text(own.get("name")) or _text(entry.get("name"))
        where = (*path, "layers", unique_name(snake_case(kind), used))
        learns = trainable and own.get("trainable") is not False
        nested = kind in _NESTED and bool(_members(entry))
        yield Layer(where, name, kind, own, learns, nested)
        if nested:
            yield from _walk(entry, where, trainable=learns)


def _members(model: Config) -> list[Config]:
    """Return the entries of what the model counts among its layers."""
    config = model.get("config")
    found = config.get("layers") if isinstance(config, dict) else config  # a bare list before Keras 2.2
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    if model.get("class_name") == "Sequential" and entries[:1]:
        entries = entries[1:] if entries[0].get("class_name") == "InputLayer" else entries
    return [entry for entry in entries if not _is_operation(entry)]


def _is_operation(entry: Config) -> bool:
    """Whether an entry is a bare operation: a functional model of Keras 3 does not count it a layer."""
    return _text(entry.get("module")).startswith(("keras.src.ops.", "keras.ops"))


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""


def snake_case(name: str) -> str:
    """Return a class name as Keras makes a group's name of it (keras/src/utils/naming.py)."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def unique_name(name: str, used: dict[str, int]) -> str:
    """Return `name`, or it with ``_1``, ``_2``, ... where it was used before; `used` counts."""
    used[name] = used.get(name, -1) + 1
    return f"{name}_{used[name]}" if used[name] else name


def optimizer_of(config: Config) -> tuple[str, Config] | None:
    """Return class and configuration of the optimizer; None where a model was not compiled.

    Parameters
    ----------
    config : Config
        That of a model in a ``.keras`` file, or the training configuration of an ``.h5`` file.
    """
    compiled = config.get("compile_config")
    found = compiled.get("optimizer") if isinstance(compiled, dict) else config.get("optimizer_config")
    if isinstance(found, str):
        return found, {}
    if not isinstance(found, dict):
        return None
    own = found.get("config")
    return _text(found.get("class_name")).rpartition(">")[2], own if isinstance(own, dict) else {}
