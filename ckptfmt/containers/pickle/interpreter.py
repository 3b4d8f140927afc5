"""The opcodes of pickle protocols 0 to 5, interpreted without executing anything.

A stack machine over bytes in memory or in a file, as CPython's ``Lib/pickletools.py`` documents it. Whatever
would import, call or ask something outside becomes a node. Each opcode takes at least a byte, so time and
memory are bounded by the length of the data; lengths are compared with what is left before anything is taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.machine import Limits, Machine, Opcode, refuse
from ckptfmt.containers.pickle.scalars import SCALARS
from ckptfmt.containers.pickle.structure import STRUCTURE
from ckptfmt.errors import FormatError, TruncatedError

if TYPE_CHECKING:
    from ckptfmt.containers.pickle.nodes import PersistentId
    from ckptfmt.storage.reader import ByteReader

__all__ = ["Limits", "Pickle", "interpret", "interpret_from"]


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
    return _run(machine, file), machine.at


@dataclass(frozen=True, slots=True)
class Pickle:
    """A pickle out of a file.

    Attributes
    ----------
    value : object
        What it describes.
    end : int
        The offset after it.
    outside : tuple of PersistentId
        Every reference to something outside, in the order of the pickle.
    """

    value: object
    end: int
    outside: tuple[PersistentId, ...]


def interpret_from(reader: ByteReader, *, start: int = 0, limits: Limits | None = None) -> Pickle:
    """Return the pickle that begins at an offset of a file; what follows it is hardly read.

    Long bytes stay in the file, as `FileBytes`.

    Parameters
    ----------
    reader : ByteReader
    start : int
    limits : Limits, optional

    Raises
    ------
    FormatError
        And those below it, as `interpret`; each says where.
    StorageError
        The file cannot be read.
    """
    if not 0 <= start <= reader.size:
        raise TruncatedError("a pickle must begin here", file=reader.name, offset=reader.size)
    machine = Machine.over(reader, start, limits or Limits())
    value = _run(machine, reader.name)
    return Pickle(value, machine.base + machine.at, tuple(machine.outside))


def _run(machine: Machine, file: str | None) -> object:
    try:
        return machine.run(_HANDLERS)
    except FormatError as error:
        raise error.located(file=file, offset=machine.base + machine.opcode_at) from None
    except _MALFORMED as error:
        offset = machine.base + min(machine.opcode_at, len(machine.data))
        if isinstance(error, struct.error) or (machine.left <= 0 and isinstance(error, IndexError)):
            raise TruncatedError("the pickle ends too early", file=file, offset=offset) from None
        code = machine.data[machine.opcode_at : machine.opcode_at + 1] if machine.opcode_at >= 0 else b""
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
