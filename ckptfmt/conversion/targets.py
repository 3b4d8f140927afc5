"""What is to be written where: a format, its options, and what can be refused before anything is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ckptfmt.errors import ConversionError, ExistsError, UnknownFormatError
from ckptfmt.registry import Format, format_named, formats
from ckptfmt.registry.calling import check_options

__all__ = ["Options", "Overwrite", "options_for", "refuse_overlap", "target_format"]

Overwrite: TypeAlias = 'bool | Literal["two-step"]'


@dataclass(frozen=True, slots=True)
class Options:
    """How to write a target; None means the format's own default."""

    to: Format
    codec: str | None
    shard_size: int | None
    overwrite: Overwrite
    step: int | None


def target_format(target: str | os.PathLike[str], to: str | None = None) -> Format:
    """Return the format to write a target in: the one named, or the one that its extension means.

    Raises
    ------
    UnknownFormatError
        There is none of that name, or the extension does not tell; the message lists the choices.
    """
    if to is not None:
        return format_named(to)
    name = Path(target).name.lower()
    endings = [(ending, known) for known in formats() for ending in known.extensions if ending]
    fitting = [(len(ending), known) for ending, known in endings if name.endswith(ending)]
    if fitting:
        return max(fitting, key=lambda pair: pair[0])[1]
    if not Path(name).suffix:
        return next(known for known in formats() if "" in known.extensions)
    choices = ", ".join(known.name for known in formats() if known.writable)
    raise UnknownFormatError(
        f"{Path(name).suffix!r} does not tell the format of {os.fspath(target)}; name one of {choices}"
    )


def options_for(
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    codec: str | None = None,
    shard_size: int | None = None,
    overwrite: Overwrite = False,
    step: int | None = None,
) -> Options:
    """Check everything about the target that can be checked before anything is read or written."""
    found = target_format(target, to)
    check_options(found, codec=codec, shard_size=shard_size)
    if os.path.lexists(target) and not overwrite:
        raise ExistsError(
            "is already there; it is replaced only if overwriting is asked for", file=os.fspath(target)
        )
    return Options(found, codec, shard_size, overwrite, step)


def refuse_overlap(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Refuse a target that is the source, lies in it, or holds it."""
    one, other = (Path(os.path.realpath(path)) for path in (source, target))
    same = one == other or (one.exists() and other.exists() and one.samefile(other))
    if same or one in other.parents or (other in one.parents and other.exists()):
        raise ConversionError(
            f"the target {os.fspath(target)} and the source {os.fspath(source)} are one, or one lies in the"
            " other: convert to another place"
        )
