"""Tensors by the names that a user types: a path, a path with a box, or a glob.

A name is looked up as it stands first, so that no tensor is out of reach because of its name.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.noted.planning import pieces
from ckptfmt.containers.npy.header import encode_header
from ckptfmt.errors import ConversionError
from ckptfmt.tree.paths import display, glob_matcher
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptfmt.tree.nodes import Tree

__all__ = ["Picked", "npy_pieces", "pick"]

_BOX = re.compile(r"(?P<name>.*)\[(?P<index>[^\[\]]*)\]", re.DOTALL)
_PART = re.compile(r"\s*(?:(?P<at>-?\d+)|(?P<start>-?\d+)?\s*:\s*(?P<stop>-?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Picked:
    """One thing to extract.

    Attributes
    ----------
    path : str
        The displayed path of the tensor.
    tensor : Tensor
        All of it, or the box that was asked for.
    box : str
        The box as it was typed; empty for all of it.
    """

    path: str
    tensor: Tensor
    box: str = ""


def pick(tree: Tree, names: Sequence[str]) -> list[Picked]:
    """Return what names stand for, in the order of the names; each tensor once.

    Raises
    ------
    ConversionError
        A name stands for nothing, or for no tensor; a box does not fit; a tensor is asked for in two ways.
    """
    shown = {display(path): leaf for path, leaf in leaves(tree)}
    tensors = {path: leaf for path, leaf in shown.items() if isinstance(leaf, Tensor)}
    found: dict[str, Picked] = {}
    for name in names:
        if name in shown and name not in tensors:
            raise ConversionError(f"{name} is no tensor; info shows its value")
        for one in _picked(name, tensors):
            earlier = found.setdefault(one.path, one)
            if earlier.box != one.box:
                raise ConversionError(f"{one.path} is asked for twice, in two ways: extract them one by one")
    return list(found.values())


def _picked(name: str, tensors: dict[str, Tensor]) -> list[Picked]:
    if name in tensors:
        return [Picked(name, tensors[name])]
    match = _BOX.fullmatch(name)
    if match is not None and match["name"] in tensors:
        return [Picked(match["name"], _boxed(tensors[match["name"]], match["index"], name), match["index"])]
    matches = glob_matcher([name])
    found = [Picked(path, tensor) for path, tensor in tensors.items() if matches(path)]
    if not found:
        close = difflib.get_close_matches(name, tensors, 3)
        hint = f"; is it {' or '.join(close)}?" if close else "; info shows what there is"
        raise ConversionError(f"there is no tensor {name!r}{hint}")
    return found


def _boxed(tensor: Tensor, text: str, name: str) -> Tensor:
    try:
        return _of_array(tensor, tensor[_index(text)])
    except (IndexError, ValueError) as error:
        raise ConversionError(f"{name}: {error}; the shape is {list(tensor.shape)}") from None


def _index(text: str) -> tuple[int | slice, ...]:
    return tuple(_part(part) for part in text.split(",")) if text.strip() else ()


def _part(text: str) -> int | slice:
    match = _PART.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no index; write 3 or 0:10 or : for each dimension")
    if match["at"] is not None:
        return int(match["at"])
    return slice(*(None if bound is None else int(bound) for bound in (match["start"], match["stop"])))


def _of_array(tensor: Tensor, array: np.ndarray) -> Tensor:
    return Tensor(tensor.dtype, array.shape, Tensor.of(array).source)


def npy_pieces(picked: Picked) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a .npy file.

    Types that numpy cannot name are raw elements (``|V2`` for bf16), or one byte for each element of 4 or
    2 bits.
    """
    tensor = picked.tensor
    if tensor.dtype.packed:
        codes = np.ascontiguousarray(tensor.numpy()).view(
            np.int8 if tensor.dtype.name[0] == "i" else np.uint8
        )
        tensor = Tensor.of(codes)
    kind = tensor.dtype.numpy
    named = kind.isbuiltin == 1 or kind.kind == "S"
    yield encode_header(kind.str if named else f"|V{kind.itemsize}", tensor.shape)
    yield from pieces(tensor)
