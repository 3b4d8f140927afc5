"""What a container of named arrays holds, in one form for all containers.

An entry knows how the container calls its type and shape, and the node that this is without a note. A note
may say that its bytes are something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.tree.nodes import Composite
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree

__all__ = ["Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One named array of a container.

    Attributes
    ----------
    name : str
    kind : str
        Its type in the container's own words.
    shape : tuple of int
        Its shape in the container's own words.
    node : Tree
        What it is without a note.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    node: Tree

    def raw(self) -> Tensor | None:
        """Return its bytes if they may stand for another type: a u8 tensor, or raw elements; else None."""
        if isinstance(self.node, Tensor) and self.node.dtype.name == "u8":
            return self.node
        if isinstance(self.node, Composite) and self.node.name == "numpy.void":
            part = self.node.parts["bytes"]
            return part if isinstance(part, Tensor) else None
        return None
