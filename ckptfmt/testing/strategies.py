"""Hypothesis strategies for trees and their parts, for the tests of anyone who reads or writes them.

Needs hypothesis, which the package itself does not. Trees are small and of every kind; arrays hold any
bits, NaN payloads included.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from ckptfmt.tree.box import Box
from ckptfmt.tree.dtypes import DTYPE_NAMES, DType, dtype
from ckptfmt.tree.nodes import Composite, Opaque, Strings, Tag, tagged
from ckptfmt.tree.source import unpack
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["arrays", "boxes", "dtypes", "keys", "shapes", "tensors", "trees"]

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def dtypes() -> st.SearchStrategy[DType]:
    """Return a strategy of element types, byte strings included."""
    return st.sampled_from([*DTYPE_NAMES, "s1", "s5"]).map(dtype)


def shapes(*, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Return a strategy of shapes of up to four dimensions, zeros among them."""
    return st.lists(st.integers(0, most), max_size=4).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, kind: DType | None = None, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return a strategy of arrays of any bits, C-contiguous, of a type of `DType.numpy`."""
    kind = draw(dtypes()) if kind is None else kind
    shape = draw(shapes()) if shape is None else shape
    count = math.prod(shape)
    nbytes = kind.nbytes(shape)
    data = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8).copy()
    if kind.name == "bool":
        data &= 1
    flat = unpack(data, count, kind) if kind.packed else data.view(kind.numpy)
    return flat.reshape(shape)


def tensors() -> st.SearchStrategy[Tensor]:
    """Return a strategy of tensors in memory."""
    return arrays().map(Tensor.of)


def keys() -> st.SearchStrategy[Key]:
    """Return a strategy of keys of every kind but NaN."""
    plain = st.one_of(
        _text,
        st.integers(-(2**70), 2**70),
        st.booleans(),
        st.none(),
        st.binary(max_size=4),
        st.floats(allow_nan=False),
    )
    return st.one_of(_text, plain, st.lists(plain, max_size=2).map(tuple))


def _scalars() -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.complex_numbers(),
        _text,
        st.binary(max_size=6),
    )


def _strings() -> st.SearchStrategy[Strings]:
    texts = st.lists(_text, max_size=4).map(lambda values: Strings((len(values),), tuple(values)))
    raw = st.lists(st.binary(max_size=3), min_size=1, max_size=3)
    return texts | raw.map(lambda values: Strings((len(values),), tuple(values)))


def _mappings(children: st.SearchStrategy[Tree], names: st.SearchStrategy[Key]) -> st.SearchStrategy[dict]:
    return st.dictionaries(names, children, max_size=4)


def _containers(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    parts = _mappings(children, _text)
    elements = st.one_of(st.integers(), _text, st.binary(max_size=3), st.none())
    return st.one_of(
        _mappings(children, keys()),
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.sets(elements, max_size=3),
        st.frozensets(elements, max_size=3),
        st.builds(Composite, _text, _mappings(_scalars(), _text), _mappings(tensors(), _text)),
        st.builds(Opaque, _text.filter(lambda name: name != "cycle"), parts),
        parts.map(lambda value: tagged(value, Tag("collections.OrderedDict", {"k": [1]}))),
        children.map(lambda child: [child, child]),
    )


def trees() -> st.SearchStrategy[Tree]:
    """Return a strategy of trees of every kind of node, shared containers and ties among them."""
    return st.recursive(_scalars() | _strings() | tensors(), _containers, max_leaves=12)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """Return a strategy of boxes inside a tensor of `shape`, empty ones included."""
    starts = [draw(st.integers(0, extent)) for extent in shape]
    lengths = [draw(st.integers(0, extent - start)) for start, extent in zip(starts, shape, strict=True)]
    return Box(tuple(starts), tuple(lengths))
