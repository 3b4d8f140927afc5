"""The opcodes of pickle protocols 0 to 5, interpreted without executing anything.

A stack machine over bytes in memory, as CPython's ``Lib/pickletools.py`` documents it. Whatever would
import, call or ask something outside becomes a node. Each opcode takes at least a byte, so time and memory
are bounded by the length of the data; lengths are compared with what is left before anything is taken.
"""

from __future__ import annotations

import struct

from ckptfmt.containers.pickle.machine import Limits, Machine, Opcode, refuse
from ckptfmt.containers.pickle.scalars import SCALARS
from ckptfmt.containers.pickle.structure import STRUCTURE
from ckptfmt.errors import FormatError, TruncatedError

__all__ = ["Limits", "interpret"]


def interpret(
    data: bytes, *, start: int = 0, file: str | None = None, limits: Limits | None = None
) -> tuple[object, int]:
    """Return the object that a pickle describes, and the offset after its end.

    Parameters
    ----------
    data : bytes
        The pickle; more may follow it.
    start : int
        Where it begins.
    file : str, optional
        What to call it in errors.
    limits : Limits, optional

    Raises
    ------
    TruncatedError
        The data ends before the pickle does.
    FormatError
        It is no pickle.
    LimitError
        It asks for more than `limits`.
    UnsupportedVersionError
        A newer protocol, extension codes, or buffers that lie outside.
    """
    machine = Machine(data, start, limits or Limits())
    try:
        return machine.run(_HANDLERS), machine.at
    except FormatError as error:
        raise error.located(file=file, offset=machine.opcode_at) from None
    except _MALFORMED as error:
        offset = min(machine.opcode_at, len(data))
        if machine.at >= len(data) and isinstance(error, IndexError | struct.error):
            raise TruncatedError("the pickle ends too early", file=file, offset=offset) from None
        code = data[machine.opcode_at : machine.opcode_at + 1]
        message = f"malformed pickle at opcode {code!r}: {_reason(error)}"
        raise FormatError(message, file=file, offset=offset) from None


_MALFORMED = (IndexError, KeyError, struct.error, ValueError, OverflowError, TypeError)


def _reason(error: Exception) -> str:
    if isinstance(error, IndexError):
        return "there is nothing on the stack"
    if isinstance(error, KeyError):
        return f"nothing is remembered as {error}"
    return str(error)[:200]


def _unknown(m: Machine) -> None:
    refuse(f"there is no opcode {m.data[m.opcode_at]:#04x}")


def _handlers() -> tuple[Opcode, ...]:
    table: list[Opcode] = [_unknown] * 256
    for code, handler in (SCALARS | STRUCTURE).items():
        table[code[0]] = handler
    return tuple(table)


_HANDLERS = _handlers()
