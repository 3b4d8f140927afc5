"""What is worth telling about data: a value, never a print.

A finding is a loss, an oddity or a problem at one place of a tree or file. Readers and writers
return them; `strict` callers turn losses into an error. Nothing here decides what is done.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Severity"]


class Severity(str, enum.Enum):
    """How much a finding matters."""

    INFO = "info"
    """Worth knowing; nothing is lost."""
    LOSS = "loss"
    """Something of the source is not in the result: an error under `strict`."""
    PROBLEM = "problem"
    """The data is bad."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth telling.

    Attributes
    ----------
    kind : str
        A stable word, such as ``"tie-broken"`` or ``"checksum"``; kinds are only ever added.
    path : str
        The displayed tree path or the file it is about; empty for the whole.
    severity : Severity
    message : str
        One sentence for a person.
    file : str or None
        The file (or member) concerned, relative to its checkpoint.
    offset : int or None
        Bytes from the start of `file`.
    chunk : int or None
        Index of the chunk of the tensor at `path`.
    rule : str or None
        The rule of the specification that is broken.
    """

    kind: str
    path: str
    severity: Severity
    message: str
    file: str | None = None
    offset: int | None = None
    chunk: int | None = None
    rule: str | None = None

    def as_json(self) -> dict[str, str | int]:
        """Return the finding as a JSON object without its empty members."""
        everything = {
            "kind": self.kind,
            "path": self.path,
            "severity": str(self.severity),
            "message": self.message,
            "file": self.file,
            "offset": self.offset,
            "chunk": self.chunk,
            "rule": self.rule,
        }
        return {name: value for name, value in everything.items() if value is not None}
