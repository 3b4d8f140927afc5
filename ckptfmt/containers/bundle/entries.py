"""One tensor of an open bundle or checkpoint, as callers see it: what it is, and its node when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.bundle.kinds import NAMES, base_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.tree.nodes import Tree

__all__ = ["BundleEntry"]


class BundleEntry:
    """One tensor of a bundle.

    Attributes
    ----------
    name : str
        As it stands in the table.
    dtype_number : int
        The number of its type, as it stands in the table: see `kinds.NAMES`; above 100 a reference.
    shape : tuple of int
    """

    __slots__ = ("_made", "_make", "dtype_number", "name", "shape")

    def __init__(
        self, name: str, dtype_number: int, shape: tuple[int, ...], make: Callable[[], Tree]
    ) -> None:
        self.name = name
        self.dtype_number = dtype_number
        self.shape = shape
        self._make = make
        self._made: tuple[Tree] | None = None

    @property
    def kind(self) -> str:
        """What TensorFlow calls its type, such as ``"float32"``."""
        return NAMES[base_number(self.dtype_number)]

    @property
    def node(self) -> Tree:
        """The tensor: a `Tensor` that is read when asked, `Strings` of bytes, or `Opaque` for variants.

        Raises
        ------
        ChecksumError, FormatError
            Strings and variants, which are read here, are not what was written. A `Tensor` says so when its
            bytes are asked for.
        """
        if self._made is None:
            self._made = (self._make(),)
        return self._made[0]

    def __repr__(self) -> str:
        return f"BundleEntry({self.name!r}, {self.kind}, {self.shape})"
