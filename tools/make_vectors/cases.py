"""What a conformance case is, and the two lists of them; the modules `valid` and `invalid_*` fill them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .writer import Draft

__all__ = [
    "INVALID",
    "KINDS",
    "VALID",
    "Content",
    "Files",
    "Invalid",
    "Valid",
    "broken",
    "broken_as",
    "invalid",
    "valid",
]

Content: TypeAlias = "bytes | tuple[str, ...]"
"""The bytes of a file, or ``("symlink", target)``, ``("folder",)`` or ``("fifo",)``."""
P = ParamSpec("P")
Files: TypeAlias = "Mapping[str, Content]"

KINDS = {
    "R-001": "missing-file",
    "R-002": "missing-file",
    "R-011": "checksum",
    "R-012": "unsupported-version",
    "R-013": "unsupported-version",
    "R-015": "limit",
    "R-041": "checksum",
    "R-043": "replaced",
    "R-051": "checksum",
    "R-052": "checksum",
    "R-053": "checksum",
    "R-060": "checksum",
    "R-061": "checksum",
}
"""The kinds of rules that have one kind, other than malformed."""


@dataclass(frozen=True)
class Valid:
    """A checkpoint that every reader accepts; coded ones are compared by what they decode to."""

    name: str
    title: str
    build: Callable[[], Draft]
    coded: bool


@dataclass(frozen=True)
class Invalid:
    """A directory that every reader refuses, by one rule."""

    name: str
    title: str
    rule: str
    kind: str
    build: Callable[[], Files]


VALID: list[Valid] = []
INVALID: list[Invalid] = []


def valid(
    name: str, title: str, *, coded: bool = False
) -> Callable[[Callable[[], Draft]], Callable[[], Draft]]:
    """Register a function that plans a valid checkpoint."""

    def register(build: Callable[[], Draft]) -> Callable[[], Draft]:
        VALID.append(Valid(name, title, build, coded))
        return build

    return register


def broken(
    name: str, rule: str, title: str, build: Callable[P, Files], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Register an invalid case that a function makes from arguments."""
    INVALID.append(Invalid(name, title, rule, KINDS.get(rule, "malformed"), partial(build, *args, **kwargs)))


def broken_as(
    kind: str, name: str, rule: str, title: str, build: Callable[P, Files], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Register an invalid case of a rule that has several kinds."""
    INVALID.append(Invalid(name, title, rule, kind, partial(build, *args, **kwargs)))


def invalid(
    name: str, rule: str, title: str, *, kind: str | None = None
) -> Callable[[Callable[[], Files]], Callable[[], Files]]:
    """Register a function that makes a directory which breaks one rule."""

    def register(build: Callable[[], Files]) -> Callable[[], Files]:
        INVALID.append(Invalid(name, title, rule, kind or KINDS.get(rule, "malformed"), build))
        return build

    return register
