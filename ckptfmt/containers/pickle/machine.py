"""The stack machine that the opcodes of a pickle drive: its state, its limits, and what is left of the data.

The data is in memory, or a file of which a window is: the window slides on as the opcodes do, and long bytes
stay in the file. Lengths are compared with what is left before anything is taken. What the opcodes mean is
said in `scalars` and `structure`.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ckptfmt.containers.pickle.nodes import FileBytes, PersistentId
from ckptfmt.errors import FormatError, LimitError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptfmt.containers.pickle.nodes import Global
    from ckptfmt.storage.reader import ByteReader

__all__ = ["I4", "U1", "U2", "U4", "U8", "Limits", "Machine", "Opcode", "decimal", "refuse"]

U1, U2, I4, U4, U8 = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q"))
_DECIMAL = re.compile(rb"[-+]?[0-9]{1,4300}")  # longer ones are refused by Python itself, with reason
_STOP = ord(".")
_NEVER = sys.maxsize
_FIRST_WINDOW = 4 << 10
_WINDOW = 1 << 20
_MARGIN = 64  # more than any opcode takes without asking for it
_LONG = 64 << 10
_LONGEST_LINE = 1 << 30


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
    """What an interpretation has come to.

    Attributes
    ----------
    data : bytes
        All bytes, or a window of the file.
    base : int
        Where `data` begins: 0, or an offset in the file.
    at, opcode_at : int
        What comes next and the opcode at work, within `data`.
    outside : list of PersistentId
        Every reference to something outside, in the order of the pickle.
    """

    __slots__ = (
        *("at", "base", "data", "globals", "limits", "memo", "opcode_at", "outer", "outside"),
        *("room", "stack", "_edge", "_end", "_reader", "_window"),
    )

    def __init__(self, data: bytes, start: int, limits: Limits) -> None:
        self.data = data
        self.base = 0
        self.at = start
        self.opcode_at = start
        self.limits = limits
        self.room = limits.objects
        self.stack: list[object] = []
        self.outer: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.globals: dict[bytes, Global] = {}
        self.outside: list[PersistentId] = []
        self._reader: ByteReader | None = None
        self._edge = _NEVER  # the window slides when `at` has come here
        self._end = len(data)
        self._window = _FIRST_WINDOW

    @classmethod
    def over(cls, reader: ByteReader, start: int, limits: Limits) -> Machine:
        """Return a machine over a file from an offset on, which reads as far as the pickle goes."""
        machine = cls(b"", 0, limits)
        machine._reader = reader
        machine._end = reader.size
        machine.base = start
        machine._slide()
        return machine

    def run(self, handlers: Sequence[Opcode]) -> object:
        """Interpret up to the end of the pickle and return its object.

        Parameters
        ----------
        handlers : sequence of callable
            What each of the 256 opcodes does.
        """
        if self._reader is not None:
            return self._run_windows(handlers)
        data = self.data
        for _ in range(self.limits.opcodes):
            at = self.opcode_at = self.at
            code = data[at]
            self.at = at + 1
            if code == _STOP:
                return self.stack.pop()
            handlers[code](self)
        raise LimitError(f"more than {self.limits.opcodes} opcodes")

    def _run_windows(self, handlers: Sequence[Opcode]) -> object:
        """Interpret as `run`, over a file; handlers may let the window slide, too."""
        for _ in range(self.limits.opcodes):
            if self.at >= self._edge:
                self._slide()
            at = self.opcode_at = self.at
            code = self.data[at]
            self.at = at + 1
            if code == _STOP:
                return self.stack.pop()
            handlers[code](self)
        raise LimitError(f"more than {self.limits.opcodes} opcodes")

    @property
    def left(self) -> int:
        """The number of bytes that follow, to the end of all data."""
        return self._end - self.base - self.at

    def _slide(self) -> None:
        """Let the window begin at what comes next."""
        assert self._reader is not None  # noqa: S101 - the edge is never reached otherwise
        start = min(self.base + self.at, self._end)
        self.opcode_at -= start - self.base
        self.at -= start - self.base
        self.data = self._reader.read(start, min(self._window, self._end - start))
        self._window = min(2 * self._window, _WINDOW)
        self.base = start
        self._edge = _NEVER if start + len(self.data) == self._end else len(self.data) - _MARGIN

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        stop = self.at + count
        if count > self.left:
            raise TruncatedError(f"{count} bytes are needed, {self.left} are left")
        if stop > len(self.data) and self._reader is not None:
            taken = self._reader.read(self.base + self.at, count)
        else:
            taken = self.data[self.at : stop]
        self.at = stop
        return taken

    def take_long(self, count: int) -> bytes | FileBytes:
        """Return the next `count` bytes; where they are many and lie in a file, as a place in it."""
        if self._reader is None or count < _LONG or count > self.left:
            return self.take(count)
        taken = FileBytes(self._reader, self.base + self.at, count)
        self.at += count
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
            return self._long_line()
        taken = self.data[self.at : end]
        self.at = end + 1
        return taken

    def _long_line(self) -> bytes:
        """Return a line that goes beyond the window, a piece at a time."""
        pieces: list[bytes] = []
        while self._edge != _NEVER:
            if len(pieces) * _WINDOW > _LONGEST_LINE:
                raise LimitError(f"a line of more than {_LONGEST_LINE} bytes")
            pieces.append(self.data[self.at :])
            self.at = len(self.data)
            self._slide()
            end = self.data.find(b"\n")
            if end >= 0:
                pieces.append(self.data[:end])
                self.at = end + 1
                return b"".join(pieces)
        raise TruncatedError("a line does not end")

    def made(self) -> None:
        """Count an object."""
        self.room -= 1
        if self.room < 0:
            raise LimitError(f"more than {self.limits.objects} objects")

    def refer(self, value: object) -> PersistentId:
        """Return a reference to something outside, and note it."""
        made = PersistentId(value)
        self.outside.append(made)
        return made

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
