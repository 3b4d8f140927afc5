"""What a tree becomes in a DCP directory: items, and whether they need a structure note.

Types that PyTorch lacks are stored as bytes with all their bits, which only the note names. Tensors are items
of their own, but for those inside of tuples and the like, which PyTorch pickles whole. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptfmt.containers.noted.note import NOTE, encode_note
from ckptfmt.containers.noted.planning import Row
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.carried import carry
from ckptfmt.frameworks.pytorch.dcp.flattening import Item, flatten
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Tag, tag_of, tagged
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import replaced, tensors

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["ROOT", "Planned", "plan"]

ROOT = "root"
"""The key under which a tree lies that is no mapping itself."""

_REQUIRES_GRAD = {"requires_grad": True}


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be written.

    Attributes
    ----------
    tree : Tree
        The tree that a note describes.
    items : tuple of Item
        What is stored, in the tree's order.
    plain : bool
        Whether the items alone give the tree back, as far as can be told before they are written.
    findings : tuple of Finding
        What the note does not make good.
    stored_raw : tuple of Finding
        What it does.
    """

    tree: Tree
    items: tuple[Item, ...]
    plain: bool
    findings: tuple[Finding, ...] = ()
    stored_raw: tuple[Finding, ...] = ()
    _originals: dict[int, Tensor] = field(default_factory=dict)

    def note(self) -> str:
        """Return the structure note."""
        firsts = self._firsts()
        ordered = sorted(firsts.values(), key=lambda first: encode_path(first[0]))
        rows = [
            Row(display(path), self._originals[id(held)], held.dtype.name, held.shape)
            for path, held in ordered
        ]
        index = {_identity(row.tensor): at for at, row in enumerate(rows)}
        return encode_note(self.tree, rows, lambda tensor: index[_identity(tensor)]).decode()

    def _firsts(self) -> dict[Hashable, tuple[Path, Tensor]]:
        """Return each tensor with the first of its paths as they are read without the note."""
        firsts: dict[Hashable, tuple[Path, Tensor]] = {}
        for item in self.items:
            for below, held in tensors(item.node):
                path = (*item.path, *below)
                earlier = firsts.get(_identity(held))
                if earlier is None or encode_path(path) < encode_path(earlier[0]):
                    firsts[_identity(held)] = path, held
        return firsts


def plan(tree: Tree) -> Planned:
    """Plan the writing of a tree.

    Raises
    ------
    ConversionError
        Two paths would have one name.
    LimitError
        The tree is too deep.
    """
    root: dict[Key, Tree] = tree if isinstance(tree, dict) else {ROOT: tree}
    scoped, broken = _scoped(root)
    originals: dict[int, Tensor] = {}
    stored = replaced(scoped, lambda tensor: _held(tensor, originals))
    assert isinstance(stored, dict)  # noqa: S101 - as the root is
    items = tuple(flatten(stored, taken=frozenset({NOTE})))
    raw = tuple(_told_types(items, originals))
    plain = root is tree and not raw and not _has_more_to_it(root)
    described = scoped if root is tree else scoped[ROOT]
    return Planned(described, items, plain, broken, raw, originals)


def _identity(tensor: Tensor) -> Hashable:
    return id(tensor) if tensor.identity is None else tensor.identity


def _held(tensor: Tensor, originals: dict[int, Tensor]) -> Tensor:
    """Return a tensor as PyTorch can hold it: itself, or its bytes."""
    if carry(tensor).change is None:
        held = Tensor(tensor.dtype, tensor.shape, tensor.source, tag=tensor.tag, identity=_identity(tensor))
    else:
        raw = ("raw", _identity(tensor))
        held = Tensor(dtype("u8"), (tensor.nbytes,), tensor.source, tag=tensor.tag, identity=raw)
    originals[id(held)] = tensor
    return held


def _told_types(items: tuple[Item, ...], originals: dict[int, Tensor]) -> list[Finding]:
    """Return one finding for each type that PyTorch has not."""
    found: dict[str, list[Path]] = {}
    for item in items:
        for below, held in tensors(item.node):
            original = originals[id(held)]
            if original.dtype != held.dtype or original.shape != held.shape:
                found.setdefault(original.dtype.name, []).append((*item.origin, *below))
    return [
        Finding(
            "stored-raw",
            display(paths[0]),
            Severity.INFO,
            f"type {name}: {len(paths)} stored as uint8, all bits kept; the structure note names the type",
        )
        for name, paths in sorted(found.items())
    ]


def _has_more_to_it(node: Tree, *, root: bool = True) -> bool:
    """Whether a tree has keys, tags or empty mappings that items do not tell."""
    if isinstance(node, dict):
        odd = tag_of(node) is not None or not (node or root) or not all(type(key) is str for key in node)
        return odd or any(_has_more_to_it(child, root=False) for child in node.values())
    if isinstance(node, list):
        return tag_of(node) is not None or any(_has_more_to_it(child, root=False) for child in node)
    if isinstance(node, Tensor):
        return node.tag is not None and not only_requires_grad(node.tag)
    return False


def only_requires_grad(tag: Tag | None) -> bool:
    """Whether a tensor's tag says that it requires a gradient and nothing else."""
    return tag is not None and tag.name == keys.TENSOR and tag.attributes == _REQUIRES_GRAD


# --- tensors inside of items that are no tensors -----------------------------------------------------


def _scoped(root: dict[Key, Tree]) -> tuple[dict[Key, Tree], tuple[Finding, ...]]:
    """Return a tree in which no tensor is tied to one inside of an item that is pickled whole."""
    scopes: dict[Hashable, set[int | None]] = {}
    where: dict[Hashable, Path] = {}
    for item in flatten(root):
        inside = not isinstance(item.node, Tensor)
        for below, tensor in tensors(item.node):
            key = _identity(tensor)
            scopes.setdefault(key, set()).add(id(item.node) if inside else None)
            if inside:
                where.setdefault(key, (*item.origin, *below))
    broken = [key for key, found in scopes.items() if len(found) > 1]
    if not broken:
        return root, ()
    message = "a tensor that is tied to others is pickled within a larger value, and stored there once more"
    findings = tuple(Finding("tie-broken", display(where[key]), Severity.LOSS, message) for key in broken)
    made = _rescoped(root, {})
    assert isinstance(made, dict)  # noqa: S101 - as the root is
    return made, findings


def _rescoped(node: Tree, done: dict[int, Tree]) -> Tree:
    made: Tree
    if isinstance(node, Tensor):
        return node
    if isinstance(node, dict):
        made = {key: _rescoped(child, done) for key, child in node.items()}
    elif isinstance(node, list):
        made = [_rescoped(child, done) for child in node]
    else:
        if id(node) not in done:
            scope = len(done)
            done[id(node)] = replaced(node, lambda tensor: _in_scope(tensor, scope))
        return done[id(node)]
    tag = tag_of(node)
    return made if tag is None else tagged(made, tag)


def _in_scope(tensor: Tensor, scope: int) -> Tensor:
    identity = ("within", scope, _identity(tensor))
    return Tensor(tensor.dtype, tensor.shape, tensor.source, tag=tensor.tag, identity=identity)
