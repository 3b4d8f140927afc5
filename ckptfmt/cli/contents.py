"""What a tree holds, as tables: tensors with ties named, plain values, totals by component and type."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.cli.documents import plural, value_json
from ckptfmt.cli.output import Table
from ckptfmt.cli.sizes import show_size
from ckptfmt.errors import ConversionError
from ckptfmt.tree.paths import display, glob_matcher
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import leaves
from ckptfmt.verify.comparing import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.cli.output import Block
    from ckptfmt.tree.canonical import JSON
    from ckptfmt.tree.nodes import Tree

__all__ = ["Contents", "contents_json", "contents_of", "contents_tables"]

_SIZES = frozenset({"size", "tensors"})


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    component: str
    tensor: Tensor
    same_as: str | None


@dataclass(frozen=True, slots=True)
class Contents:
    """The leaves of a tree, or of those of its paths that were asked for.

    Attributes
    ----------
    tensors : tuple
        One row for each path.
    values : tuple of (str, node)
        Leaves that are no tensors.
    """

    tensors: tuple[_Row, ...]
    values: tuple[tuple[str, Tree], ...]

    @property
    def count(self) -> int:
        """The number of tensors; ties count once."""
        return sum(row.same_as is None for row in self.tensors)

    @property
    def nbytes(self) -> int:
        """The canonical bytes of the tensors; ties count once."""
        return sum(row.tensor.nbytes for row in self.tensors if row.same_as is None)


def contents_of(tree: Tree, globs: Sequence[str]) -> Contents:
    """Return what a tree holds.

    Raises
    ------
    ConversionError
        A glob matches nothing.
    """
    matches = glob_matcher(globs) if globs else (lambda _: True)
    tensors: list[_Row] = []
    values: list[tuple[str, Tree]] = []
    first: dict[object, str] = {}
    for path, leaf in leaves(tree):
        shown = display(path)
        if not matches(shown):
            continue
        if isinstance(leaf, Tensor):
            key = id(leaf) if leaf.identity is None else leaf.identity
            earlier = first.setdefault(key, shown)
            tensors.append(_Row(shown, display(path[:1]), leaf, None if earlier == shown else earlier))
        else:
            values.append((shown, leaf))
    shown_paths = [*(row.path for row in tensors), *(path for path, _ in values)]
    for pattern in globs:
        if not any(map(glob_matcher([pattern]), shown_paths)):
            raise ConversionError(f"nothing in the checkpoint matches {pattern!r}")
    return Contents(tuple(tensors), tuple(values))


def contents_json(contents: Contents, limit: int | None) -> dict[str, JSON]:
    """Return contents as members of an object, at most `limit` rows of each kind."""
    return {
        "tensors": contents.count,
        "nbytes": contents.nbytes,
        "components": [
            {"name": name, "tensors": count, "nbytes": nbytes}
            for name, count, nbytes in _totals(contents, by_type=False)
        ],
        "types": [
            {"name": name, "tensors": count, "nbytes": nbytes}
            for name, count, nbytes in _totals(contents, by_type=True)
        ],
        "table": [_tensor_json(row) for row in contents.tensors[:limit]],
        "values": [
            {"path": path, "kind": _kind(value), "value": value_json(value)}
            for path, value in contents.values[:limit]
        ],
    }


def _tensor_json(row: _Row) -> JSON:
    tensor = row.tensor
    made: dict[str, JSON] = {
        "path": row.path,
        "type": tensor.dtype.name,
        "shape": list(tensor.shape),
        "nbytes": tensor.nbytes,
    }
    if row.same_as is not None:
        made["same_as"] = row.same_as
    if tensor.digest is not None:
        made["digest"] = tensor.digest.hex()
    return made


def _kind(value: Tree) -> str:
    return "none" if value is None else type(value).__name__.lower().removeprefix("tagged")


def _totals(contents: Contents, *, by_type: bool) -> list[tuple[str, int, int]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for row in contents.tensors:
        if row.same_as is None:
            name = row.tensor.dtype.name if by_type else row.component
            counts[name] += 1
            sizes[name] += row.tensor.nbytes
    return [(name, counts[name], sizes[name]) for name in counts]


def contents_tables(contents: Contents, limit: int | None) -> list[Block]:
    """Return contents as tables, at most `limit` rows of each."""
    rows: list[tuple[str, ...]] = [
        (
            row.path,
            row.tensor.dtype.name,
            str(list(row.tensor.shape)),
            show_size(row.tensor.nbytes),
            row.same_as or "",
        )
        for row in contents.tensors[:limit]
    ]
    columns: tuple[str, ...] = ("tensor", "type", "shape", "size", "same as")
    if not any(row[-1] for row in rows):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    values = [(path, _kind(value), describe(value)) for path, value in contents.values[:limit]]
    blocks: list[Block] = [
        Table(columns, rows, _SIZES),
        *_more(len(contents.tensors) - len(rows), "tensor"),
        Table(("value", "kind", "is"), values),
        *_more(len(contents.values) - len(values), "plain value"),
    ]
    for heading, by_type in (("component", False), ("type", True)):
        totals = _totals(contents, by_type=by_type)
        lines = [(name, f"{count:,}", show_size(nbytes)) for name, count, nbytes in totals]
        if len(totals) <= max(1, len(contents.tensors) // 2):
            blocks.append(Table((heading, "tensors", "size"), lines, _SIZES))
    return blocks


def _more(count: int, noun: str) -> list[Block]:
    return [f"... and {plural(count, 'more ' + noun)}"] if count > 0 else []
