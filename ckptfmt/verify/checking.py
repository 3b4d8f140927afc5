"""Everything that is wrong with one checkpoint: each file, tensor, chunk and offset, not just the first."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.errors import CkptError, FormatError, MissingFileError, OptionError, UnknownFormatError
from ckptfmt.format.constants import DIGEST, MANIFEST
from ckptfmt.loading import checkpoint_of
from ckptfmt.parallel.opened import OpenedCheckpoint, read_manifest
from ckptfmt.parallel.verifying import problems
from ckptfmt.registry import detect, read_foreign
from ckptfmt.storage.directory import Directory
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.paths import display
from ckptfmt.tree.walk import survey
from ckptfmt.verify.digesting import tree_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.tensor import Tensor

__all__ = ["Report", "check", "finding_of"]

_PIECE = 4 << 20
_UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class Report:
    """What checking found.

    Attributes
    ----------
    path : str
    format : str
        Empty if it could not be told.
    root, bag : bytes or None
        Of the data as it is, if it can be read at all.
    step : int or None
    tensors : int
    nbytes : int
        Canonical bytes that were read.
    findings : tuple of Finding
        Problems first.
    """

    path: str
    format: str
    root: bytes | None
    bag: bytes | None
    step: int | None
    tensors: int
    nbytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not any(finding.severity is Severity.PROBLEM for finding in self.findings)


def check(
    path: str | os.PathLike[str],
    *,
    expect: str | bytes | None = None,
    finite: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a checkpoint of any format completely, and say all that is wrong.

    Parameters
    ----------
    path : str or os.PathLike
    expect : str or bytes, optional
        The root it must have, as told on another way: finds intent, not just accidents.
    finite : bool
        Whether NaN and infinite elements are problems; tensors of only zeros are told. Not looked for where
        data is damaged.
    threads : int, optional
    progress : callable, optional
        Called with bytes done and bytes in all.

    Returns
    -------
    Report
        Damage is in its findings, never raised.

    Raises
    ------
    OptionError
        `expect` is no root.
    NotFoundError, StorageError
        There is nothing to check, or it cannot be read at all.
    """
    shown, wanted = os.fspath(path), _root_of(expect)
    try:
        kind = detect(path).name
    except UnknownFormatError as error:
        return _unknown(shown, error)
    except FormatError as error:
        return _failed(shown, "", error)
    with ExitStack() as stack:
        if kind == "ckptfmt":
            report, tree = _check_native(shown, threads, progress, stack)
        else:
            report, tree = _check_foreign(shown, kind, threads, progress, stack)
        extra: list[Finding] = []
        if wanted is not None:
            extra += _unexpected(report, wanted)
        if finite and tree is not None:
            extra += _not_finite(tree)
        return _with(report, extra)


def _root_of(expect: str | bytes | None) -> bytes | None:
    try:
        root = bytes.fromhex(expect) if isinstance(expect, str) else expect
    except ValueError:
        root = b""
    if root is not None and len(root) != DIGEST:
        raise OptionError(f"a root is {2 * DIGEST} hexadecimal digits, not {expect!r}")
    return root


def finding_of(error: CkptError, base: str = "") -> Finding:
    """Return the finding that tells of an error; file names relative to `base`."""
    file = getattr(error, "file", None)
    if file and base and file.startswith(base.rstrip(os.sep) + os.sep):
        file = os.path.relpath(file, base)
    message = getattr(error, "message", None) or str(error)
    return Finding(
        error.kind,
        getattr(error, "tensor", None) or "",
        Severity.PROBLEM,
        message,
        file,
        getattr(error, "offset", None),
        getattr(error, "chunk", None),
        getattr(error, "rule", None),
    )


def _unknown(path: str, error: UnknownFormatError) -> Report:
    """Return the report of what is no checkpoint; a directory is one without its manifest (R-001)."""
    if not Path(path).is_dir():
        return _failed(path, "", error)
    finding = Finding("missing-file", "", Severity.PROBLEM, str(error), MANIFEST, rule="R-001")
    return Report(path, "", None, None, None, 0, 0, (finding,))


