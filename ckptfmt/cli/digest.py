"""``ckptfmt digest``: one line for each checkpoint, whatever its format."""

from typing import TYPE_CHECKING, Annotated

import typer

from ckptfmt.cli.exits import Exit, exit_of
from ckptfmt.cli.options import AsJson
from ckptfmt.cli.output import Result, progress_bar
from ckptfmt.errors import CkptError

if TYPE_CHECKING:
    from ckptfmt.tree.canonical import JSON
    from ckptfmt.verify.digesting import Digests

__all__ = ["digest_paths"]


def digest_paths(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or checkpoints.")],
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="Also one line for each tensor.")] = False,
    bag: Annotated[
        bool,
        typer.Option("--bag", help="The digest of the tensors alone, without names, in place of the root."),
    ] = False,
    as_json: AsJson = False,
) -> Result:
    """Print the root digest of each checkpoint: equal for equal states, whatever the format.

    All data is read; what a checkpoint claims is not believed. Of several, one that cannot be read does not
    keep the others from being shown.
    """
    del as_json
    lines: list[str] = []
    notes: list[str] = []
    document: list[JSON] = []
    code = Exit.OK
    for path in paths:
        try:
            digests = _digests(path, tensors=tensors)
        except CkptError as error:
            if len(paths) == 1:
                raise
            code = code or exit_of(error)
            notes.append(f"ckptfmt: {path}: {error}")
            document.append({"path": path, "error": {"kind": error.kind, "message": str(error)}})
            continue
        lines.append(f"{(digests.bag if bag else digests.root).hex()}  {path}")
        entry: dict[str, JSON] = {"path": path, "root": digests.root.hex(), "bag": digests.bag.hex()}
        if tensors:
            lines += [f"{value.hex()}  {path}:{name}" for name, value in digests.tensors.items()]
            entry["tensors"] = {name: value.hex() for name, value in digests.tensors.items()}
        document.append(entry)
    return Result({"digests": document}, tuple(lines), code, notes=tuple(notes))


def _digests(path: str, *, tensors: bool) -> "Digests":
    from ckptfmt.conversion import read
    from ckptfmt.verify.digesting import digest

    with read(path) as checkpoint, progress_bar("reading") as progress:
        return digest(checkpoint, progress=progress, paths=tensors)
