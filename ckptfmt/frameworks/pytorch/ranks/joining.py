"""The trees of all ranks to one: shards to global tensors, what is alike once, what differs by rank.

Global tensors stay in the files of the ranks. A plain tensor that several ranks have must be the same in all;
small ones are compared now and kept for each rank where they differ (states of random numbers, running
means), larger ones are compared where they are read. Nothing of any rank is dropped without a word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.errors import CkptError, FormatError, MissingFileError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.ranks.shards import local_of
from ckptfmt.tree.canonical import dumps
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Opaque, Tag, Tree, tag_of, tagged
from ckptfmt.tree.paths import display
from ckptfmt.tree.pieces import AgreeingSource, JoinedSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptfmt.frameworks.pytorch.ranks.shards import Local
    from ckptfmt.tree.box import Box
    from ckptfmt.tree.paths import Key, Path

__all__ = ["PER_RANK", "SMALL", "RankTree", "join_ranks"]

PER_RANK = "torch.per_rank"
"""Name of the composite of what differs: attribute ``ranks``, a part for each, keyed by its number."""
SMALL = 64 << 10
"""Bytes up to which plain tensors of several ranks are compared when they are joined."""
_SHOWN = 8
_EXACT = frozenset({type(None), bool, int, str, bytes})


@dataclass(frozen=True, slots=True)
class RankTree:
    """What one rank wrote.

    Attributes
    ----------
    rank : int
    name : str
        Of its file, for messages.
    tree : Tree
    """

    rank: int
    name: str
    tree: Tree


def join_ranks(files: Sequence[RankTree], *, world: int | None = None) -> tuple[Tree, tuple[Finding, ...]]:
    """Return one tree of global tensors, and what was found.

    Parameters
    ----------
    files : sequence of RankTree
        One or more, of different ranks, sorted by rank.
    world : int, optional
        How many ranks there were, where that is known from elsewhere.

    Raises
    ------
    MissingFileError
        A tensor is not complete and there are ranks of which no file is here; both are named.
    FormatError
        Pieces overlap or contradict each other.
    UnsupportedVersionError
        A tensor is kept as partial sums.
    """
    joining = _Joining(files, world)
    tree = joining.node({file.rank: file.tree for file in files}, ())
    return tree, joining.findings()


class _Joining:
    """One set of trees on its way to one."""

    def __init__(self, files: Sequence[RankTree], world: int | None) -> None:
        self._names = {file.rank: file.name for file in files}
        self._expected = set(range(world or 0)) | set(self._names)
        self._done: dict[tuple[int, ...], tuple[Tree, Mapping[int, Tree]]] = {}
        self._partial: list[str] = []
        self._apart: list[str] = []
        self._incomplete: list[tuple[str, FormatError]] = []

    # --- what was found -------------------------------------------------------------------------

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings, or raise what makes the set useless."""
        missing = sorted(self._expected - set(self._names))
        if self._incomplete:
            self._raise_incomplete(missing)
        made = []
        if missing:
            message = (
                f"there is no file of rank {_listed(missing)}; every tensor whose place is told is complete"
            )
            made.append(Finding("missing-ranks", "", Severity.LOSS, message))
        for kind, paths, words in (
            ("some-ranks", self._partial, "are in the files of some ranks only"),
            ("per-rank", self._apart, "differ between ranks and are kept of each"),
        ):
            if paths:
                message = f"{len(paths)} values {words}"
                made.append(Finding(kind, paths[0], Severity.INFO, message))
        return tuple(made)

    def _raise_incomplete(self, missing: list[int]) -> None:
        path, error = self._incomplete[0]
        more = f"; {len(self._incomplete)} tensors are not complete" if len(self._incomplete) > 1 else ""
        if missing:
            message = f"there is no file of rank {_listed(missing)}: {error.message}{more}"
            raise MissingFileError(message, tensor=path)
        raise FormatError(f"{error.message}{more}", tensor=path)

    # --- nodes ----------------------------------------------------------------------------------

    def node(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        """Return what the nodes of some ranks are together."""
        if not any(_is_shared(node) for node in nodes.values()):
            return self._value(nodes, path)
        key = tuple(part for rank, node in nodes.items() for part in (rank, id(node)))
        known = self._done.get(key)
        if known is None:
            known = self._done[key] = (self._made(nodes, path), nodes)  # kept, so that ids stay theirs
        return known[0]

    def _made(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        locals_ = {rank: self._local(node, rank, path) for rank, node in nodes.items()}
        shards = {rank: local for rank, local in locals_.items() if local is not None}
        if shards:
            if len(shards) < len(nodes):
                raise FormatError(
                    "a shard in the files of some ranks, something else in others", tensor=display(path)
                )
            return self._global(shards, path)
        values = list(nodes.values())
        if len({_kind(value) for value in values}) > 1:
            return self._each(nodes, path)
        if isinstance(values[0], Tensor):
            return self._tensor(nodes, path)
        if isinstance(values[0], dict):
            return self._mapping(nodes, path)
        if isinstance(values[0], Opaque | Composite):
            return self._object(nodes, path)
        return self._sequence(nodes, path)

    def _local(self, node: Tree, rank: int, path: Path) -> Local | None:
        try:
            local = local_of(node)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(
                error.message, file=self._names[rank], tensor=display(path)
            ) from None
        except CkptError as error:
            if isinstance(error, FormatError):
                raise error.located(file=self._names[rank], tensor=display(path)) from None
            raise
        if local is not None:
            self._expected |= set(local.ranks)
        return local

    def _global(self, shards: Mapping[int, Local], path: Path) -> Tensor | Composite:
        first = next(iter(shards.values()))
        for rank, local in shards.items():
            if local.shape != first.shape:
                message = f"rank {rank} has a shard of a tensor {local.shape}, another of {first.shape}"
                raise FormatError(message, tensor=display(path))
        pieces: dict[Box, list[tuple[int, Tensor]]] = {}
        for rank, local in shards.items():
            for box, tensor in local.pieces:
                pieces.setdefault(box, []).append((rank, tensor))
        together = [(box, self._replicas(found)) for box, found in pieces.items()]
        identity = _identity(together, first.shape)
        attributes: dict[Key, Tree] = {"requires_grad": True} if first.requires_grad else {}
        name = keys.PARAMETER if first.cls == keys.PARAMETER else keys.TENSOR
        tag = Tag(name, attributes) if attributes else None
        try:
            source = JoinedSource(first.dtype, first.shape, together)
        except FormatError as error:
            if sum(box.size for box, _ in together) >= math.prod(first.shape):
                raise error.located(tensor=display(path)) from None
            self._incomplete.append((display(path), error))
            return Composite(PER_RANK, {}, {})  # never seen: what is incomplete is raised
        return Tensor(first.dtype, first.shape, source, tag=tag, identity=identity)

    def _replicas(self, found: list[tuple[int, Tensor]]) -> Tensor:
        """Return one of several tensors that must be equal."""
        first = found[0][1]
        if len(found) == 1 or any(
            tensor.shape != first.shape or tensor.dtype != first.dtype for _, tensor in found
        ):
            return first
        names = [f"rank {rank}" for rank, _ in found]
        source = AgreeingSource([tensor.source for _, tensor in found], names)
        return Tensor(first.dtype, first.shape, source, tag=first.tag, identity=first.identity)

    def _tensor(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        found = [(rank, node) for rank, node in nodes.items() if isinstance(node, Tensor)]
        first = found[0][1]
        if len(found) == 1:
            return first
        if any(tensor.shape != first.shape or tensor.dtype != first.dtype for _, tensor in found):
            return self._each(nodes, path)
        if first.nbytes > SMALL:
            return self._replicas(found)
        data = first.bytes()
        alike = all(tensor.bytes() == data for _, tensor in found[1:])
        return first if alike else self._each(nodes, path)

    def _mapping(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        entries = {rank: node for rank, node in nodes.items() if isinstance(node, dict)}
        order = dict.fromkeys(key for node in entries.values() for key in node)
        made: dict[Key, Tree] = {}
        for key in order:
            having = {rank: node[key] for rank, node in entries.items() if key in node}
            if len(having) < len(entries):
                self._partial.append(display((*path, key)))
            made[key] = self.node(having, (*path, key))
        tag = tag_of(next(iter(entries.values())))
        return made if tag is None else tagged(made, tag)

    def _sequence(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        items = {rank: node for rank, node in nodes.items() if isinstance(node, list | tuple)}
        if len(items) < len(nodes):
            return self._value(nodes, path)
        first = next(iter(items.values()))
        if any(len(node) != len(first) for node in items.values()):
            return self._each(nodes, path)
        made = [
            self.node({rank: node[index] for rank, node in items.items()}, (*path, index))
            for index in range(len(first))
        ]
        joined: Tree = made if isinstance(first, list) else tuple(made)
        tag = tag_of(first)
        return joined if tag is None else tagged(joined, tag)

    def _object(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        """Join what has parts; an object stays whole where all ranks have an equal one."""
        first = next(iter(nodes.values()))
        parts = {rank: {**node.parts} for rank, node in nodes.items() if isinstance(node, Opaque | Composite)}
        if isinstance(first, Composite):
            same = {_encoded(node.attributes) for node in nodes.values() if isinstance(node, Composite)}
            if len(same) > 1:
                return self._each(nodes, path)
            joined = self.node({**parts}, (*path, "parts"))
            return Composite(first.name, first.attributes, joined) if isinstance(joined, dict) else first
        assert isinstance(first, Opaque)  # noqa: S101 - as all are, see _kind
        joined = self.node({**parts}, path)
        return Opaque(first.name, joined) if isinstance(joined, dict) else first

    def _value(self, nodes: Mapping[int, Tree], path: Path) -> Tree:
        values = list(nodes.values())
        first = values[0]
        if type(first) in _EXACT and all(type(value) is type(first) and value == first for value in values):
            return first
        if len({_encoded(value) for value in values}) == 1:
            return first
        return self._each(nodes, path)

    def _each(self, nodes: Mapping[int, Tree], path: Path) -> Composite:
        """Keep what each rank has."""
        self._apart.append(display(path))
        parts: dict[Key, Tree] = {str(rank): node for rank, node in nodes.items()}
        return Composite(PER_RANK, {"ranks": tuple(nodes)}, parts)


def _encoded(node: Tree) -> bytes:
    """Return bytes that are equal for equal values without tensors."""
    return dumps(encode_tree(node, lambda _: 0))


def _is_shared(node: Tree) -> bool:
    return isinstance(node, Tensor | dict | list | tuple | Opaque | Composite)


def _kind(node: Tree) -> object:
    """Return what must be alike for nodes to be joined part by part."""
    if isinstance(node, Opaque | Composite):
        return type(node).__name__, node.name, tuple(node.parts)
    for cls in (Tensor, dict, list, tuple):
        if isinstance(node, cls):
            return cls
    return type(node)


def _identity(pieces: list[tuple[Box, Tensor]], shape: tuple[int, ...]) -> object:
    """Return what is equal for tensors whose pieces are one and the same memory."""
    if not pieces or any(tensor.identity is None for _, tensor in pieces):
        return None
    return "joined", shape, tuple((box, tensor.identity) for box, tensor in pieces)


def _listed(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return ", ".join(map(str, ranks[:_SHOWN])) + more
