"""Values of the library as JSON and as lines for a person."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ckptfmt.cli.exits import Exit
from ckptfmt.cli.output import Table, error_document
from ckptfmt.errors import CkptError
from ckptfmt.tree.nodes import Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptfmt.cli.output import Block
    from ckptfmt.storage.recovery import Leftover
    from ckptfmt.tree.canonical import JSON
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = [
    "finding_line",
    "finding_lines",
    "findings_json",
    "hex_or_none",
    "leftover_json",
    "leftover_table",
    "number_json",
    "of_error",
    "plural",
    "value_json",
]


_EXACT = 2**53  # integers up to here come through every reader of JSON


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def hex_or_none(digest: bytes | None) -> str | None:
    """Return a digest in hexadecimal."""
    return None if digest is None else digest.hex()


def number_json(value: float | None) -> JSON:
    """Return a number; what JSON has no number for as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value  # type: ignore[return-value] # JSON of ours has no fractions, that of the command line has


def value_json(value: Tree) -> JSON:
    """Return a plain value; bytes in hexadecimal, what JSON has no value for as a string."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return number_json(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Strings):
        return [text.hex() if isinstance(text, bytes) else text for text in value.values]
    return repr(value)


def findings_json(findings: Iterable[Finding]) -> JSON:
    """Return findings as objects."""
    return [dict(finding.as_json()) for finding in findings]


def finding_line(finding: Finding) -> str:
    """Return a finding as one line: severity, kind, where, what."""
    places = [
        finding.file or "",
        f"tensor {finding.path}" if finding.path and finding.file else finding.path,
        f"chunk {finding.chunk}" if finding.chunk is not None else "",
        f"offset {finding.offset}" if finding.offset is not None else "",
    ]
    where = ", ".join(place for place in places if place)
    rule = f" ({finding.rule})" if finding.rule else ""
    return f"{finding.severity} {finding.kind}: " + (f"{where}: " if where else "") + finding.message + rule


def finding_lines(findings: Sequence[Finding]) -> list[Block]:
    """Return findings, each as a line."""
    return [finding_line(finding) for finding in findings]


def leftover_json(leftover: Leftover) -> JSON:
    """Return a left-over as an object."""
    return {
        "kind": leftover.kind,
        "path": leftover.path,
        "target": leftover.target,
        "nbytes": leftover.size,
        "state": leftover.state,
        "complete": leftover.complete,
        "pid": leftover.owner.pid if leftover.owner else None,
        "host": leftover.owner.host if leftover.owner else None,
    }


def leftover_table(found: Sequence[Leftover], show: Iterable[str]) -> Table:
    """Return left-overs as a table, with their sizes as given."""
    rows = [
        (leftover.path, leftover.kind, size, _STATES[leftover.state])
        for leftover, size in zip(found, show, strict=True)
    ]
    return Table(
        ("path", "left over", "size", "its writer"),
        rows,
        frozenset({"size"}),
        "Left over (ckptfmt recover puts it right):",
    )


_STATES = {
    "running": "is still running",
    "gone": "is gone",
    "other-host": "is on another host",
    "unknown": "is not known",
}


def of_error(error: BaseException, code: Exit) -> tuple[str, JSON]:
    """Return an error as a message for a person, and as a document."""
    kind = error.kind if isinstance(error, CkptError) else _KINDS.get(code, "error")
    message = str(error) or type(error).__name__
    places: dict[str, JSON] = {}
    for name in ("file", "tensor", "offset", "chunk", "rule", "extra"):
        value = getattr(error, name, None)
        if isinstance(value, str | int):
            places[name] = value
    findings = getattr(error, "findings", ())
    if findings:
        places["findings"] = findings_json(findings)
        message = "\n".join([message, *map(finding_line, findings)])
    return message, error_document(kind, str(getattr(error, "message", None) or error), code, places)


_KINDS = {Exit.USAGE: "usage", Exit.IO: "storage", Exit.BUG: "bug", Exit.INTERRUPTED: "interrupted"}
