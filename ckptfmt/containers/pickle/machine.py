"""The stack machine that the opcodes of a pickle drive: its state, its limits, and what is left of the data.

Lengths are compared with what is left before anything is taken. What the opcodes mean is said in `scalars`
and `structure`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ckptfmt.errors import FormatError, LimitError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptfmt.containers.pickle.nodes import Global

__all__ = ["I4", "U1", "U2", "U4", "U8", "Limits", "Machine", "Opcode", "decimal", "refuse"]

U1, U2, I4, U4, U8 = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q"))
_DECIMAL = re.compile(rb"[-+]?[0-9]{1,4300}")  # longer ones are refused by Python itself, with reason
_STOP = ord(".")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a pickle may ask for.

    Attributes
    ----------
    opcodes : int
        A state dict takes about 35 for each tensor.
    memo : int
        Objects that are remembered.
    marks : int
        Containers that are open at once.
    objects : int
        Containers, calls and references that are made. One takes hundreds of bytes of memory in the end, and
        may take a single byte of the pickle, or a fraction of one where that is compressed.
    """

    opcodes: int = 1 << 26
    memo: int = 1 << 25
    marks: int = 1 << 12
    objects: int = 1 << 24


Opcode: TypeAlias = "Callable[[Machine], None]"


class Machine:
    """What an interpretation has come to."""

    __slots__ = ("at", "data", "globals", "limits", "memo", "opcode_at", "outer", "room", "stack")

    def __init__(self, data: bytes, start: int, limits: Limits) -> None:
        self.data = data
        self.at = start
        self.opcode_at = start
        self.limits = limits
        self.room = limits.objects
        self.stack: list[object] = []
        self.outer: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.globals: dict[bytes, Global] = {}

    def run(self, handlers: Sequence[Opcode]) -> object:
        """Interpret up to the end of the pickle and return its object.

        Parameters
        ----------
        handlers : sequence of callable
            What each of the 256 opcodes does.
        """
        data = self.data
        for _ in range(self.limits.opcodes):
            at = self.opcode_at = self.at
            code = data[at]
            self.at = at + 1
            if code == _STOP:
                return self.stack.pop()
            handlers[code](self)
        raise LimitError(f"more than {self.limits.opcodes} opcodes")

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        stop = self.at + count
        if stop > len(self.data):
            raise TruncatedError(f"{count} bytes are needed, {len(self.data) - self.at} are left")
        taken = self.data[self.at : stop]
        self.at = stop
        return taken

    def number(self, form: struct.Struct) -> int:
        """Return the next integer of a fixed width."""
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return int(value)

    def line(self) -> bytes:
        """Return the bytes up to the next newline, which is skipped."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise TruncatedError("a line does not end")
        taken = self.data[self.at : end]
        self.at = end + 1
        return taken

    def made(self) -> None:
        """Count an object."""
        self.room -= 1
        if self.room < 0:
            raise LimitError(f"more than {self.limits.objects} objects")

    def to_mark(self) -> list[object]:
        """Return what was put on the stack since the last mark."""
        items = self.stack
        self.stack = self.outer.pop()
        return items

    def remember(self, index: int) -> None:
        """Remember what is on top of the stack."""
        if len(self.memo) >= self.limits.memo:
            raise LimitError(f"more than {self.limits.memo} objects are remembered")
        self.memo[index] = self.stack[-1]


def refuse(message: str) -> NoReturn:
    """Raise FormatError."""
    raise FormatError(message)


def decimal(text: bytes) -> int:
    """Return a decimal integer of bounded length."""
    if not _DECIMAL.fullmatch(text):
        refuse(f"not an integer: {text[:40]!r}")
    return int(text)
