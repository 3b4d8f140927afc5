"""The exit codes, and which error ends in which: scripts rely on them, so they never change."""

from __future__ import annotations

import enum

from ckptfmt.errors import (
    CkptError,
    ConversionError,
    LossyError,
    MissingExtraError,
    OptionError,
    StorageError,
    UnknownFormatError,
    VerificationError,
)

__all__ = ["Exit", "exit_of"]


class Exit(enum.IntEnum):
    """How a command ended."""

    OK = 0
    DIFFERENT = 1
    """Checked, and found different or bad."""
    USAGE = 2
    """The command cannot be understood, or cannot be done as asked."""
    LOSSY = 3
    """Something would be lost, and ``--strict`` forbids it."""
    MALFORMED = 4
    """The input is malformed or of no known format; `verify` ends with 1 instead."""
    IO = 5
    """A file or directory could not be read or written."""
    MISSING_EXTRA = 6
    """An optional dependency is not installed."""
    RANKS_DISAGREE = 7
    """The ranks of a group were given different things."""
    BUG = 70
    """An error of ours."""
    INTERRUPTED = 130
    """Ended by Ctrl-C; nothing is half written."""
    BROKEN_PIPE = 141
    """Whoever read the output has gone; as for any program that SIGPIPE ends."""


_BY_ERROR: tuple[tuple[type[BaseException], Exit], ...] = (
    (VerificationError, Exit.DIFFERENT),
    (LossyError, Exit.LOSSY),
    (UnknownFormatError, Exit.MALFORMED),
    (ConversionError, Exit.USAGE),
    (OptionError, Exit.USAGE),
    (MissingExtraError, Exit.MISSING_EXTRA),
    (StorageError, Exit.IO),
    (CkptError, Exit.MALFORMED),
    (OSError, Exit.IO),
    (MemoryError, Exit.IO),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


def exit_of(error: BaseException) -> Exit:
    """Return how a command that raised `error` ends."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.BUG)
