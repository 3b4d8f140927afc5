"""``ckptfmt recover``: put right what killed writers left."""

from typing import Annotated

import typer

from ckptfmt.cli.options import AsJson
from ckptfmt.cli.output import Result

__all__ = ["recover_path"]


def recover_path(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A checkpoint, or a directory of checkpoints.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where nobody can tell whether the writer still runs.")
    ] = False,
    as_json: AsJson = False,
) -> Result:
    """Restore a checkpoint that an interrupted overwrite moved aside; remove what interrupted saves left."""
    del as_json
    from ckptfmt.storage.recovery import recover

    actions = recover(path, dry_run=dry_run, force=force)
    would = "would be " if dry_run else ""
    lines = [
        f"{'' if action.kind == 'kept' else would}{action.kind}: {action.path}"
        + (f" -> {action.target}" if action.kind == "restored" else "")
        + f": {action.reason}"
        for action in actions
    ]
    document = [
        {"kind": action.kind, "path": action.path, "target": action.target, "reason": action.reason}
        for action in actions
    ]
    return Result(
        {"path": path, "dry_run": dry_run, "actions": [dict(entry) for entry in document]},
        tuple(lines) or ("nothing is left over",),
    )