def _failed(path: str, kind: str, error: CkptError) -> Report:
    return Report(path, kind, None, None, None, 0, 0, (finding_of(error, path),))


def _with(report: Report, extra: list[Finding]) -> Report:
    findings = sorted((*report.findings, *extra), key=lambda f: f.severity is not Severity.PROBLEM)
    return Report(
        report.path,
        report.format,
        report.root,
        report.bag,
        report.step,
        report.tensors,
        report.nbytes,
        tuple(findings),
    )


def _check_native(
    path: str, threads: int | None, progress: Callable[[int, int], None] | None, stack: ExitStack
) -> tuple[Report, Tree | None]:
    directory = stack.enter_context(Directory(path))
    found: list[CkptError] = []
    try:
        opened = OpenedCheckpoint(read_manifest(directory), directory)
    except (FormatError, MissingFileError) as error:
        return _failed(path, "ckptfmt", error), None
    stack.callback(opened.close)
    opened.open_files(tell=found.append)
    found += problems(opened, threads=threads, progress=progress)
    manifest = opened.manifest
    report = Report(
        path,
        "ckptfmt",
        manifest.root,
        manifest.bag,
        manifest.step,
        len(manifest.rows),
        sum(row.nbytes for row in manifest.rows),
        tuple(finding_of(error, directory.path) for error in found),
    )
    return report, None if found else checkpoint_of(opened, "none").tree


def _check_foreign(
    path: str, kind: str, threads: int | None, progress: Callable[[int, int], None] | None, stack: ExitStack
) -> tuple[Report, Tree | None]:
    try:
        checkpoint = stack.enter_context(read_foreign(path, kind))
        whole = checkpoint.verify_whole()
        digests = tree_digests(checkpoint.tree, threads=threads, progress=progress, paths=False)
    except FormatError as error:
        return _failed(path, kind, error), None
    places = survey(checkpoint.tree)
    report = Report(
        path,
        kind,
        digests.root,
        digests.bag,
        checkpoint.step,
        len(places),
        sum(place.tensor.nbytes for place in places),
        tuple(one for one in checkpoint.findings if not (whole and one.kind == _UNVERIFIED)),
    )
    return report, checkpoint.tree


def _unexpected(report: Report, expect: bytes) -> list[Finding]:
    if report.root == expect:
        return []
    found = "unknown" if report.root is None else report.root.hex()
    message = f"the root is {found}, not {expect.hex()}: this is not the expected state"
    return [Finding("unexpected-root", "", Severity.PROBLEM, message)]


def _not_finite(tree: Tree) -> Iterator[Finding]:
    for place in survey(tree):
        kind = place.tensor.dtype
        if kind.is_float or kind.name in ("c64", "c128"):
            finding = _scan(display(place.path), place.tensor)
            if finding is not None:
                yield finding


def _scan(path: str, tensor: Tensor) -> Finding | None:
    """Count what is not finite, a piece at a time."""
    nan = infinite = 0
    nonzero = False
    first: int | None = None
    flat = type(tensor)(tensor.dtype, (tensor.size,), tensor.source)
    step = _PIECE * 8 // tensor.dtype.bits
    for start in range(0, tensor.size, step):
        piece = flat[start : start + step]
        bad = ~np.isfinite(piece)
        if bad.any():
            first = start + int(np.argmax(bad)) if first is None else first
            nans = int(np.count_nonzero(np.isnan(piece)))
            nan += nans
            infinite += int(np.count_nonzero(bad)) - nans
        nonzero = nonzero or bool(np.count_nonzero(piece))
    if nan or infinite:
        index = tuple(int(i) for i in np.unravel_index(first or 0, tensor.shape))
        message = f"{nan} NaN and {infinite} infinite elements of {tensor.size}, the first at {index}"
        return Finding("not-finite", path, Severity.PROBLEM, message)
    if tensor.size and not nonzero:
        return Finding("all-zero", path, Severity.INFO, f"all {tensor.size} elements are zero")
    return None
