"""``ckptfmt slots``: which parameter each value of an optimizer belongs to."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptfmt.cli.options import AsJson, From, Source
from ckptfmt.cli.output import Result, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.tree.canonical import JSON
    from ckptfmt.tree.nodes import Tree

__all__ = ["show_slots"]


def show_slots(
    path: Source,
    *,
    variables: Annotated[
        str | None,
        typer.Option(
            "--variables",
            metavar="LIST",
            help="A file with the parameters in the optimizer's order, one on a line; - is standard input.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", metavar="CLASS", help="The optimizer's class, as Adam.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="PATH", help="Where in the tree the optimizer is.")
    ] = None,
    source_format: From = None,
    as_json: AsJson = False,
) -> Result:
    """Show the values of an optimizer by parameter: only where that is certain.

    Files of Keras number them, and files of PyTorch number the parameters. The order is taken from the
    configuration in the file, or from a list of yours; where neither makes it certain, nothing is guessed.
    """
    del as_json
    from ckptfmt.conversion import read
    from ckptfmt.registry import optimizer_slots

    names = None if variables is None else _lines(variables)
    with read(path, format=source_format) as checkpoint:
        tree = checkpoint.tree if at is None else _part(checkpoint.tree, at)
        found = optimizer_slots(tree, checkpoint.format, variables=names, optimizer=optimizer)
        rows = [
            (parameter, name, *_described(node))
            for parameter, values in found.items()
            for name, node in values.items()
        ]
    document: dict[str, JSON] = {
        "path": path,
        "slots": [dict(zip(("parameter", "name", "type", "shape"), row, strict=True)) for row in rows],
    }
    shown = [(row[0] or "(the optimizer)", row[1], row[2], str(row[3])) for row in rows]
    return Result(document, (Table(("parameter", "value", "type", "shape"), shown),))


def _lines(name: str) -> list[str]:
    """Return the lines of a file, or of standard input."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the list of variables cannot be read: {error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _part(tree: "Tree", shown: str) -> "Tree":
    """Return the node at a displayed path."""
    from ckptfmt.errors import ConversionError

    for path, node in _mappings(tree, ()):
        if path == shown:
            return node
    raise ConversionError(f"there is no mapping at {shown!r}")


def _mappings(tree: "Tree", path: "tuple[object, ...]") -> "Iterator[tuple[str, Tree]]":
    from ckptfmt.tree.paths import display
    from ckptfmt.tree.walk import MAX_DEPTH

    if isinstance(tree, dict) and len(path) <= MAX_DEPTH:
        yield display(path), tree  # type: ignore[arg-type] # keys of dicts
        for key, node in tree.items():
            yield from _mappings(node, (*path, key))


def _described(node: "Tree") -> "tuple[str, list[JSON] | None]":
    from ckptfmt.tree.tensor import Tensor

    if isinstance(node, Tensor):
        return node.dtype.name, list(node.shape)
    return type(node).__name__, None
