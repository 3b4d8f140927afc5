"""``ckptfmt diff``: what differs between two checkpoints, to the bit."""

from typing import TYPE_CHECKING, Annotated

import typer

from ckptfmt.cli.documents import number_json, plural
from ckptfmt.cli.exits import Exit
from ckptfmt.cli.options import AsJson
from ckptfmt.cli.output import Result, Table, progress_bar

if TYPE_CHECKING:
    from ckptfmt.tree.canonical import JSON
    from ckptfmt.verify.comparing import Comparison, Entry

__all__ = ["diff_paths"]

_STATUSES = ("equal", "kind", "type", "shape", "bits", "value", "only-a", "only-b")


def diff_paths(
    a: Annotated[str, typer.Argument(metavar="A", help="A file or a checkpoint, of any format.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another, of any format.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="Show what is equal, too.")] = False,
    as_json: AsJson = False,
) -> Result:
    """Compare two checkpoints of any formats: exit code 1 if anything differs.

    Distances of numbers are in units in the last place (ULP) and absolute. Key order, classes and ties
    do not count, as in the digests.
    """
    del as_json
    from ckptfmt.conversion import read
    from ckptfmt.verify.comparing import compare

    with read(a) as one, read(b) as other, progress_bar("comparing", unit="paths") as told:
        comparison = compare(one, other, progress=told)
    return _result(a, b, comparison, everything=everything)


def _result(a: str, b: str, comparison: "Comparison", *, everything: bool) -> Result:

    entries = comparison.entries if everything else comparison.different
    counts = {status: comparison.count(status) for status in _STATUSES}  # type: ignore[arg-type] # those there are
    table = Table(
        ("path", "status", "A", "B", "differ", "max ULP", "max abs"),
        [_row(entry) for entry in entries],
        frozenset({"differ", "max ULP", "max abs"}),
    )
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing to compare"
    verdict = "equal" if comparison.equal else "different"
    document: dict[str, JSON] = {
        "a": a,
        "b": b,
        "equal": comparison.equal,
        "counts": dict(counts),
        "entries": [_document(entry) for entry in entries],
    }
    summary = f"{verdict}: {plural(len(comparison.entries), 'path')} compared: {told}"
    blocks = (table, summary) if entries else (summary,)
    return Result(document, blocks, Exit.OK if comparison.equal else Exit.DIFFERENT)


def _row(entry: "Entry") -> tuple[str, ...]:
    found = entry.difference
    if found is None:
        return (entry.path, entry.status, entry.a, entry.b, "", "", "")
    extra = [
        f"{count} {what}"
        for count, what in (
            (found.nan, "NaN on one side"),
            (found.nan_payload, "NaN payloads"),
            (found.zero_sign, "signs of zero"),
        )
        if count
    ]
    differ = f"{found.count} of {found.elements}" + (f" ({', '.join(extra)})" if extra else "")
    return (
        entry.path,
        entry.status,
        entry.a,
        entry.b,
        differ,
        "" if found.max_ulp is None else str(found.max_ulp),
        "" if found.max_abs is None else f"{found.max_abs:.6g}",
    )


def _document(entry: "Entry") -> "dict[str, JSON]":

    made: dict[str, JSON] = {"path": entry.path, "status": entry.status, "a": entry.a, "b": entry.b}
    found = entry.difference
    if found is not None:
        made |= {
            "elements": found.elements,
            "differ": found.count,
            "first": list(entry.first or ()),
            "max_ulp": found.max_ulp,
            "max_abs": number_json(found.max_abs),
            "max_rel": number_json(found.max_rel),
            "nan": found.nan,
            "nan_payload": found.nan_payload,
            "zero_sign": found.zero_sign,
        }
    return made
