"""``ckptfmt convert``: one format to another, with a report."""

import json
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from ckptfmt.cli.documents import finding_lines, findings_json, hex_or_none, plural
from ckptfmt.cli.options import AsJson, From, Source, size
from ckptfmt.cli.output import Block, Result, progress_bar
from ckptfmt.cli.sizes import show_size

if TYPE_CHECKING:
    from ckptfmt.conversion import ConversionReport
    from ckptfmt.tree.canonical import JSON

__all__ = ["convert_path"]


_Target: TypeAlias = Annotated[
    str, typer.Argument(metavar="TARGET", help="What to write; its ending tells the format.")
]
_To: TypeAlias = Annotated[
    str | None, typer.Option("--to", metavar="FORMAT", help="The target's format (see formats).")
]
_Codec: TypeAlias = Annotated[
    str | None,
    typer.Option("--codec", metavar="CODEC", help="How data is stored: raw, zstd, planes+zstd; deflate."),
]
_ShardSize: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--shard-size", parser=size, metavar="SIZE", help="Close a file at this much data, as 4GiB."
    ),
]
_Include: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Take only these paths; may be given again."),
]
_Exclude: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Leave these paths out; may be given again."),
]
_Strict: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Any loss is an error; nothing is written.")
]
_DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only say what would be.")]
_Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace a target that is there.")]
_TwoStep: TypeAlias = Annotated[
    bool,
    typer.Option("--two-step", help="Replace it on file systems that cannot exchange two names."),
]
_Verify: TypeAlias = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Read the target again and compare it.")
]
_Step: TypeAlias = Annotated[int | None, typer.Option("--step", min=0, help="The training step to record.")]
_Report: TypeAlias = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Write the report as JSON; - is standard output."),
]


def convert_path(  # noqa: PLR0913 - each is a choice of the user's
    source: Source,
    target: _Target,
    *,
    source_format: From = None,
    to: _To = None,
    codec: _Codec = None,
    shard_size: _ShardSize = None,
    include: _Include = None,
    exclude: _Exclude = None,
    strict: _Strict = False,
    dry_run: _DryRun = False,
    overwrite: _Overwrite = False,
    two_step: _TwoStep = False,
    verify: _Verify = True,
    step: _Step = None,
    report: _Report = None,
    as_json: AsJson = False,
) -> Result:
    """Convert a checkpoint to another format, without a change to any number.

    The target is there whole or not at all. It is read again and compared with the source.
    """
    from ckptfmt.conversion import convert

    mode: bool | Literal["two-step"] = "two-step" if two_step else overwrite
    with progress_bar("converting") as progress:
        done = convert(
            source,
            target,
            source_format=source_format,
            to=_format(target, to),
            codec=codec,
            shard_size=shard_size,
            include=include or (),
            exclude=exclude or (),
            strict=strict,
            overwrite=mode,
            dry_run=dry_run,
            verify=verify,
            step=step,
            progress=progress,
        )
    document = _document(done)
    text = json.dumps(document, indent=2) + "\n"
    if report == "-" and not as_json:
        return Result(document, data=(text.encode(),))
    if report not in (None, "-"):
        _write_report(report, text)
    return Result(document, tuple(_blocks(done)))


def _format(target: str, to: str | None) -> str:
    from ckptfmt.conversion import target_format
    from ckptfmt.errors import UnknownFormatError

    try:
        return target_format(target, to).name
    except UnknownFormatError as error:
        raise typer.BadParameter(str(error), param_hint="'--to'") from None


def _write_report(path: str, text: str) -> None:
    from ckptfmt.storage.replace import replacing

    with replacing(path, overwrite=True) as file:
        file.write(text.encode())


def _document(done: "ConversionReport") -> "dict[str, JSON]":

    return {
        "source": done.source,
        "source_format": done.source_format,
        "target": done.target,
        "target_format": done.target_format,
        "dry_run": done.dry_run,
        "tensors": done.tensors,
        "nbytes": done.nbytes,
        "stored": done.stored,
        "direct": done.direct,
        "step": done.step,
        "root": hex_or_none(done.root),
        "bag": hex_or_none(done.bag),
        "verified": done.verified,
        "same_root": done.same_root,
        "losses": len(done.losses),
        "findings": findings_json(done.findings),
        "dropped": list(done.dropped),
    }


def _blocks(done: "ConversionReport") -> "list[Block]":

    blocks = finding_lines(done.findings)
    if done.dropped:
        blocks.append(f"left out as asked: {plural(len(done.dropped), 'path')}")
    verb = "would write" if done.dry_run else "wrote"
    what = f"{plural(done.tensors, 'tensor')}, {show_size(done.nbytes)}"
    blocks.append(
        f"{verb} {done.target} ({done.target_format}, {what}) from {done.source} ({done.source_format})"
    )
    if done.verified:
        which = "its tensors are" if not done.losses else "all of which no loss is told is"
        blocks.append(f"verified: read again, {which} the source's, bit for bit")
    if done.same_root:
        whose = "that of what was taken" if done.dropped else "the source's"
        blocks.append(f"lossless: its root is {whose}{_root(done)}")
    elif done.losses:
        blocks.append(f"not lossless: {len(done.losses)} of the findings above are losses")
    elif done.verified:
        blocks.append("its names or plain values are not all the source's: the roots differ")
    return blocks


def _root(done: "ConversionReport") -> str:
    return f", {done.root.hex()}" if done.root else ""
