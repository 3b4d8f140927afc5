"""``ckptfmt verify``: read every byte, compare it with its digest, and say all that is wrong."""

from typing import TYPE_CHECKING, Annotated

import typer

from ckptfmt.cli.documents import finding_lines, findings_json, hex_or_none, plural
from ckptfmt.cli.exits import Exit
from ckptfmt.cli.options import AsJson, Source, digest_bytes
from ckptfmt.cli.output import Result, progress_bar
from ckptfmt.cli.sizes import show_size

if TYPE_CHECKING:
    from ckptfmt.tree.canonical import JSON
    from ckptfmt.verify.checking import Report

__all__ = ["verify_path"]


def verify_path(
    path: Source,
    *,
    expect: Annotated[
        bytes | None,
        typer.Option(parser=digest_bytes, metavar="ROOT", help="The root digest it must have."),
    ] = None,
    finite: Annotated[
        bool, typer.Option("--finite", help="NaN and infinite elements are problems, too.")
    ] = False,
    as_json: AsJson = False,
) -> Result:
    """Verify a checkpoint completely: exit code 1 if anything is wrong, with every problem named."""
    del as_json
    from ckptfmt.errors import ConversionError, FormatError, TreeError
    from ckptfmt.verify.checking import Report, check, finding_of

    with progress_bar("verifying") as progress:
        try:
            report = check(path, expect=expect, finite=finite, progress=progress)
        except (ConversionError, FormatError, TreeError) as error:
            report = Report(path, "", None, None, None, 0, 0, (finding_of(error, path),))
    return _result(report)


def _result(report: "Report") -> Result:
    from ckptfmt.tree.findings import Severity

    problems = [finding for finding in report.findings if finding.severity is Severity.PROBLEM]
    what = f"{plural(report.tensors, 'tensor')}, {show_size(report.nbytes)}"
    step = "" if report.step is None else f", step {report.step}"
    if report.ok:
        summary = [f"ok: {report.path} ({report.format}{step}, {what})"]
        summary += [f"root {report.root.hex()}"] if report.root else []
    else:
        summary = [f"BAD: {report.path}: {plural(len(problems), 'problem')}"]
    document: dict[str, JSON] = {
        "path": report.path,
        "ok": report.ok,
        "format": report.format or None,
        "step": report.step,
        "root": hex_or_none(report.root),
        "bag": hex_or_none(report.bag),
        "tensors": report.tensors,
        "nbytes": report.nbytes,
        "problems": len(problems),
        "findings": findings_json(report.findings),
    }
    code = Exit.OK if report.ok else Exit.DIFFERENT
    return Result(document, (*finding_lines(report.findings), *summary), code)
