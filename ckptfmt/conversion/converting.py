"""Read any format, write any format, and turn one into another without a change to any number.

What is written is read again and its digests compared with the source's, so a report says what is on the
disk and not what was meant to be. Nothing is renamed, transposed or cast here: that is mapping's. A target
is there whole or not at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.conversion.passes import Passes, counted, tree_nbytes, unique_tensors
from ckptfmt.conversion.rehearsal import rehearse
from ckptfmt.conversion.targets import options_for, refuse_overlap
from ckptfmt.errors import ConversionError, LossyError, VerificationError
from ckptfmt.loading import load
from ckptfmt.registry import adapt, detect, format_named, read_foreign, write_foreign
from ckptfmt.registry.table import NATIVE
from ckptfmt.saving import save
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.options import globs
from ckptfmt.tree.paths import display, glob_matcher
from ckptfmt.tree.walk import leaves, select
from ckptfmt.verify.digesting import tree_digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.conversion.passes import Progress
    from ckptfmt.conversion.targets import Options, Overwrite
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.nodes import Tree

__all__ = ["ConversionReport", "convert", "read", "write"]


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did, or with `dry_run` would do.

    Attributes
    ----------
    source, target : str
        Paths.
    source_format, target_format : str
        Names of registered formats.
    tensors : int
        Ties count once.
    nbytes : int
        Canonical bytes of the tensors.
    step : int or None
        The training step that the target records, where it can.
    findings : tuple of Finding
        What the reader and the writer had to say.
    dropped : tuple of str
        Displayed paths that `include` and `exclude` left out.
    root, bag : bytes or None
        Digests of the target as it was read again; None if it was not.
    same_root : bool or None
        Whether the target's tree, names and plain values included, is the source's; None if not compared.
    stored : int or None
        Bytes of the target's files; None if nothing was written.
    direct : bool or None
        Whether every large file was written past the page cache; None where that is not told.
    dry_run : bool
        Whether nothing was written.
    """

    source: str
    source_format: str
    target: str
    target_format: str
    tensors: int
    nbytes: int
    step: int | None = None
    findings: tuple[Finding, ...] = ()
    dropped: tuple[str, ...] = ()
    root: bytes | None = None
    bag: bytes | None = None
    same_root: bool | None = None
    stored: int | None = None
    direct: bool | None = None
    dry_run: bool = False

    @property
    def verified(self) -> bool:
        """Whether the target was read again, and every tensor of which no loss is told is the source's."""
        return self.same_root is not None

    @property
    def losses(self) -> tuple[Finding, ...]:
        """What of the source is not in the target."""
        return _losses(self.findings)


@dataclass(frozen=True, slots=True)
class _Written:
    """What is at a target: digests are None where the format's writer does not tell."""

    findings: tuple[Finding, ...]
    root: bytes | None = None
    bag: bytes | None = None
    stored: int | None = None
    direct: bool | None = None


def read(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word users know
) -> Checkpoint:
    """Open a checkpoint of any format; its tensors are read when they are asked for.

    Parameters
    ----------
    path : str or os.PathLike
    format : str, optional
        The format's name; told from the content by default.

    Raises
    ------
    UnknownFormatError
        The content is of no format of this release, or no format is called so.
    FormatError, StorageError
        As the reader says.
    MissingExtraError
        The format needs an extra.
    """
    name = detect(path).name if format is None else format_named(format).name
    return load(path) if name == NATIVE else read_foreign(path, name)


def write(
    tree: object,
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    codec: str | None = None,
    shard_size: int | None = None,
    strict: bool = False,
    overwrite: Overwrite = False,
    step: int | None = None,
) -> tuple[Finding, ...]:
    """Write a tree, or any value that `save` takes, in any format.

    Parameters
    ----------
    tree : object
    target : str or os.PathLike
    to : str, optional
        The format's name; told from the target's extension by default.
    codec : str, optional
        One of the format's; its first by default.
    shard_size : int, optional
        Bytes of data at which a file is closed, for formats that can be spread.
    strict : bool
        Whether a loss is an error.
    overwrite : bool or "two-step"
        As for `save`; foreign formats take "two-step" for True.
    step : int, optional
        The training step; only our own format records it.

    Returns
    -------
    tuple of Finding
        What the format could not carry, among others.

    Raises
    ------
    LossyError
        Something would be lost, and `strict` forbids it; nothing was written.
    UnknownFormatError, ConversionError
        The format cannot be told, or has no such option.
    CkptError
        As `save` or the format's writer says.
    """
    options = options_for(target, to=to, codec=codec, shard_size=shard_size, overwrite=overwrite, step=step)
    captured, findings = as_tree(tree, adapt=adapt)
    if strict:
        _refuse_losses((*findings, *rehearse(captured, options)))
    return (*findings, *_write(captured, target, options).findings)


