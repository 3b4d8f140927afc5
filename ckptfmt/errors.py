"""Every exception that ckptfmt raises on purpose, grouped by what a caller would do about it.

::

    CkptError
    ├── FormatError (ValueError)             the bytes break a rule of their format
    │   ├── TruncatedError                     they end too early
    │   ├── ChecksumError                      a digest or checksum does not match
    │   ├── UnsupportedVersionError            valid perhaps, but newer or other than we read
    │   ├── LimitError                         larger or deeper than any reader should accept
    │   ├── MissingFileError                   a file that must be there is not
    │   └── ReplacedError                      a file belongs to another checkpoint
    ├── TreeError (ValueError)               a value that no checkpoint can hold
    ├── OptionError (ValueError)             an option that does not exist or does not fit
    ├── ConversionError (ValueError)         the target cannot carry the source
    │   ├── UnknownFormatError (LookupError)   no format of that name, or content of none
    │   └── LossyError                         something would be lost and `strict` forbids it
    ├── StorageError (OSError)               the place that holds the bytes failed
    │   ├── ExistsError (FileExistsError)      the target is already there
    │   ├── NotFoundError (FileNotFoundError)  the source is not
    │   ├── NoSpaceError                       disk or quota is full
    │   └── UnsupportedError                   this file system cannot do what was asked
    ├── VerificationError                    checked, and found bad: carries every finding
    └── MissingExtraError (ImportError)      an optional dependency is not installed

Each class has a `kind`: a stable word for reports and conformance vectors. Kinds are only ever added.
Built-in bases keep `except ValueError` and `except OSError` working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.tree.findings import Finding

__all__ = [
    "ChecksumError",
    "CkptError",
    "ConversionError",
    "ExistsError",
    "FormatError",
    "LimitError",
    "LossyError",
    "MissingExtraError",
    "MissingFileError",
    "NoSpaceError",
    "NotFoundError",
    "OptionError",
    "ReplacedError",
    "StorageError",
    "TreeError",
    "TruncatedError",
    "UnknownFormatError",
    "UnsupportedError",
    "UnsupportedVersionError",
    "VerificationError",
]


class CkptError(Exception):
    """The base of everything that ckptfmt raises on purpose."""

    kind: ClassVar[str] = "error"


class FormatError(CkptError, ValueError):
    """Bytes that break a rule of their format.

    Parameters
    ----------
    message : str
        What is wrong and, where there is one, what to do.
    rule : str, optional
        The rule of ``spec/ckptfmt-1.0.md`` that is broken, such as ``"R-017"``; native files only.
    file, tensor : str, optional
        Where: the file (a path or a member name) and the tensor (its displayed path).
    offset : int, optional
        Where in the file, in bytes from its start.
    chunk : int, optional
        Which chunk of the tensor.
    """

    kind = "malformed"

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        file: str | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        self.file = file
        self.tensor = tensor
        self.offset = offset
        self.chunk = chunk

    def located(
        self,
        *,
        file: str | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        rule: str | None = None,
    ) -> FormatError:
        """Return the same error with the given places filled in where they were not known."""
        return type(self)(
            self.message,
            rule=self.rule or rule,
            file=self.file or file,
            tensor=self.tensor or tensor,
            offset=self.offset if self.offset is not None else offset,
            chunk=self.chunk,
        )

    def __str__(self) -> str:
        places = [
            f"file {self.file}" if self.file else "",
            f"tensor {self.tensor}" if self.tensor else "",
            f"chunk {self.chunk}" if self.chunk is not None else "",
            f"offset {self.offset}" if self.offset is not None else "",
            f"rule {self.rule}" if self.rule else "",
        ]
        where = ", ".join(place for place in places if place)
        return f"{self.message} ({where})" if where else self.message


class TruncatedError(FormatError):
    """Bytes that end before their format says they should."""

    kind = "truncated"


class ChecksumError(FormatError):
    """Bytes whose digest or checksum is not the recorded one."""

    kind = "checksum"


class UnsupportedVersionError(FormatError):
    """A version, requirement or variant that this release does not read."""

    kind = "unsupported-version"


class LimitError(FormatError):
    """Input larger, deeper or more numerous than a reader accepts."""

    kind = "limit"


class MissingFileError(FormatError):
    """A file that belongs to a checkpoint is not there."""

    kind = "missing-file"


class ReplacedError(FormatError):
    """A file that belongs to another checkpoint, or one that was replaced while in use."""

    kind = "replaced"


class TreeError(CkptError, ValueError):
    """A value that no checkpoint can hold; the message names its path."""

    kind = "tree"


class OptionError(CkptError, ValueError):
    """An option that does not exist, is out of range, or does not fit the others."""

    kind = "option"


class ConversionError(CkptError, ValueError):
    """A conversion that cannot be made as asked."""

    kind = "conversion"


class UnknownFormatError(ConversionError, LookupError):
    """A format name that is not registered, or content that is of no known format."""

    kind = "unknown-format"


class LossyError(ConversionError):
    """Something would be lost, and the caller asked for no loss.

    Parameters
    ----------
    message : str
    findings : sequence of Finding
        Everything that would be lost.
    """

    kind = "lossy"

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class StorageError(CkptError, OSError):
    """A place that holds bytes failed.

    Parameters
    ----------
    message : str
    file : str, optional
        The path at which it failed; also `filename`, as for any OSError.
    errno : int, optional
        The system's error number, where there was one.
    """

    kind = "storage"

    def __init__(self, message: str, *, file: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.filename = file
        self.errno = errno

    def __str__(self) -> str:
        return f"{self.message} (file {self.file})" if self.file else self.message


class ExistsError(StorageError, FileExistsError):
    """The target of a write is already there; nothing was changed."""

    kind = "exists"


class NotFoundError(StorageError, FileNotFoundError):
    """The source of a read is not there."""

    kind = "not-found"


class NoSpaceError(StorageError):
    """The disk or the quota is full; the message names bytes needed and bytes free."""

    kind = "no-space"


class UnsupportedError(StorageError):
    """The file system cannot do what was asked; the message says what to do instead."""

    kind = "unsupported"


class VerificationError(CkptError):
    """Checked and found bad.

    Parameters
    ----------
    message : str
    findings : sequence of Finding
        Every problem, not just the first.
    """

    kind = "verification"

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class MissingExtraError(CkptError, ImportError):
    """An optional dependency is needed and not installed.

    Parameters
    ----------
    extra : str
        The extra that brings it, as in ``pip install "ckptfmt[torch]"``.
    why : str
        What needs it.
    """

    kind = "missing-extra"

    def __init__(self, extra: str, why: str) -> None:
        super().__init__(f'{why} needs an optional dependency: pip install "ckptfmt[{extra}]"')
        self.extra = extra
