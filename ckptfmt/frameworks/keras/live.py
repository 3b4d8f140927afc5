"""A live model of Keras 3: where the variables of a model lie in its weights file.

Keras itself walks the model, as it does when it saves one, into a store that keeps nothing but the places. No
value is read or changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keras.src.saving import saving_lib

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.keras.groups import NUMBER, VARS
from ckptfmt.tree.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.tree.paths import Key, Path

__all__ = ["variable_paths"]


class Model(Protocol):
    """What is asked of a model."""

    @property
    def trainable_variables(self) -> Sequence[object]:
        """Its trainable variables, in the order in which its optimizer counts them."""


class _Places(saving_lib.H5IOStore):  # type: ignore[misc] # of a library without types
    """A store that notes where each variable would be written (``_save_state`` accepts no other class)."""

    def __init__(self) -> None:
        self.found: dict[int, Path] = {}
        self._group: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: object = None) -> _Places:  # noqa: ARG002 - as Keras calls it
        self._group = tuple(part for part in path.split("/") if part)
        return self

    def __setitem__(self, name: str, value: object) -> None:
        key: Key = int(name) if NUMBER.fullmatch(name) else name
        self.found.setdefault(id(value), (*self._group, VARS, key))


def variable_paths(model: Model) -> list[str]:
    """Return where the trainable variables of a built model lie in its ``.weights.h5``, in the model's order.

    This is what `optimizer_state` takes as `variables`.

    Parameters
    ----------
    model : keras.Model

    Raises
    ------
    ConversionError
        A layer writes something else than its variables themselves; names the variable.
    """
    places = _Places()
    saving_lib._save_state(  # noqa: SLF001 - the walk itself has no public name
        model, weights_store=places, assets_store=None, inner_path="", visited_saveables=set()
    )
    made = []
    for variable in model.trainable_variables:
        path = places.found.get(id(variable))
        if path is None:
            name = getattr(variable, "path", "a variable")
            raise ConversionError(f"{name} is not among what its layer writes to a weights file")
        made.append(display(path))
    return made
