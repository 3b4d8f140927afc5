"""``ckptfmt info``: what is inside a file, a checkpoint, or a directory of checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptfmt.cli.documents import (
    finding_lines,
    findings_json,
    hex_or_none,
    leftover_json,
    leftover_table,
    plural,
)
from ckptfmt.cli.options import AsJson, From, Source
from ckptfmt.cli.output import Block, Result, Table
from ckptfmt.cli.sizes import show_size

if TYPE_CHECKING:
    from ckptfmt.cli.contents import Contents
    from ckptfmt.cli.listing import Listed
    from ckptfmt.storage.recovery import Leftover
    from ckptfmt.tree.canonical import JSON
    from ckptfmt.tree.checkpoint import Checkpoint

__all__ = ["show_info"]

_SIZES = frozenset({"size", "on disk", "tensors", "step"})


def show_info(
    path: Source,
    globs: Annotated[
        list[str] | None, typer.Argument(metavar="[GLOB]...", help="Show only these paths of the tree.")
    ] = None,
    *,
    source_format: From = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Show at most this many rows of each table.")
    ] = None,
    as_json: AsJson = False,
) -> Result:
    """Show what is inside: tensors, plain values and totals; of a directory, its checkpoints.

    Only the structure is read. Left-overs of interrupted saves are named.
    """
    del as_json
    from ckptfmt.conversion import read
    from ckptfmt.errors import UnknownFormatError

    try:
        checkpoint = read(path, format=source_format)
    except UnknownFormatError:
        result = _directory(path)
        if result is None:
            raise
        return result
    with checkpoint:
        return _checkpoint(path, checkpoint, globs or [], limit)


def _directory(path: str) -> Result | None:
    """Return the list of a folder; None if it is none, or has neither a checkpoint nor a left-over in it."""
    from ckptfmt.cli.listing import list_directory
    from ckptfmt.registry.directories import is_folder
    from ckptfmt.storage.directory import Directory
    from ckptfmt.storage.recovery import leftovers

    if not Path(path).is_dir():
        return None
    with Directory(path) as place:
        if not is_folder(place):
            return None
    listed, left = list_directory(path), leftovers(path)
    if not listed and not left:
        return None
    document: dict[str, JSON] = {
        "kind": "directory",
        "path": path,
        "checkpoints": [_listed_json(one) for one in listed],
        "leftovers": [leftover_json(one) for one in left],
    }
    return Result(document, (_listed_table(listed), *_left_over(left)))


def _listed_json(one: "Listed") -> "JSON":
    return {
        "name": one.name,
        "format": one.format,
        "step": one.step,
        "tensors": one.tensors,
        "stored": one.stored,
        "complete": one.complete,
        "problem": one.problem,
    }


def _listed_table(listed: "list[Listed]") -> Table:

    rows = [
        (
            one.name,
            one.format,
            "" if one.step is None else str(one.step),
            "" if one.tensors is None else f"{one.tensors:,}",
            show_size(one.stored),
            f"NOT COMPLETE: {one.problem}" if one.problem else "complete" if one.complete else "",
        )
        for one in listed
    ]
    return Table(("name", "format", "step", "tensors", "on disk", "state"), rows, _SIZES)


def _left_over(left: "list[Leftover]") -> list[Block]:

    return [leftover_table(left, [show_size(one.size) for one in left])] if left else []


def _checkpoint(path: str, checkpoint: "Checkpoint", globs: list[str], limit: int | None) -> Result:
    from ckptfmt.cli.contents import contents_json, contents_of, contents_tables
    from ckptfmt.cli.listing import stored_size
    from ckptfmt.errors import StorageError
    from ckptfmt.storage.recovery import leftovers

    contents = contents_of(checkpoint.tree, globs)
    stored = stored_size(path) if checkpoint.stored is None else checkpoint.stored
    try:
        where = Path(path).absolute()
        left = leftovers(where.parent, target=where.name)
    except StorageError:  # beside it may be what we may not see
        left = []
    document: dict[str, JSON] = {
        "kind": "checkpoint",
        "path": path,
        "format": checkpoint.format,
        "step": checkpoint.step,
        "root": hex_or_none(checkpoint.root),
        "bag": hex_or_none(checkpoint.bag),
        "stored": stored,
        **contents_json(contents, limit),
        "findings": findings_json(checkpoint.findings),
        "leftovers": [leftover_json(one) for one in left],
    }
    blocks = (
        _head(path, checkpoint, contents, stored),
        *finding_lines(checkpoint.findings),
        *contents_tables(contents, limit),
        *_left_over(left),
    )
    return Result(document, blocks)


def _head(path: str, checkpoint: "Checkpoint", contents: "Contents", stored: int) -> str:

    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    tensors = f"{plural(contents.count, 'tensor')} of {show_size(contents.nbytes)}"
    values = plural(len(contents.values), "plain value")
    lines = [f"{path}: {checkpoint.format}{step}; {tensors}, {values}; {show_size(stored)} on disk"]
    if checkpoint.root is not None:
        lines.append(f"root {checkpoint.root.hex()}")
    return "\n".join(lines)
