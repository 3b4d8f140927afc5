"""Options that several commands share, and how their values are read.

Command modules evaluate their annotations, as typer does; so they do without postponed ones.
"""

from typing import Annotated, TypeAlias

import typer

from ckptfmt.cli.sizes import parse_size

__all__ = ["AsJson", "From", "Source", "digest_bytes", "size"]

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A file or a checkpoint's directory, of any format.")
]


def _known_format(name: str | None) -> str | None:
    """Check a format given on the command line."""
    from ckptfmt.errors import UnknownFormatError
    from ckptfmt.registry import format_named

    try:
        return name if name is None else format_named(name).name
    except UnknownFormatError as error:
        raise typer.BadParameter(str(error)) from None


From: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        callback=_known_format,
        help="What the source is, where its content leaves a choice.",
    ),
]


def size(text: str) -> int:
    """Read a size given on the command line."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def digest_bytes(text: str) -> bytes:
    """Read a digest given on the command line."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise typer.BadParameter(f"{text!r} is no digest: it has 64 hexadecimal digits")
    return value