def convert(  # noqa: PLR0913 - each is a choice of the user's
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    source_format: str | None = None,
    to: str | None = None,
    codec: str | None = None,
    shard_size: int | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    strict: bool = False,
    overwrite: Overwrite = False,
    dry_run: bool = False,
    verify: bool = True,
    step: int | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Turn a checkpoint of any format into one of another, or of the same, format.

    Tensors are streamed: memory does not grow with them.

    Parameters
    ----------
    source, target : str or os.PathLike
    source_format : str, optional
        The source's format; told from its content by default.
    to : str, optional
        The target's format; told from its extension by default.
    codec : str, optional
        How the target stores data; its format's first by default.
    shard_size : int, optional
        Bytes of data at which a file is closed, for formats that can be spread.
    include, exclude : str or sequence of str
        Globs of displayed paths: what is taken (all by default), and what of that is left out.
    strict : bool
        Whether a loss is an error.
    overwrite : bool or "two-step"
        As for `save`.
    dry_run : bool
        Read the structure and say what would be, without writing the target.
    verify : bool
        Whether the target is read again and compared.
    step : int, optional
        The training step to record; by default the source's.
    progress : callable, optional
        Called with bytes done and bytes in all; writing and verifying both count.

    Raises
    ------
    LossyError
        Something would be lost, and `strict` forbids it; nothing was written.
    ConversionError
        Source and target are one, a glob matches nothing, or the target has no such option.
    UnknownFormatError
        The source is of no format of this release, or the target's format cannot be told.
    VerificationError
        The target, read again, is not what was written.
    CkptError
        As the reader and the writer say.
    """
    refuse_overlap(source, target)
    with read(source, format=source_format) as opened:
        options = options_for(
            target,
            to=to,
            codec=codec,
            shard_size=shard_size,
            overwrite=overwrite,
            step=opened.step if step is None else step,
        )
        tree, dropped = _selected(opened.tree, globs("include", include), globs("exclude", exclude))
        findings = opened.findings
        if strict or dry_run:
            foreseen = (*findings, *rehearse(tree, options))
            findings = foreseen if dry_run else findings
            if strict:
                _refuse_losses(foreseen)
        done, same = _Written(findings), None
        if not dry_run:
            opened.verify_whole()
            passes = Passes(progress, tree, _pass_count(options, verify=verify))
            done, same = _carried_out(tree, target, options, findings, passes, verify=verify)
        return ConversionReport(
            os.fspath(source),
            opened.format,
            os.fspath(target),
            options.to.name,
            len(unique_tensors(tree)),
            tree_nbytes(tree),
            options.step if options.to.name == NATIVE else None,
            done.findings,
            dropped,
            done.root,
            done.bag,
            same,
            done.stored,
            done.direct,
            dry_run,
        )


def _pass_count(options: Options, *, verify: bool) -> int:
    if not verify:
        return 1
    return 2 if options.to.name == NATIVE else 3


def _carried_out(
    tree: Tree,
    target: str | os.PathLike[str],
    options: Options,
    findings: tuple[Finding, ...],
    passes: Passes,
    *,
    verify: bool,
) -> tuple[_Written, bool | None]:
    """Write, read again, compare; the second value tells whether the roots are equal, if compared."""
    written = _write(tree, target, options, passes.next())
    known = replace(written, findings=(*findings, *written.findings))
    if not verify:
        return known, None
    if options.to.name == NATIVE:
        return known, _native_again(target, known, passes)
    return _compared(tree, target, options, known, passes)


def _selected(tree: Tree, include: Sequence[str], exclude: Sequence[str]) -> tuple[Tree, tuple[str, ...]]:
    """Return the chosen part of a tree, and the displayed paths of the leaves that are left out."""
    if not include and not exclude:
        return tree, ()
    shown = [display(path) for path, _ in leaves(tree)]
    for pattern in (*include, *exclude):
        if not any(map(glob_matcher([pattern]), shown)):
            raise ConversionError(f"nothing in the source matches {pattern!r}")
    taken = glob_matcher(include) if include else (lambda _: True)
    left_out = glob_matcher(exclude)
    dropped = {path for path in shown if not taken(path) or left_out(path)}
    return select(tree, lambda path, _: display(path) not in dropped), tuple(
        path for path in shown if path in dropped
    )


def _write(
    tree: Tree, target: str | os.PathLike[str], options: Options, progress: Progress | None = None
) -> _Written:
    if options.to.name != NATIVE:
        found = write_foreign(
            tree if progress is None else counted(tree, progress),
            target,
            options.to.name,
            codec=options.codec,
            shard_size=options.shard_size,
            overwrite=bool(options.overwrite),
        )
        return _Written(found, stored=_stored(target, options.to.name))
    receipt = save(
        tree,
        target,
        step=options.step,
        codec=options.codec or options.to.codecs[0],
        shard_size=options.shard_size,
        overwrite=options.overwrite,
        progress=progress,
    )
    return _Written(receipt.findings, receipt.root, receipt.bag, receipt.stored, receipt.direct)


def _losses(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity is Severity.LOSS)


def _refuse_losses(findings: Sequence[Finding]) -> None:
    lost = _losses(findings)
    if lost:
        first = f"{lost[0].path}: {lost[0].message}" if lost[0].path else lost[0].message
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise LossyError(f"the target cannot carry everything: {first}{more}; nothing was written", lost)


def _stored(target: str | os.PathLike[str], name: str) -> int | None:
    """Return the bytes of a file, of a flat directory, or of the files that a reader finds at a prefix."""
    where = Path(target)
    if not where.exists() or where.suffix == ".index":
        with read(target, format=name) as again:
            return again.stored
    where = where.parent if where.name.endswith(".index.json") else where
    files = where.iterdir() if where.is_dir() else (where,)
    return sum(file.stat().st_size for file in files)


def _native_again(target: str | os.PathLike[str], written: _Written, passes: Passes) -> bool:
    """Read our own checkpoint again: its digests are those of the bytes that were read from the source."""
    with load(target, verify="full", progress=passes.next()) as again:
        if (again.root, again.bag) != (written.root, written.bag):
            raise _not_as_written(target, ())
    return True


def _compared(
    tree: Tree, target: str | os.PathLike[str], options: Options, written: _Written, passes: Passes
) -> tuple[_Written, bool]:
    """Read a foreign target again and compare its tensors with the source's."""
    with read(target, format=options.to.name) as again:
        found = tree_digests(again.tree, progress=passes.next())
    wanted = tree_digests(tree, progress=passes.next())
    if found.bag != wanted.bag:
        paths = _unexplained(wanted.tensors, found.tensors, _losses(written.findings))
        if paths:
            raise _not_as_written(target, paths)
    return replace(written, root=found.root, bag=found.bag), found.root == wanted.root


def _unexplained(wanted: dict[str, bytes], found: dict[str, bytes], losses: Sequence[Finding]) -> list[str]:
    """Return the paths at which tensors differ and no loss was told, there or above."""
    told = {loss.path for loss in losses}
    every = dict.fromkeys((*wanted, *found))
    differ = [path for path in every if wanted.get(path) != found.get(path)]
    return [path for path in differ if told.isdisjoint(_above(path))]


def _above(path: str) -> list[str]:
    """Return a displayed path and those of all that it lies in."""
    keys = path.split("/")
    return ["/".join(keys[:count]) for count in range(1, len(keys) + 1)]


def _not_as_written(target: str | os.PathLike[str], paths: Sequence[str]) -> VerificationError:
    message = f"{os.fspath(target)}, read again, does not hold the tensors of the source: do not use it"
    findings = [
        Finding("not-as-written", path, Severity.PROBLEM, "differs from the source") for path in paths
    ]
    return VerificationError(message, findings)
