"""``ckptfmt formats``: what can be read and written."""

from typing import TYPE_CHECKING

from ckptfmt.cli.options import AsJson
from ckptfmt.cli.output import Result, Table

if TYPE_CHECKING:
    from ckptfmt.registry import Format
    from ckptfmt.tree.canonical import JSON

__all__ = ["list_formats"]


def list_formats(*, as_json: AsJson = False) -> Result:
    """List the formats that are read and written."""
    del as_json
    from ckptfmt.registry import formats

    rows = [
        (
            row.name,
            "detect, read, write" if row.writable else "detect, read",
            _endings(row),
            " ".join(row.codecs) if row.writable else "",
            row.extra or "",
            row.summary,
        )
        for row in formats()
    ]
    return Result(
        {"formats": [_document(row) for row in formats()]},
        (Table(("format", "is", "targets", "codecs", "extra", "what it is"), rows),),
    )


def _endings(row: "Format") -> str:
    return " ".join(ending or "(none)" for ending in row.extensions)


def _document(row: "Format") -> "dict[str, JSON]":
    return {
        "name": row.name,
        "summary": row.summary,
        "container": row.container,
        "extensions": list(row.extensions),
        "codecs": list(row.codecs),
        "sharded": row.shards,
        "written": row.writable,
        "extra": row.extra,
    }
